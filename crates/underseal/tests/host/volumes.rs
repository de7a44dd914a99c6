use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};

use crate::host::host::Host;
use crate::support::nbd::Client;
use crate::support::output;
use crate::support::terminal::Terminal;
use crate::support::tools::{PATIENCE, wait_until};

use crate::support::volume::{CHEAP_PBKDF2, PASSPHRASE, text, underseal};

#[test]
fn volumes_are_opened_once_and_closed_once() {
    let mut host = Host::new();
    let first = host.volume("first", "nbd");
    host.volume("second", "nofail,x-systemd.device-timeout=5,discard");
    host.volume("later", "noauto");
    assert_eq!(host.states(), "first:down second:down later:down");

    let up = host.does("up");
    let at = |name: &str| format!("{name} is up: nbd+unix:///?socket={}/{name}.nbd", text(&host.directory()));
    assert_eq!(up.lines().collect::<std::collections::BTreeSet<_>>(), [&*at("first"), &*at("second")].into());
    assert_eq!(host.states(), "first:up second:up later:down");
    let (pid, second) = (host.pid("first").unwrap(), host.pid("second").unwrap());
    let ps = host.ps();
    assert_eq!((&ps["json_version"], &ps["config"]), (&1.into(), &text(&host.config()).into()));
    assert_eq!((&ps["volumes"][2]["auto"], &ps["volumes"][2]["status"]), (&false.into(), &().into()));
    assert_eq!(ps["volumes"][0]["status"]["image"], text(&first.image));
    let table = host.does("ps");
    assert!(table.contains("down, noauto") && table.contains("48 MiB") | table.contains("32 MiB"), "{table}");

    // The second `up` does nothing, and prints nothing.
    assert_eq!(host.does("up"), "");
    assert_eq!((host.pid("first").unwrap(), host.pid("second").unwrap()), (pid, second));

    let data = crate::support::bytes(1, 1 << 20);
    let mut client = Client::connect(&host.directory().join("first.nbd")).unwrap();
    client.write(0, &data).unwrap();
    assert_eq!(host.does("up later"), format!("{}\n", at("later")));
    assert_eq!(host.does("down first later").lines().count(), 2);
    assert_eq!(host.states(), "first:down second:up later:down");
    assert_eq!(host.does("down"), "second is down\n");
    assert_eq!(host.does("down"), "");
    assert!(!host.directory().join("first.nbd").exists(), "its server has put all in order");
    let left = fs::read_dir(host.directory()).unwrap().map(|entry| entry.unwrap().path());
    assert_eq!(left.filter(|path| text(path).ends_with(".lock")).count(), 0);
    assert_eq!(first.read(0, data.len()), data);
    assert_eq!(host.does("up -q"), "");
    host.does("down");
}

/// The upper volume writes its journal as it closes: the lower one has to be there.
#[test]
fn volumes_over_others_are_opened_after_them_and_closed_before_them() {
    let mut host = Host::new();
    let socket = host.directory().join("low.nbd");
    let uri = format!("nbd+unix:///?socket={}", text(&socket));
    let key = host.scratch.path("low.img.pass");
    host.line(format!("top {uri} {} nbd,noauto", text(&key)));
    host.volume("low", "nbd");
    host.does("up");
    let mut format = underseal();
    format.args(["format", &uri, "--force", "-q", "--integrity", "hmac-sha256", "--key-file"]);
    let made = output(format.arg(&key).args(CHEAP_PBKDF2));
    assert!(made.status.success(), "{made:?}");
    host.does("down");

    let data = crate::support::bytes(2, 32 << 10);
    for _ in 0..3 {
        let up = host.does("up top low");
        assert!(up.lines().next().unwrap().starts_with("low is up"), "{up}");
        Client::connect(&host.directory().join("top.nbd")).unwrap().write(0, &data).unwrap();
        assert_eq!(host.does("down"), "top is down\nlow is down\n");
        host.does("up low top");
        let read = Client::connect(&host.directory().join("top.nbd")).unwrap().read(0, data.len()).unwrap();
        assert!(read == data, "acknowledged bytes are gone");
        host.does("down");
    }
}

/// The upper volume has bytes that only the lower one can take.
#[test]
fn a_volume_stays_open_below_one_that_could_not_be_closed() {
    let mut host = Host::new();
    let socket = host.directory().join("low.nbd");
    let key = host.scratch.file("key", &[7; 64]);
    host.line(format!(
        "top nbd+unix:///?socket={} {} nbd,plain,cipher=aes-xts-plain64,size=512",
        text(&socket),
        text(&key)
    ));
    host.volume("low", "nbd");
    host.volume("beside", "nbd");
    host.does("up");
    Client::connect(&host.directory().join("top.nbd")).unwrap().write(0, &[7; 4096]).unwrap();
    // The last flush of the upper volume waits for it.
    let low = host.pid("low").unwrap();
    kill_process(low, Signal::STOP).unwrap();
    let ran = host.run("down --timeout 2");
    assert_eq!(ran.code, Some(7), "{ran:?}");
    assert!(ran.err.contains("low: top lies on it"), "{ran:?}");
    assert_eq!(ran.out, "beside is down\n");
    kill_process(low, Signal::CONT).unwrap();
    host.does("down");
    assert_eq!(host.states(), "top:down low:down beside:down");
}

#[test]
fn down_waits_for_a_hung_server_up_to_its_limit() {
    let mut host = Host::new();
    host.volume("hung", "nbd");
    host.does("up");
    let hung = host.pid("hung").unwrap();
    kill_process(hung, Signal::STOP).unwrap();
    let begun = Instant::now();
    let ran = host.run("down --timeout 2");
    kill_process(hung, Signal::CONT).unwrap();
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}: {ran:?}", begun.elapsed());
    assert!(ran.err.contains("hung: its server did not answer in time"), "{ran:?}");
    host.does("down");
}

#[test]
fn one_that_fails_leaves_the_others_alone() {
    let mut host = Host::new();
    host.volume("good", "");
    let bad = host.volume("bad", "");
    fs::write(&bad.passphrase, "wrong").unwrap();
    host.line("typo /srv/typo.img none discards");
    host.line("gone /no/such.img /etc/hostname nofail");
    host.volume("last", "");

    let ran = host.run("up");
    assert_eq!(ran.code, Some(7), "{ran:?}");
    for told in [
        &*format!("underseal: {}, line 3: discards: no such option", text(&host.config())),
        "underseal: bad: ",
        "underseal: gone: ",
        // The failure of a `nofail` volume is printed, and does not count.
        "2 of 5 volumes failed",
    ] {
        assert!(ran.err.contains(told), "{told}: {}", ran.err);
    }
    assert!(!ran.err.contains("wrong"), "{}", ran.err);
    let ps = host.run("ps --json");
    assert_eq!(ps.code, Some(7), "{ps:?}");
    assert_eq!(host.states(), "good:up bad:down gone:down last:up");
    assert_eq!(host.ps()["wrong"][0]["line"], 3);

    // The status of one volume is the one that `open` would have.
    for (words, code) in [("up bad", 3), ("up typo", 2), ("up gone", 1), ("up none", 2), ("up good", 0)] {
        let ran = host.run(words);
        assert_eq!(ran.code, Some(code), "{words}: {ran:?}");
    }
    // A volume that the command line names counts, also with `nofail`.
    assert_eq!(host.run("up gone good").code, Some(7));
    assert_eq!(host.run("down").code, Some(7));
    assert_eq!(host.states(), "good:down bad:down gone:down last:down");
}

#[test]
fn a_server_that_was_killed_is_started_again() {
    let mut host = Host::new();
    host.volume("disk", &format!("nbd={}", text(&host.scratch.path("s"))));
    host.volume("other", "");
    host.does("up");
    let (pid, other) = (host.pid("disk").unwrap(), host.pid("other").unwrap());
    kill_process(pid, Signal::KILL).unwrap();
    wait_until("the server is gone", PATIENCE, || host.pid("disk").is_none());
    assert_eq!(host.states(), "disk:down other:up");
    assert!(host.directory().join("disk.sock").exists(), "it could not put anything in order");
    assert!(host.does("up").starts_with("disk is up: "));
    assert_eq!(host.pid("other").unwrap(), other);
    Client::connect(&host.scratch.path("s")).unwrap().read(0, 4096).unwrap();
    host.does("down");
}

#[test]
fn two_that_start_the_same_volumes_at_once_both_succeed() {
    let mut host = Host::new();
    for name in ["a", "b", "c"] {
        host.volume(name, "");
    }
    let said: String = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(|| host.does("up --jobs 2"))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(said.lines().count(), 3, "each was opened by one of them: {said}");
    assert_eq!(host.states(), "a:up b:up c:up");
    host.does("down");
}

#[test]
fn the_name_of_another_volume_is_not_touched() {
    let mut host = Host::new();
    let volume = host.volume("disk", "");
    host.does("up");
    let pid = host.pid("disk").unwrap();
    // Another list has a line with the same name.
    let other = host.volume("other", "");
    let lines = format!("disk {} {}\n", text(&other.image), text(&volume.passphrase));
    let config = host.scratch.file("elsewhere", lines.as_bytes());
    for (words, code) in [("up", 4), ("down", 4), ("ps", 7)] {
        let mut command = crate::support::volume::underseal();
        command.arg(words).arg("--config").arg(&config).env("UNDERSEAL_RUNTIME_DIR", host.directory());
        let ran = command.output().unwrap();
        let told = String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned();
        assert_eq!(ran.status.code(), Some(code), "{words}: {told}");
        assert!(told.contains("disk.img"), "{words}: {told}");
    }
    assert_eq!(host.pid("disk").unwrap(), pid);
    host.does("down");
}

#[test]
fn the_folder_of_a_stranger_is_not_used() {
    let mut host = Host::new();
    host.volume("disk", "");
    let real = host.scratch.path("real");
    fs::create_dir(&real).unwrap();
    symlink(&real, host.directory()).unwrap();
    for words in ["up", "down"] {
        let ran = host.run(words);
        assert_eq!(ran.code, Some(1), "{words}: {ran:?}");
        assert!(ran.err.contains("underseal: disk: ") && ran.err.contains("cannot be used"), "{ran:?}");
    }
    fs::remove_file(host.directory()).unwrap();
    fs::create_dir(host.directory()).unwrap();
    fs::set_permissions(host.directory(), fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(host.run("up").code, Some(1));
    assert_eq!(fs::read_dir(host.directory()).unwrap().count(), 0);
}

#[test]
fn a_list_that_others_can_change_is_not_read() {
    let mut host = Host::new();
    host.volume("disk", "");
    fs::set_permissions(host.config(), fs::Permissions::from_mode(0o666)).unwrap();
    for words in ["up", "down", "ps"] {
        let ran = host.run(words);
        assert_eq!(ran.code, Some(2), "{words}: {ran:?}");
        assert!(ran.err.contains("others may write to it"), "{ran:?}");
    }
    fs::remove_file(host.config()).unwrap();
    assert_eq!(host.run("up").code, Some(1));
    make_fifo(&host.config());
    let ran = host.run("ps");
    assert!(ran.code == Some(2) && ran.err.contains("not a file"), "{ran:?}");
}

fn make_fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

#[test]
fn who_waits_for_an_opening_is_told_of_it() {
    let mut host = Host::new();
    let volume = host.volume("disk", "");
    let key = host.scratch.path("key");
    make_fifo(&key);
    host.line(format!("slow {} {}", text(&volume.image), text(&key)));
    let mut up = host.command("up slow").stdout(Stdio::piped()).spawn().unwrap();
    let lock = host.directory().join(".slow.lock");
    let id = format!("{}\n", up.id());
    wait_until("it is at it", PATIENCE, || fs::read_to_string(&lock).is_ok_and(|said| said == id));
    let mut down = host.command("down slow").stderr(Stdio::piped()).spawn().unwrap();
    let mut told = String::new();
    BufReader::new(down.stderr.take().unwrap()).read_line(&mut told).unwrap();
    assert_eq!(told, format!("slow: waiting: process {} is opening or closing it\n", up.id()));
    // Now its key comes.
    fs::write(&key, PASSPHRASE).unwrap();
    assert_eq!(up.wait().unwrap().code(), Some(0));
    assert_eq!(down.wait().unwrap().code(), Some(0));
    assert_eq!(host.states(), "disk:down slow:down");
}

/// How many processes open this image.
fn openers(image: &Path) -> usize {
    let processes =
        fs::read_dir("/proc").unwrap().filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok());
    let opens = |line: &Vec<u8>| {
        let mut words = line.split(|byte| *byte == 0);
        words.nth(1) == Some(b"open") && words.next() == Some(text(image).as_bytes())
    };
    processes.filter(opens).count()
}

#[test]
fn an_up_that_is_ended_leaves_nothing_half_open() {
    let mut host = Host::new();
    let volume = host.volume("disk", "noauto");
    let key = host.scratch.path("key");
    make_fifo(&key);
    host.line(format!("slow {} {}", text(&volume.image), text(&key)));
    let mut up = host.command("up").spawn().unwrap();
    // `up` waits for the server of `slow`, which waits for the key, as does its helper.
    wait_until("its server starts", PATIENCE, || openers(&volume.image) == 3);
    kill_process(Pid::from_child(&up), Signal::TERM).unwrap();
    up.wait().unwrap();
    wait_until("they have ended", PATIENCE, || openers(&volume.image) == 0);
    // The next `up` is not hindered.
    host.does("up disk");
    host.does("down");
}

#[test]
fn a_server_that_hangs_hides_no_other() {
    let mut host = Host::new();
    for name in ["a", "b", "c"] {
        host.volume(name, "");
    }
    host.does("up");
    let pid = host.pid("b").unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let (states, up) = (host.states(), host.run("up"));
    kill_process(pid, Signal::CONT).unwrap();
    assert_eq!(states, "a:up b:unknown c:up");
    assert!(up.code == Some(7) && up.err.contains("underseal: b: "), "{up:?}");
    assert_eq!(host.states(), "a:up b:up c:up");
    host.does("down");
}

#[test]
fn a_passphrase_is_asked_for_while_the_others_start() {
    let mut host = Host::new();
    let asked = host.volume("asked", "");
    let line = format!("typed {} none", text(&asked.image));
    host.line(line);
    host.volume("keyed", "");
    let command = format!(
        "UNDERSEAL_RUNTIME_DIR={} {} up typed keyed --config {}",
        text(&host.directory()),
        env!("CARGO_BIN_EXE_underseal"),
        text(&host.config())
    );
    let mut terminal = Terminal::shell(host.scratch.folder(), &command);
    terminal.sees("assphrase");
    wait_until("the other one is open", PATIENCE, || host.pid("keyed").is_some());
    terminal.types(&format!("{PASSPHRASE}\n")).sees("typed is up: ");
    assert_eq!(terminal.ends().0, Some(0));
    assert_eq!(host.states(), "asked:down typed:up keyed:up");
    host.does("down typed keyed");
}
