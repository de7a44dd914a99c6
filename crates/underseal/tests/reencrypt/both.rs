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
            crate::beside::wait_for(&operator, "image", "done");
            server.stop();
        } else {
            run(&mut reencrypt(&volume, "--resume-only"));
        }
        assert!(!is_under_way(&volume));
        assert_same(&volume.read(0, plain.len()), &plain, "what was there");
    }
}
