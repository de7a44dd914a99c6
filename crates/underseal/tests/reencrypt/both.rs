use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::*;
use crate::support::scratch::assert_same;

/// Lets a program run for a while, and ends it.
fn interrupt(mut command: std::process::Command, after: Duration, signal: Signal) {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(after);
    // It may have ended.
    let _ = kill_process(Pid::from_child(&child), signal);
    child.wait().unwrap();
}

fn is_under_way(volume: &Volume) -> bool {
    dump(&volume.image).contains("online-reencrypt")
}

#[test]
fn what_is_stopped_or_killed_here_goes_on_in_cryptsetup() {
    for (turn, signal) in [Signal::INT, Signal::KILL, Signal::TERM, Signal::KILL].into_iter().enumerate() {
        let scratch = Scratch::new();
        let (volume, plain) = filled(&scratch, "what_is_stopped_or_killed_here_goes_on_in_cryptsetup", &[]);
        let options = ["--resilience checksum", "--resilience journal --direction backward"][turn % 2];
        run(&mut reencrypt(&volume, &format!("{options} --init-only")));
        interrupt(reencrypt(&volume, "--resume-only --rate 16M"), Duration::from_millis(700), signal);
        assert!(is_under_way(&volume), "it ended too soon to be a test");
        run(cryptsetup(&volume, "repair").stdin(Stdio::null()));
        run(cryptsetup(&volume, "reencrypt --resume-only --force-offline-reencrypt").stdin(Stdio::null()));
        assert!(!is_under_way(&volume));
        assert_same(&volume.read(0, plain.len()), &plain, options);
    }
}

#[test]
fn what_was_killed_with_cryptsetup_goes_on_here_alone_or_beside_users() {
    for beside in [false, true] {
        let operator = Operator::new();
        let (volume, plain) = filled(&operator.scratch, "what_cryptsetup_stopped_goes_on_here", &[]);
        let pbkdf = CHEAP_PBKDF2.join(" ");
        run(cryptsetup(&volume, &format!("reencrypt --init-only {pbkdf}")).stdin(Stdio::null()));
        interrupt(
            cryptsetup(&volume, "reencrypt --resume-only --force-offline-reencrypt --hotzone-size 4K"),
            Duration::from_millis(250),
            Signal::KILL,
        );
        assert!(is_under_way(&volume), "it ended too soon to be a test");
        if beside {
            let server = operator.serve(&volume, &["--reencrypt=full"]);
            crate::reencrypt::beside::wait_for(&operator, "image", "done");
            server.stop();
        } else {
            run(&mut reencrypt(&volume, "--resume-only"));
        }
        assert!(!is_under_way(&volume));
        assert_same(&volume.read(0, plain.len()), &plain, "what was there");
    }
}

/// `reencrypt` of the volume under strace, which counts its syncs, or kills it at one of them.
fn traced(volume: &Volume, options: &str, kill: Option<u32>) -> std::process::Output {
    let mut command = tool("strace");
    command.args(["-f", "-c", "-U", "name,calls", "-e", "trace=fsync,fdatasync"]);
    if let Some(number) = kill {
        command = tool("strace");
        command.args(["-f", "-o", "/dev/null", "-e", "trace=fsync,fdatasync", "-e"]);
        command.arg(format!("inject=fsync,fdatasync:signal=KILL:when={number}"));
    }
    let reencrypt = reencrypt(volume, options);
    crate::support::output(command.arg(reencrypt.get_program()).args(reencrypt.get_args()))
}

#[test]
fn what_is_cut_off_at_the_very_end_goes_on_in_each_program_and_in_open() {
    let scratch = Scratch::new();
    let (volume, plain) = filled(&scratch, "what_is_cut_off_at_the_very_end_goes_on", &[]);
    let before = std::fs::read(&volume.image).unwrap();
    for options in ["--hotzone-size 8M", "--hotzone-size 8M --resilience journal"] {
        std::fs::write(&volume.image, &before).unwrap();
        let counted = traced(&volume, options, None);
        assert!(counted.status.success(), "{counted:?}");
        let text = String::from_utf8_lossy(&counted.stderr).into_owned();
        let calls = |name: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(name));
            let words = line.and_then(|line| line.split_whitespace().nth(1));
            words.map_or(0, |words| words.parse::<u32>().unwrap())
        };
        // strace counts each call of its own, so each number is tried; one that is not met ends by itself.
        let syncs = calls("fsync") + calls("fdatasync");
        assert!(syncs > 12, "{text}");
        let mut cut = 0;
        for number in syncs - 9..=syncs {
            std::fs::write(&volume.image, &before).unwrap();
            cut += u32::from(!traced(&volume, options, Some(number)).status.success());
            let state = std::fs::read(&volume.image).unwrap();
            let at = |who: &str| format!("{options}: cut at sync {number}, {who}");
            // cryptsetup wants a step that was cut to be repaired first. It refuses where all is over.
            crate::support::output(&mut cryptsetup(&volume, "repair"));
            crate::support::output(&mut cryptsetup(
                &volume,
                "reencrypt --resume-only --force-offline-reencrypt",
            ));
            assert_same(&volume.read(0, plain.len()), &plain, &at("cryptsetup"));
            assert!(!dump(&volume.image).contains("online-reencrypt"), "{}", at("cryptsetup"));
            std::fs::write(&volume.image, &state).unwrap();
            crate::support::output(&mut reencrypt(&volume, "--resume-only"));
            assert_same(&volume.read(0, plain.len()), &plain, &at("underseal"));
            assert!(!dump(&volume.image).contains("online-reencrypt"), "{}", at("underseal"));
        }
        assert!(cut > 5, "{options}: {cut}");
    }
}
