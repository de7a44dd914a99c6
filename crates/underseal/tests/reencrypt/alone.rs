use std::fs;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use super::*;
use crate::control::operator::Ran;
use crate::support::cutter::Cutter;
use crate::support::mounts::{Mount, cannot_mount, skip};
use crate::support::output;
use crate::support::scratch::{assert_same, put_back};
use crate::support::terminal::Terminal;
use crate::support::tools::{PATIENCE, wait_until};

#[test]
fn a_volume_gets_another_key_cipher_and_sector_size() {
    for options in [
        "",
        "--resilience journal",
        "--resilience none --force --hotzone-size 4M",
        "--cipher serpent-xts-plain64 --key-size 256",
        "--sector-size 512 --keep-key --resilience-hash sha512",
        "--cipher aes-cbc-essiv:sha256 --hotzone-size 1M",
    ] {
        let scratch = Scratch::in_memory();
        let (volume, plain) = filled(&scratch, "a_volume_gets_another_key_cipher_and_sector_size", &[]);
        let before = digests(&volume);
        run(&mut reencrypt(&volume, options));
        assert_same(&volume.read(0, plain.len()), &plain, options);
        assert_eq!(digests(&volume) == before, options.contains("--keep-key"), "{options}");
        let dump = dump(&volume.image);
        assert!(!dump.contains("Requirements") && !dump.contains("reencrypt"), "{options}: {dump}");
        for (option, words) in [
            ("serpent", "serpent-xts-plain64"),
            ("sector-size 512", "sector: 512"),
            ("essiv", "aes-cbc-essiv"),
        ] {
            assert_eq!(options.contains(option), dump.contains(words), "{options}: {dump}");
        }
        run(cryptsetup(&volume, "open --test-passphrase").stdin(Stdio::null()));
    }
}

#[test]
fn ctrl_c_stops_between_two_steps_and_says_how_to_go_on() {
    let scratch = Scratch::new();
    let (volume, plain) = filled(&scratch, "ctrl_c_stops_between_two_steps_and_says_how_to_go_on", &[]);
    let mut command = reencrypt(&volume, "--rate 4M");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("some of it is new", PATIENCE, || parts(&volume) > 1);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("stopped at") && ran.err.contains("--resume-only"), "{ran:?}");
    // Half of it is new, and it opens as before.
    assert_same(&volume.read(0, plain.len()), &plain, "in the middle");
    let again = Ran::from(crate::support::output(&mut reencrypt(&volume, "--init-only")));
    assert_eq!(again.code, Some(2), "{again:?}");
    assert!(again.err.contains("under way already"), "{again:?}");
    run(&mut reencrypt(&volume, "--resume-only --resilience journal"));
    assert_same(&volume.read(0, plain.len()), &plain, "at the end");
    let over = Ran::from(crate::support::output(&mut reencrypt(&volume, "--resume-only")));
    assert_eq!(over.code, Some(2), "{over:?}");
    assert!(over.err.contains("no reencryption is under way"), "{over:?}");
}

#[test]
fn a_kill_anywhere_is_made_good() {
    let scratch = Scratch::in_memory();
    let (volume, plain) = filled(&scratch, "a_kill_anywhere_is_made_good", &[]);
    run(&mut reencrypt(&volume, "--init-only"));
    for turn in 0..12 {
        let mut command = reencrypt(&volume, "--resume-only --hotzone-size 256K");
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(40 + turn * 13));
        child.kill().unwrap();
        child.wait().unwrap();
        if !dump(&volume.image).contains("Requirements") {
            break;
        }
    }
    let last = Ran::from(crate::support::output(&mut reencrypt(&volume, "--resume-only")));
    assert!(last.code == Some(0) || last.err.contains("no reencryption is under way"), "{last:?}");
    assert_same(&volume.read(0, plain.len()), &plain, "after all kills");
}

#[test]
fn a_header_with_a_pinned_digest_is_not_changed_by_an_opening() {
    let scratch = Scratch::in_memory();
    let (volume, plain) = filled_to(&scratch, "a_header_with_a_pinned_digest", 8, &[]);
    let program = reencrypt(&volume, "--force --hotzone-size 1M");
    let before = std::fs::read(&volume.image).unwrap();
    let cutter = Cutter::new();
    let (syncs, mut refused) = (cutter.count(&SYNCS, &program), 0);
    // More than a step.
    for number in syncs / 2..syncs / 2 + 16 {
        put_back(&volume.image, &before);
        cutter.kill_at(number, &SYNCS, &program);
        let digest = info(&volume)["header_digest"].as_str().unwrap().to_owned();
        let pinned = volume.clone().with(["--header-digest", &digest]);
        let opened = Ran::from(output(pinned.command("write").stdin(Stdio::null())));
        let at = format!("cut at sync {number} of {syncs}");
        // A second copy that is out of date may be written again.
        assert_eq!(info(&volume)["header_digest"].as_str().unwrap(), digest, "{at}: {opened:?}");
        if opened.code != Some(0) {
            assert!(opened.err.contains("--header-digest forbids"), "{at}: {opened:?}");
            run(&mut reencrypt(&volume, "--resume-only"));
            assert_same(&volume.read(0, plain.len()), &plain, &at);
            refused += 1;
        }
    }
    assert!(refused > 0, "no cut was in a step");
}

#[test]
fn passphrases_that_are_not_given_are_lost_only_if_that_is_meant() {
    let scratch = Scratch::new();
    let (volume, plain) =
        filled(&scratch, "passphrases_that_are_not_given_are_lost_only_if_that_is_meant", &[]);
    let second = scratch.file("second", b"another one");
    let third = scratch.file("third", b"a third one");
    for file in [&second, &third] {
        let mut add = crate::support::volume::underseal();
        add.args(["keyslot", "add", "-q"])
            .arg(&volume.image)
            .arg("--passphrase-file")
            .arg(&volume.passphrase);
        run(add.arg("--new-passphrase-file").arg(file).args(CHEAP_PBKDF2));
    }
    let header = std::fs::read(&volume.image).unwrap();
    let keep_second = format!("--other-passphrase-file {}", text(&second));
    let refused = Ran::from(crate::support::output(&mut reencrypt(&volume, &keep_second)));
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(
        refused.err.contains("keyslots 2 were not given") && refused.err.contains("--force"),
        "{refused:?}"
    );
    assert!(header == std::fs::read(&volume.image).unwrap(), "nothing was changed");

    run(&mut reencrypt(&volume, &format!("{keep_second} --force")));
    assert_same(&volume.read(0, 4096), &plain[..4096], "the first passphrase");
    for (file, opens) in [(&second, true), (&third, false)] {
        let mut test = tool("cryptsetup");
        test.args(["open", "--test-passphrase", "-q"]).arg(&volume.image).arg("-d").arg(file);
        assert_eq!(crate::support::output(&mut test).status.success(), opens, "{}", file.display());
    }
}

#[test]
fn the_end_of_a_device_is_given_up_only_if_that_is_meant() {
    let scratch = Scratch::new();
    let (volume, plain) = filled(&scratch, "the_end_of_a_device_is_given_up_only_if_that_is_meant", &[]);
    let before = std::fs::read(&volume.image).unwrap();
    for (options, lost) in
        [("--reduce-device-size 8M", "its last 8 MiB"), ("--device-size 8M", "behind its first 8 MiB")]
    {
        let refused = Ran::from(crate::support::output(&mut reencrypt(&volume, options)));
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.err.contains(lost) && refused.err.contains("--force"), "{refused:?}");
        assert!(before == std::fs::read(&volume.image).unwrap(), "nothing was changed");
    }
    run(&mut reencrypt(&volume, "--reduce-device-size 8M --force"));
    assert_same(&volume.read(0, plain.len() - (8 << 20)), &plain[..plain.len() - (8 << 20)], "it has moved");
}

#[test]
fn sectors_that_a_crash_may_tear_are_kept_in_a_journal() {
    let essiv = "--cipher aes-cbc-essiv:sha256 --sector-size";
    for (options, way) in [
        ("".into(), "checksum"),
        (format!("{essiv} 512 --resilience checksum"), "checksum"),
        (format!("{essiv} 4096"), "journal"),
        (format!("{essiv} 4096 --resilience checksum"), "checksum"),
    ] {
        let scratch = Scratch::new();
        let volume = Volume::at(&scratch, "image").format("48M", &[]);
        run(&mut reencrypt(&volume, &format!("--init-only {options}")));
        let dump = dump(&volume.image);
        let resilience = dump.lines().find(|line| line.contains("Resilience"));
        assert!(resilience.is_some_and(|line| line.contains(way)), "{options}: {dump}");
    }
}

#[test]
fn somebody_at_a_terminal_is_asked_for_each_passphrase_and_says_yes_to_losing_one() {
    let scratch = Scratch::new();
    let (volume, _) = filled(&scratch, "somebody_at_a_terminal_is_asked", &[]);
    let second = scratch.file("second", b"another one");
    let mut add = crate::support::volume::underseal();
    add.args(["keyslot", "add", "-q"]).arg(&volume.image).arg("--passphrase-file").arg(&volume.passphrase);
    run(add.arg("--new-passphrase-file").arg(&second).args(CHEAP_PBKDF2));
    let typed = |answer: &str, sure: Option<&str>| {
        let mut terminal = Terminal::run(scratch.folder(), &["reencrypt", "image", "--init-only"]);
        terminal.sees("Passphrase for image: ").types(&format!("{}\n", crate::support::volume::PASSPHRASE));
        terminal.sees("Passphrase of keyslot 1, to keep it").types(&format!("{answer}\n"));
        if let Some(sure) = sure {
            terminal.sees("keyslots 1 were not given").types(&format!("{sure}\n"));
        }
        terminal.ends()
    };
    let (code, shown) = typed("", Some("no"));
    assert_eq!(code, Some(2), "{shown}");
    assert!(!dump(&volume.image).contains("online-reencrypt"));
    let (code, shown) = typed("another one", None);
    assert_eq!(code, Some(0), "{shown}");
    assert!(!shown.contains("another one"), "echoed: {shown}");
    assert!(dump(&volume.image).contains("online-reencrypt"));
}

#[test]
fn a_volume_that_somebody_uses_is_left_alone() {
    let scratch = Scratch::new();
    let (volume, _) = filled(&scratch, "a_volume_that_somebody_uses_is_left_alone", &[]);
    // Under another operator's name, so that it is not found.
    let server = Operator::new().serve(&volume, &[]);
    let refused = Ran::from(crate::support::output(&mut reencrypt(&volume, "")));
    assert_eq!(refused.code, Some(4), "{refused:?}");
    server.stop();
    let plain = Volume::at(&scratch, "plain").format("8M", &["--type", "luks1"]);
    let refused = Ran::from(crate::support::output(&mut reencrypt(&plain, "")));
    assert_eq!(refused.code, Some(6), "{refused:?}");
    assert!(refused.err.contains("header convert"), "{refused:?}");
}

#[test]
fn all_that_will_be_lost_is_said_at_once() {
    let scratch = Scratch::new();
    let (volume, _) = filled(&scratch, "all_that_will_be_lost_is_said_at_once", &[]);
    let more = scratch.file("more", b"another one");
    let mut added = tool("cryptsetup");
    added.args(["luksAddKey", "-q", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "-d"]);
    run(added.arg(&volume.passphrase).arg(&volume.image).arg(&more));
    let before = std::fs::read(&volume.image).unwrap();
    let options = "--resilience none --device-size 16M --init-only";
    let ran = Ran::from(crate::support::output(reencrypt(&volume, options).stdin(Stdio::null())));
    assert_eq!(ran.code, Some(2), "{ran:?}");
    for words in
        ["3 things need consent", "1. ", "keyslots 1", "2. ", "a power cut", "3. ", "behind its first 16 MiB"]
    {
        assert!(ran.err.contains(words), "{words}: {ran:?}");
    }
    assert!(before == std::fs::read(&volume.image).unwrap());
    let ran = Ran::from(crate::support::output(&mut reencrypt(&volume, &format!("{options} --force"))));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let again =
        Ran::from(crate::support::output(&mut reencrypt(&volume, "--resume-only --resilience-hash sha1")));
    assert_eq!(again.code, Some(2), "{again:?}");
}

#[test]
fn an_error_names_the_data_where_the_data_fail_and_not_the_header() {
    if let Some(reason) = cannot_mount() {
        return skip("a full tmpfs", reason);
    }
    let scratch = Scratch::new();
    let disk = Mount::tmpfs(&scratch.path("disk"), 4 << 20);
    let header = scratch.path("header");
    let mut volume = Volume::at(&scratch, "image").with(["--header", text(&header)]);
    volume.image = disk.directory().join("image");
    let volume = volume.format("16M", &["--header", text(&header)]);
    let ran = Ran::from(output(&mut reencrypt(&volume, "")));
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let line = ran.err.lines().find(|line| line.contains("No space left")).unwrap_or_default();
    assert!(line.contains(text(&volume.image)), "{ran:?}");
    assert!(!line.contains(text(&header)), "{ran:?}");
}

/// cryptsetup does such a reencryption once more when it has repaired the last step.
#[test]
fn nothing_goes_backward_that_does_not_move() {
    let scratch = Scratch::new();
    let (volume, plain) = filled(&scratch, "nothing_goes_backward_that_does_not_move", &[]);
    let before = fs::read(&volume.image).unwrap();
    let header = scratch.path("header");
    for what in ["", &format!("--decrypt --header {} ", text(&header))] {
        let refused = Ran::from(output(&mut reencrypt(&volume, &format!("{what}--direction backward"))));
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.err.contains("for data that move") && refused.err.contains("without --direction"));
        assert_same(&fs::read(&volume.image).unwrap(), &before, "refused");
    }
    let image = scratch.file("plain", &plain);
    let apart = Volume::at(&scratch, "plain").with(["--header", text(&header)]);
    let refused = Ran::from(output(&mut reencrypt(&apart, "--encrypt --direction backward")));
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert_same(&fs::read(image).unwrap(), &plain, "refused");
    assert!(!header.exists());
}
