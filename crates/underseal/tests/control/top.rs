use std::time::Duration;

use crate::control::operator::Operator;
use crate::support::nbd::Client;
use crate::support::terminal::Terminal;
use crate::support::tool;

#[test]
fn one_interval_is_printed_where_there_is_no_terminal() {
    let operator = Operator::new();
    assert_eq!(operator.does("top"), "no volume is open\n");
    let (_, server) = operator.open(&["--policy", "adaptive", "--name", "disk"]);
    let socket = server.socket();
    let client = std::thread::spawn(move || {
        let mut client = Client::connect(&socket).unwrap();
        for i in 0..400 {
            client.write(i % 100 * 4096, &[1; 4096]).unwrap();
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let text = operator.does("top --once");
    let line = text.lines().find(|line| line.starts_with("disk ")).expect(&text);
    let words: Vec<_> = line.split_whitespace().collect();
    assert_eq!(words[1], "adaptive", "{text}");
    assert_eq!(words[2], "0", "no reads: {text}");
    assert!(words[3].parse::<u64>().unwrap() > 0, "no writes: {text}");
    for stage in ["queued", "crypto", "lower", "reply", "total"] {
        assert!(text.lines().any(|line| line.trim_start().starts_with(stage)), "{text}");
    }
    client.join().unwrap();
    server.stop();
}

const ENTERS: &str = "\x1b[?1049h";
const LEAVES: &str = "\x1b[?1049l";

/// `underseal top` on a terminal of 30 lines.
fn start(operator: &Operator) -> Terminal {
    let top = env!("CARGO_BIN_EXE_underseal");
    let command = format!("stty rows 30 cols 120; stty -g; {top} top; echo status=$?; stty -g");
    let mut setsid = tool("setsid");
    setsid.env("TERM", "xterm-256color").env("UNDERSEAL_RUNTIME_DIR", operator.directory());
    Terminal::of(setsid, &command)
}

/// Waits for the end, and sees to it that the terminal is as it was.
#[track_caller]
fn ends(mut terminal: Terminal, status: &str) {
    terminal.sees(status);
    let (_, shown) = terminal.ends();
    let (enters, leaves) = (shown.find(ENTERS), shown.rfind(LEAVES));
    assert!(enters.is_some() && enters < leaves, "{shown:?}");
    let modes = |line: Option<&str>| line.map(|line| line.trim().to_owned());
    let before = modes(shown.lines().next());
    let after = modes(shown.trim_end().lines().last());
    assert_eq!(before, after, "the terminal's modes: {shown:?}");
}

#[test]
fn the_live_view_is_drawn_and_leaves_the_terminal_as_it_was() {
    let operator = Operator::new();
    let (volume, first) = operator.open(&["--read-only", "--name", "first"]);
    let second = operator.serve(&volume, &["--read-only", "--name", "second", "--policy", "same-cpu"]);
    let mut terminal = start(&operator);
    for text in [ENTERS, "NAME", "first", "second", "same-cpu", "crypto", "reply"] {
        terminal.sees(text);
    }
    terminal.types("j\x1b[Ajx");
    terminal.types("q");
    ends(terminal, "status=0");

    // A signal, too.
    let mut terminal = start(&operator);
    terminal.sees("second");
    let pid = top_of(terminal.id());
    crate::support::run(tool("kill").args(["-TERM", &pid.to_string()]));
    ends(terminal, "status=143");
    first.stop();
    second.stop();
}

/// The process of `underseal top` below the shell.
fn top_of(shell: u32) -> u32 {
    let parent = |pid: u32| -> Option<(u32, String)> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (head, tail) = stat.rsplit_once(')')?;
        let name = head.split_once('(')?.1.to_owned();
        Some((tail.split_whitespace().nth(1)?.parse().ok()?, name))
    };
    let is_below = |mut pid: u32| {
        while let Some((up, _)) = parent(pid).filter(|_| pid > 1) {
            if up == shell {
                return true;
            }
            pid = up;
        }
        false
    };
    let pids = std::fs::read_dir("/proc").unwrap().filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
    pids.into_iter()
        .find(|pid| parent(*pid).is_some_and(|(_, name)| name == "underseal") && is_below(*pid))
        .expect("underseal top runs")
}
