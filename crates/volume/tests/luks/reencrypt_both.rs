//! Reencryptions that change between underseal and cryptsetup: started by one program, interrupted,
//! and finished by the other.

use std::fs::File;
use std::path::Path;

use underseal_volume::luks2::{self, BeginOptions, Ledger, NewKey, Passphrase, ResumeOptions, Stage};
use underseal_volume::reencrypt::{Direction, Outcome, Protection};
use underseal_volume::{Hash, UnlockOptions};

use crate::reencrypt::Disk;
use crate::reencrypt_ours::*;
use crate::support::*;

/// Returns cryptsetup's arguments for a disk.
fn theirs<'a>(secret: &'a str, disk: &'a Disk, action: &[&'a str]) -> Vec<&'a str> {
    let (header, data) = (disk.header.to_str().unwrap(), disk.data.to_str().unwrap());
    let apart: &[&str] = if disk.header == disk.data { &[] } else { &["--header", header] };
    [action, &["--key-file", secret], apart, &[data]].concat()
}

fn repair(secret: &Path, disk: &Disk) {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let mut child = Command::new("cryptsetup")
        .args(theirs(secret.to_str().unwrap(), disk, &["repair"]))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // Without a repair cryptsetup asks no question, and may have ended by now.
    let _ = child.stdin.take().unwrap().write_all(b"YES\n");
    assert!(child.wait().unwrap().success(), "cryptsetup repair");
}

const OFFLINE: &str = "--force-offline-reencrypt";

fn let_them_finish(secret: &Path, disk: &Disk) {
    if disk.read().unwrap().reencryption().unwrap().is_some_and(|status| status.stage == Stage::Hot) {
        repair(secret, disk);
    }
    if disk.read().unwrap().reencryption().unwrap().is_some() {
        cryptsetup(&theirs(secret.to_str().unwrap(), disk, &["reencrypt", "--resume-only", OFFLINE]));
    }
    assert_eq!(disk.read().unwrap().reencryption().unwrap(), None);
}

/// Checks the plaintext, with the passphrase if the data is encrypted.
fn holds(disk: &Disk, what: &str) {
    let plain = pattern(SIZE);
    let found = if disk.read().unwrap().info().keyslots.is_empty() {
        std::fs::read(&disk.data).unwrap()[..plain.len()].to_vec()
    } else {
        let key = disk.unlock(PASSPHRASE.as_bytes()).unwrap_or_else(|e| panic!("{what}: {e}"));
        let volume = disk.activate(&key).unwrap_or_else(|e| panic!("{what}: {e}"));
        plaintext(&volume, &disk.data, plain.len())
    };
    let wrong = found.iter().zip(&plain).position(|(one, other)| one != other);
    assert_eq!((wrong, found.len()), (None, plain.len()), "{what}");
}

#[test]
fn ours_that_is_stopped_between_steps_is_finished_by_cryptsetup() {
    let mut by_them = 0;
    for kind in 0.. {
        let scratch = Scratch::new();
        let Some((disk, key, what)) = begun(&scratch, kind) else { break };
        holds(&disk, &format!("{what}, begun"));
        let outcome = disk.go_on(&key, kind as u64 % 4).unwrap_or_else(|e| panic!("{what}: {e}"));
        holds(&disk, &format!("{what}, stopped"));
        if outcome == Outcome::Stopped {
            by_them += 1;
            let_them_finish(&scratch.passphrase(), &disk);
            holds(&disk, &format!("{what}, finished by cryptsetup"));
        }
    }
    assert!(by_them > 7, "{by_them}");
}

#[test]
fn ours_that_is_killed_anywhere_is_finished_by_cryptsetup_and_by_us() {
    // Cases that cryptsetup's own recovery and resumption can handle.
    let mut hot = 0;
    for (kind, writes) in [
        (0, [3, 5, 11, 22]),
        (2, [8, 10, 12, 20]),
        (3, [5, 9, 10, 15]),
        (5, [6, 7, 10, 13]),
        (8, [3, 5, 6, 9]),
    ] {
        let scratch = Scratch::new();
        let (disk, key, what) = begun(&scratch, kind).unwrap();
        let start = disk.bytes();
        for (writes, by_them) in writes.into_iter().zip([true, false].into_iter().cycle()) {
            let what = format!("{what}, killed at write {writes}");
            std::fs::write(&disk.header, &start[1]).unwrap();
            std::fs::write(&disk.data, &start[0]).unwrap();
            if die(&disk, &key, writes) {
                continue;
            }
            let stage = disk.read().unwrap().reencryption().unwrap().map(|status| status.stage);
            hot += u32::from(stage == Some(Stage::Hot));
            // cryptsetup starts from the beginning there.
            if by_them && stage != Some(Stage::Final) {
                let_them_finish(&scratch.passphrase(), &disk);
            } else if stage.is_some() {
                disk.go_on(&key, u64::MAX).unwrap_or_else(|e| panic!("{what}: {e}"));
            }
            holds(&disk, &what);
        }
    }
    assert!(hot > 8, "{hot}");
}

#[test]
fn a_write_that_fails_once_stops_it_and_nothing_is_lost() {
    let scratch = Scratch::new();
    let (disk, key, _) = begun(&scratch, 1).unwrap();
    let start = disk.bytes()[0].clone();
    let mut clean = 0;
    for writes in (1..24).step_by(2) {
        std::fs::write(&disk.data, &start).unwrap();
        assert!(!fail(&disk, &key, writes, true), "write {writes}");
        if disk.read().unwrap().reencryption().unwrap().is_none_or(|status| status.stage != Stage::Hot) {
            clean += 1;
            holds(&disk, &format!("write {writes} failed"));
        }
        disk.go_on(&key, u64::MAX).unwrap_or_else(|e| panic!("write {writes}: {e}"));
        holds(&disk, &format!("write {writes} failed, finished"));
    }
    // Most steps are undone at once.
    assert!(clean > 7, "{clean}");
}

#[test]
fn theirs_that_has_only_begun_is_finished_here() {
    let cheap = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", OFFLINE, "--init-only"];
    let encrypt = [
        "--encrypt",
        "--type",
        "luks2",
        "-s",
        "256",
        "-c",
        "aes-xts-plain64",
        "--luks2-keyslots-size",
        "144k",
    ];
    type Args = &'static [&'static str];
    let kinds: [(Args, bool); 10] = [
        (&["--resilience", "checksum"], false),
        (&["--resilience", "journal", "--sector-size", "4096"], false),
        (&["--resilience", "none"], false),
        (
            &[
                "--resilience",
                "checksum",
                "--resilience-hash",
                "sha512",
                "-c",
                "aes-cbc-essiv:sha256",
                "-s",
                "256",
            ],
            false,
        ),
        (&["--resilience", "checksum"], true),
        (&["--decrypt", "--resilience", "journal"], true),
        (&["--decrypt", "--hotzone-size", "64k"], false),
        (&["--encrypt"], true),
        (&["--encrypt", "--reduce-device-size", "200k"], true),
        (&["--encrypt", "--reduce-device-size", "360k"], false),
    ];
    for (args, apart) in kinds {
        let scratch = Scratch::new();
        let secret = scratch.passphrase();
        let secret = secret.to_str().unwrap();
        let disk = match args {
            ["--encrypt", ..] => {
                let room = if apart { 0 } else { 360 << 10 };
                let data = scratch.file("plain", &[pattern(SIZE), vec![0; room]].concat());
                Disk { header: if apart { scratch.path("header") } else { data.clone() }, data }
            }
            _ => volume(&scratch, apart).0,
        };
        let disk = if args[0] == "--decrypt" && !apart {
            Disk { header: scratch.path("exported"), ..disk }
        } else {
            disk
        };
        let more: &[&str] = if args[0] == "--encrypt" { &encrypt[1..] } else { &[] };
        cryptsetup(&theirs(secret, &disk, &[&["reencrypt"], args, &cheap, more].concat()));
        let key = disk.unlock(PASSPHRASE.as_bytes()).unwrap();
        holds(&disk, &format!("{args:?}"));
        assert_eq!(disk.go_on(&key, 2).unwrap(), Outcome::Stopped, "{args:?}");
        holds(&disk, &format!("{args:?}, two steps later"));
        assert_eq!(disk.go_on(&key, u64::MAX).unwrap(), Outcome::Finished, "{args:?}");
        holds(&disk, &format!("{args:?}, finished"));
        cryptsetup(&["luksDump", disk.header.to_str().unwrap()]);
    }
}

#[test]
fn theirs_that_is_killed_is_recovered_and_finished_here() {
    let secret_of = |scratch: &Scratch| scratch.passphrase();
    for (round, resilience) in ["checksum", "journal", "checksum", "journal"].into_iter().enumerate() {
        let scratch = Scratch::new();
        let secret = secret_of(&scratch);
        let (disk, _) = volume(&scratch, false);
        let args = ["reencrypt", "--resilience", resilience, "--hotzone-size", "4k", OFFLINE, "-q"];
        let args = [&args[..], &["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"]].concat();
        let mut child = std::process::Command::new("cryptsetup")
            .args(theirs(secret.to_str().unwrap(), &disk, &args))
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // At any place of the start.
        let begun =
            || disk.read().is_ok_and(|header| header.reencryption().is_ok_and(|status| status.is_some()));
        let start = std::time::Instant::now();
        while !begun() && child.try_wait().unwrap().is_none() && start.elapsed() < underseal_testing::PATIENCE
        {
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_millis(40 * round as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        let key = disk.unlock(PASSPHRASE.as_bytes()).unwrap();
        if disk.read().unwrap().reencryption().unwrap().is_some() {
            // The interrupted step may be the last step.
            let outcome = disk.go_on(&key, 0).unwrap();
            holds(&disk, "recovered");
            if outcome != Outcome::Finished {
                disk.go_on(&key, u64::MAX).unwrap();
            }
        }
        holds(&disk, "finished");
    }
}

#[test]
fn what_protects_the_steps_may_change_on_the_way() {
    let scratch = Scratch::new();
    let (disk, key, _) = begun(&scratch, 0).unwrap();
    assert_eq!(disk.go_on(&key, 2).unwrap(), Outcome::Stopped);
    for protection in
        [Protection::Journal, Protection::None, Protection::Checksum { hash: Hash::Sha512, block: 512 }]
    {
        let file = open(&disk.header);
        let mut ledger = Ledger::resume(&file, &key, size(&disk.data), &ResumeOptions::default()).unwrap();
        ledger.protect_with(protection, &key).unwrap();
        drop(ledger);
        holds(&disk, "changed");
        assert_eq!(disk.go_on(&key, 1).unwrap(), Outcome::Stopped);
        holds(&disk, "a step later");
    }
    let_them_finish(&scratch.passphrase(), &disk);
    holds(&disk, "finished by cryptsetup");
}

#[test]
fn a_second_passphrase_goes_on_opening_the_volume_and_one_that_is_not_given_is_lost() {
    let scratch = Scratch::new();
    let (disk, old) = volume(&scratch, false);
    let mut header = disk.read().unwrap();
    let file = open(&disk.header);
    let new = |header: &luks2::Header| header.like_keyslot(0).unwrap();
    for text in ["second", "third"] {
        header.add_keyslot(&file, &old, &key(text.as_bytes()), &new(&header)).unwrap();
    }
    assert_eq!(header.lost_keyslots(&[0, 1]), [2]);
    let (first, second) = (key(PASSPHRASE.as_bytes()), key(b"second"));
    let passphrases = [(0, &first), (1, &second)].map(|(slot, passphrase)| Passphrase {
        slot,
        passphrase,
        new: new(&header),
    });
    let options = BeginOptions {
        cipher: None,
        sector_size: None,
        key: NewKey::Random(None),
        direction: Direction::Forward,
        protection: Protection::Journal,
        shift: None,
        size: None,
        detached: false,
        allow_null: false,
        is_open: false,
    };
    // The new areas leave little room for the journal, so there are not more.
    let both = header.begin_reencryption(&file, old, &passphrases, size(&disk.data), &options);
    assert_eq!(both.unwrap_err().kind(), underseal_volume::ErrorKind::NoRoom);
    header.remove_keyslot(&file, 2, false).unwrap();
    let old = header.unlock(&file, &first, &UnlockOptions::default()).unwrap().key;
    let both = header.begin_reencryption(&file, old, &passphrases[..1], size(&disk.data), &options).unwrap();
    assert_eq!(disk.go_on(&both, u64::MAX).unwrap(), Outcome::Finished);
    holds(&disk, "finished");
    assert!(disk.unlock(b"second").is_err());
}

#[test]
fn only_the_first_part_of_a_volume_may_be_reencrypted() {
    let scratch = Scratch::new();
    let (disk, key) = volume(&scratch, false);
    let before = std::fs::read(&disk.data).unwrap();
    let key = begin(&disk, key, |options| options.size = Some(128 * KIB));
    assert_eq!(disk.activate(&key).unwrap().size(), 128 * KIB);
    assert_eq!(disk.go_on(&key, 1).unwrap(), Outcome::Stopped);
    assert_eq!(disk.activate(&key).unwrap().size(), 128 * KIB);
    assert_eq!(disk.go_on(&key, u64::MAX).unwrap(), Outcome::Finished);
    let after = std::fs::read(&disk.data).unwrap();
    let rest = usize::try_from(OFFSET + 128 * KIB).unwrap();
    assert!(before[rest..] == after[rest..], "the rest stays as it is");
    let volume = disk.activate(&disk.unlock(PASSPHRASE.as_bytes()).unwrap()).unwrap();
    assert_eq!(volume.size(), 128 * KIB, "what still has the old key is not the volume's");
    assert!(plaintext(&volume, &disk.data, 128 << 10) == pattern(128 * KIB));
}

#[test]
fn cryptsetup_finishes_a_part_that_was_begun_here() {
    let scratch = Scratch::new();
    let (disk, key) = volume(&scratch, false);
    let key = begin(&disk, key, |options| options.size = Some(128 * KIB));
    assert_eq!(disk.go_on(&key, 1).unwrap(), Outcome::Stopped);
    let_them_finish(&scratch.passphrase(), &disk);
    let volume = disk.activate(&disk.unlock(PASSPHRASE.as_bytes()).unwrap()).unwrap();
    assert!(plaintext(&volume, &disk.data, 128 << 10) == pattern(128 * KIB));
}

#[test]
fn data_that_moves_to_a_larger_header_is_all_there() {
    let scratch = Scratch::new();
    let (disk, key) = volume(&scratch, false);
    File::options().write(true).open(&disk.data).unwrap().set_len(OFFSET + SIZE + 64 * KIB).unwrap();
    let key = begin(&disk, key, |options| {
        (options.shift, options.direction) = (Some(64 * KIB), Direction::Backward);
        options.protection = Protection::None;
    });
    holds(&disk, "begun");
    assert!(!die(&disk, &key, 12));
    disk.go_on(&key, 0).unwrap();
    holds(&disk, "recovered");
    let_them_finish(&scratch.passphrase(), &disk);
    holds(&disk, "finished by cryptsetup");
    assert_eq!(disk.read().unwrap().data_offset(), OFFSET + 64 * KIB);
}
