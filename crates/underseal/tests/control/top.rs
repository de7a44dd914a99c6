use std::io::{Read, Write};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::operator::Operator;
use crate::support::nbd::Client;
use crate::support::tool;
use crate::support::tools::PATIENCE;

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

/// `underseal top` on a terminal of 30 lines, which script(1) makes.
struct Terminal {
    child: Child,
    screen: Receiver<Vec<u8>>,
    shown: String,
}

const ENTERS: &str = "\x1b[?1049h";
const LEAVES: &str = "\x1b[?1049l";

impl Terminal {
    fn start(operator: &Operator) -> Self {
        let command = format!(
            "stty rows 30 cols 120; stty -g; {} top; echo status=$?; stty -g",
            env!("CARGO_BIN_EXE_underseal")
        );
        let mut child = tool("script")
            .args(["--quiet", "--return", "--command", &command, "/dev/null"])
            .envs([("SHELL", "/bin/sh"), ("TERM", "xterm-256color")])
            .env("UNDERSEAL_RUNTIME_DIR", operator.directory())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script(1) is needed for the tests");
        let (send, screen) = channel();
        let mut output = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len @ 1..) = output.read(&mut bytes) {
                if send.send(bytes[..len].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { child, screen, shown: String::new() }
    }

    #[track_caller]
    fn sees(&mut self, text: &str) {
        while !self.shown.contains(text) {
            match self.screen.recv_timeout(PATIENCE) {
                Ok(bytes) => self.shown.push_str(&String::from_utf8_lossy(&bytes)),
                Err(e) => panic!("{text:?} is not shown ({e}): {:?}", self.shown),
            }
        }
    }

    fn types(&mut self, keys: &str) {
        self.child.stdin.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for the end, and sees to it that the terminal is as it was.
    #[track_caller]
    fn ends(mut self, status: &str) {
        self.sees(status);
        self.child.wait().unwrap();
        while let Ok(bytes) = self.screen.recv_timeout(PATIENCE) {
            self.shown.push_str(&String::from_utf8_lossy(&bytes));
        }
        let (enters, leaves) = (self.shown.find(ENTERS), self.shown.rfind(LEAVES));
        assert!(enters.is_some() && enters < leaves, "{:?}", self.shown);
        let modes = |line: Option<&str>| line.map(|line| line.trim().to_owned());
        let before = modes(self.shown.lines().next());
        let after = modes(self.shown.trim_end().lines().last());
        assert_eq!(before, after, "the terminal's modes: {:?}", self.shown);
    }
}

#[test]
fn the_live_view_is_drawn_and_leaves_the_terminal_as_it_was() {
    let operator = Operator::new();
    let (volume, first) = operator.open(&["--read-only", "--name", "first"]);
    let second = operator.serve(&volume, &["--read-only", "--name", "second", "--policy", "same-cpu"]);
    let mut terminal = Terminal::start(&operator);
    for text in [ENTERS, "NAME", "first", "second", "same-cpu", "crypto", "reply"] {
        terminal.sees(text);
    }
    terminal.types("j\x1b[Ajx");
    terminal.types("q");
    terminal.ends("status=0");

    // A signal, too.
    let mut terminal = Terminal::start(&operator);
    terminal.sees("second");
    let pid = top_of(terminal.child.id());
    crate::support::run(tool("kill").args(["-TERM", &pid.to_string()]));
    terminal.ends("status=143");
    first.stop();
    second.stop();
}

/// The process of `underseal top` below script(1) and its shell.
fn top_of(script: u32) -> u32 {
    let parent = |pid: u32| -> Option<(u32, String)> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (head, tail) = stat.rsplit_once(')')?;
        let name = head.split_once('(')?.1.to_owned();
        Some((tail.split_whitespace().nth(1)?.parse().ok()?, name))
    };
    let is_below = |mut pid: u32| {
        while let Some((up, _)) = parent(pid).filter(|_| pid > 1) {
            if up == script {
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
