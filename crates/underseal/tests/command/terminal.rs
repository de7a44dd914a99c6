//! A passphrase typed on a pseudo-terminal.

use rustix::process::Signal;

use crate::command::common::{CHEAP, PASSPHRASE, Place, Server, eventually, is_running, server_signal};
use crate::support::terminal::Terminal;

#[test]
fn a_new_passphrase_is_typed_twice_and_never_shown() {
    let place = Place::new();
    let format = [&["format", "disk", "--size", "32M"], &CHEAP[..]].concat();
    let mut terminal = Terminal::run(&place.path(""), &format);
    terminal.sees("Passphrase for disk: ").types(&format!("{PASSPHRASE}\n"));
    terminal.sees("The same again: ").types(&format!("{PASSPHRASE}\n"));
    let (code, shown) = terminal.ends();
    assert_eq!(code, Some(0), "{shown}");
    assert!(!shown.contains("hunter2"), "echoed: {shown:?}");
    place.unlock("read", "disk", &["-o", "out"]).succeeds();

    std::fs::remove_file(place.path("disk")).unwrap();
    let mut terminal = Terminal::run(&place.path(""), &format);
    terminal.sees("Passphrase for disk: ").types("one\n").sees("The same again: ").types("two\n");
    let (code, shown) = terminal.ends();
    assert_eq!(code, Some(2), "{shown}");
    assert!(shown.contains("the two passphrases differ") && !place.path("disk").exists(), "{shown}");
}

#[test]
fn who_gives_up_at_the_question_has_lost_and_made_nothing() {
    let place = Place::with_volume();
    let before = place.read("disk");
    for (image, size) in [("disk", "20M"), ("new", "1G")] {
        let format = [&["format", image, "--force", "--size", size], &CHEAP[..]].concat();
        let mut terminal = Terminal::run(&place.path(""), &format);
        terminal.sees(&format!("Passphrase for {image}: ")).types("\x03");
        let (code, shown) = terminal.ends();
        assert_ne!(code, Some(0), "{shown}");
    }
    assert!(place.read("disk") == before);
    assert!(!place.path("new").exists());
}

#[test]
fn a_wrong_passphrase_may_be_typed_again_twice() {
    let place = Place::with_volume();
    let read = ["read", "disk", "--length", "512", "-o", "out"];
    let mut terminal = Terminal::run(&place.path(""), &read);
    terminal.sees("Passphrase for disk: ").types("a\n").sees("No keyslot opens");
    terminal.sees("Passphrase for disk: ").types("b\n").sees("No keyslot opens");
    terminal.sees("Passphrase for disk: ").types(&format!("{PASSPHRASE}\n"));
    assert_eq!(terminal.ends().0, Some(0));

    let mut terminal = Terminal::run(&place.path(""), &read);
    for _ in 0..3 {
        terminal.sees("Passphrase for disk: ").types("a\n");
    }
    let (code, shown) = terminal.ends();
    assert_eq!(code, Some(3), "{shown}");

    let mut terminal = Terminal::run(&place.path(""), &read);
    terminal.sees("Passphrase for disk: ").types("\x04");
    let (code, shown) = terminal.ends();
    assert_eq!(code, Some(3), "{shown}");
    assert!(shown.contains("no passphrase was typed"), "{shown}");
}

#[test]
fn the_terminal_shows_what_is_typed_again_after_a_signal() {
    let place = Place::with_volume();
    let after = "echo code=$?; stty -a | tr ' ;' '\\n\\n' | grep -x -- '-*echo'; echo end";
    for (signal, code) in [(None, 130), (Some(Signal::TERM), 143), (Some(Signal::HUP), 129)] {
        let underseal = env!("CARGO_BIN_EXE_underseal");
        let inner = format!("echo pid=$$; exec {underseal} read disk -o out");
        let mut terminal = Terminal::shell(&place.path(""), &format!("trap : INT; sh -c '{inner}'; {after}"));
        terminal.sees("pid=").sees("\n");
        let line = terminal.seen().trim().to_owned();
        let pid: u32 = line.rsplit_once('=').unwrap().1.parse().unwrap();
        terminal.sees("Passphrase for disk: ");
        match signal {
            None => drop(terminal.types("\x03")),
            Some(signal) => server_signal(pid, signal),
        }
        terminal.sees(&format!("code={code}")).sees("end");
        assert!(
            terminal.shown().contains("\necho\r") && !terminal.shown().contains("-echo"),
            "{:?}",
            terminal.shown()
        );
        terminal.ends();
    }
}

#[test]
fn a_stopped_question_is_asked_again_when_it_is_continued() {
    let place = Place::with_volume();
    let underseal = env!("CARGO_BIN_EXE_underseal");
    // With job control, as at a prompt.
    let shell = format!(
        "set -m; {underseal} read disk --length 512 -o out; echo stopped; stty -a | tr ' ;' '\\n\\n' | grep -x -- '-*echo'; fg; echo code=$?"
    );
    let mut terminal = Terminal::shell(&place.path(""), &shell);
    terminal.sees("Passphrase for disk: ").types("half\x1a");
    terminal.sees("stopped").sees("\necho\r");
    terminal.sees("Passphrase for disk: ").types(&format!("{PASSPHRASE}\n")).sees("code=0");
    let (_, shown) = terminal.ends();
    assert!(!shown.contains("hunter2"));
}

#[test]
fn a_daemon_asks_before_it_leaves_the_terminal() {
    let place = Place::with_volume();
    let open = ["open", "disk", "--nbd", "unix:nbd", "--daemon", "--pid-file", "pid"];
    let mut terminal = Terminal::run(&place.path(""), &open);
    terminal.sees("Passphrase for disk: ").types("a\n").sees("Passphrase for disk: ");
    terminal.types(&format!("{PASSPHRASE}\n")).sees("disk is open");
    assert_eq!(terminal.ends().0, Some(0));
    // The terminal is gone by now.
    let pid: u32 = String::from_utf8(place.read("pid")).unwrap().trim().parse().unwrap();
    place.tool("nbdinfo", &["nbd+unix:///?socket=nbd"]);
    server_signal(pid, Signal::TERM);
    eventually("the daemon's end", || !is_running(pid));

    let mut terminal = Terminal::run(&place.path(""), &open);
    terminal.sees("Passphrase for disk: ").types("\x03");
    let (code, shown) = terminal.ends();
    assert_eq!(code, Some(130), "{shown}");
    Server::start(&place, &[]).stop();
}

#[test]
fn overwriting_is_confirmed_by_a_yes_in_capitals() {
    let place = Place::with_volume();
    let format = [&["format", "disk", "--passphrase-file", "pass"], &CHEAP[..]].concat();
    let uuid = |place: &Place| place.tool("cryptsetup", &["luksUUID", "disk"]);
    let before = uuid(&place);
    let mut terminal = Terminal::run(&place.path(""), &format);
    terminal.sees("holds a LUKS2 volume").sees("YES in capitals").types("yes\n");
    assert_eq!(terminal.ends().0, Some(2));
    assert_eq!(uuid(&place), before);
    let mut terminal = Terminal::run(&place.path(""), &format);
    terminal.sees("YES in capitals").types("YES\n");
    assert_eq!(terminal.ends().0, Some(0));
    assert_ne!(uuid(&place), before);
}

#[test]
fn plain_bytes_do_not_go_to_a_terminal_by_accident() {
    let place = Place::with_volume();
    let read = ["read", "disk", "--passphrase-file", "pass", "--length", "4096"];
    let (code, shown) = Terminal::run(&place.path(""), &read).ends();
    assert_eq!(code, Some(2), "{shown}");
    assert!(shown.contains("-o FILE"), "{shown}");
    assert_eq!(Terminal::run(&place.path(""), &[&read[..], &["-o", "-"]].concat()).ends().0, Some(0));
}

#[test]
fn long_copies_show_a_bar_on_a_terminal_and_nothing_when_quiet() {
    let place = Place::with_volume();
    let read = ["read", "disk", "--passphrase-file", "pass", "-o", "out"];
    let (_, shown) = Terminal::run(&place.path(""), &read).ends();
    assert!(shown.contains("reading ["), "{shown:?}");
    let (_, shown) = Terminal::run(&place.path(""), &[&read[..], &["-q"]].concat()).ends();
    assert_eq!(shown, "");
}
