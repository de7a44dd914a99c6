//! A mount under its operator's hands.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::Signal;

use crate::control::mismatches;
use crate::control::operator::Operator;
use crate::fuse::mounted::{Mounted, is_mounted};
use crate::support::mounts::{cannot_fuse, skip};
use crate::support::nbd::Client;
use crate::support::scratch::assert_same;
use crate::support::volume::{Volume, text};
use crate::support::{bytes, output, seed};

const EIO: i32 = 5;
const EILSEQ: i32 = 84;

/// Long enough for a request that is not held back to be answered, on a busy machine too.
const A_WHILE: Duration = Duration::from_millis(700);

/// A volume `image`, mounted in the operator's sight.
fn mount(operator: &Operator, options: &[&str]) -> (Volume, Mounted) {
    let volume = Volume::luks2(&operator.scratch, "32M");
    let mounted = mount_this(operator, &volume, options);
    (volume, mounted)
}

fn mount_this(operator: &Operator, volume: &Volume, options: &[&str]) -> Mounted {
    let mut command = volume.command("open");
    command.env("UNDERSEAL_RUNTIME_DIR", operator.directory());
    let path = operator.scratch.file("disk", b"");
    Mounted::start_at(&operator.scratch, command, &path, options)
}

#[test]
fn a_sector_that_is_not_as_it_was_written_is_an_error_until_it_is_written_again() {
    if let Some(reason) = cannot_fuse() {
        return skip("damaged", reason);
    }
    let operator = Operator::new();
    let data = bytes(seed("damaged"), 4 << 20);
    let (volume, bad) = Volume::damaged(&operator.scratch, &data);
    let at = usize::try_from(bad).unwrap();
    // Through their cache some kernels have one error for all that could not be read.
    for (options, errors) in [(&["--fuse-no-cache"][..], &[EILSEQ][..]), (&[], &[EILSEQ, EIO])] {
        let expected =
            |error: std::io::Error| error.raw_os_error().is_some_and(|number| errors.contains(&number));
        let options = [options, &["--metrics", "127.0.0.1:0"]].concat();
        let mut mounted = mount_this(&operator, &volume, &options);
        let file = File::options().read(true).write(true).open(mounted.path()).unwrap();
        let failed = file.read_exact_at(&mut [0; 4096], bad).unwrap_err();
        assert!(expected(failed), "{options:?}");
        let mut beside = [0; 4096];
        for near in [at - 4096, at + 4096] {
            file.read_exact_at(&mut beside, near as u64).unwrap();
            assert_same(&beside, &data[near..near + 4096], "beside it");
        }
        // A partial write of the bad sector fails: its other bytes are unknown.
        let part = file.write_all_at(b"some", bad + 100).and_then(|()| file.sync_all());
        assert!(expected(part.unwrap_err()), "{options:?}");
        assert!(mounted.log().contains("a read: the sector at byte"), "{}", mounted.log());
        assert!(mismatches::are_told(&operator, "image", &mounted.log(), bad) >= 1);
        drop(file);
        mounted.signal(Signal::TERM);
        assert!(mounted.wait().success(), "{}", mounted.log());
    }
    let mounted = mount_this(&operator, &volume, &[]);
    let file = File::options().read(true).write(true).open(mounted.path()).unwrap();
    file.write_all_at(&data[at..at + 4096], bad).unwrap();
    file.sync_all().unwrap();
    assert!(operator.does("check image").contains("as it was written"));
    drop(file);
    mounted.stop();
    assert_same(&volume.read(0, data.len()), &data, "after it was written again");
}

#[test]
fn what_a_mount_did_is_told() {
    if let Some(reason) = cannot_fuse() {
        return skip("status", reason);
    }
    let operator = Operator::new();
    let (_, mounted) = mount(&operator, &["--policy", "workers", "--fuse-no-cache"]);
    let file = File::options().read(true).write(true).open(mounted.path()).unwrap();
    file.write_all_at(&[7; 8192], 0).unwrap();
    file.read_exact_at(&mut [0; 4096], 4096).unwrap();
    file.sync_all().unwrap();
    let status = operator.status("image");
    assert_eq!(status["addresses"], serde_json::json!([text(mounted.path())]));
    let requests = &status["requests"];
    assert_eq!((&requests["write"]["requests"], &requests["write"]["bytes"]), (&1.into(), &8192.into()));
    assert_eq!((&requests["read"]["requests"], &requests["read"]["bytes"]), (&1.into(), &4096.into()));
    assert_eq!(requests["flush"]["requests"], 1);
    assert!(status["latency"]["reply"]["count"].as_u64().unwrap() >= 3, "{status}");
    drop(file);
    mounted.stop();
}

#[test]
fn close_unmounts_and_waits_for_the_end() {
    if let Some(reason) = cannot_fuse() {
        return skip("close", reason);
    }
    let operator = Operator::new();
    let (volume, mut mounted) = mount(&operator, &[]);
    std::fs::write(mounted.path(), b"not lost").unwrap();
    operator.does("close image");
    assert!(!mounted.is_mounted());
    // The image is free, and has the acknowledged write.
    assert_eq!(volume.read(0, 8), b"not lost");
    mounted.end_well();
    operator.is_refused("close image", 2, "no volume image is open");
}

#[test]
fn close_ends_the_mount_and_nbd() {
    if let Some(reason) = cannot_fuse() {
        return skip("close both", reason);
    }
    let operator = Operator::new();
    let socket = operator.scratch.path("s");
    let (volume, mut mounted) = mount(&operator, &["--nbd", &format!("unix:{}", text(&socket))]);
    let addresses = operator.status("image")["addresses"].clone();
    assert_eq!(addresses.as_array().map(Vec::len), Some(2), "{addresses}");
    let mut client = Client::connect(&socket).unwrap();
    client.write(0, &[9; 4096]).unwrap();
    File::options().write(true).open(mounted.path()).unwrap().write_all_at(&[8; 4096], 4096).unwrap();
    operator.does("close image");
    assert_eq!(volume.read(0, 8192), [[9; 4096], [8; 4096]].concat());
    mounted.end_well();
    assert!(!socket.exists());
}

#[test]
fn closing_a_suspended_mount_finishes_what_was_written() {
    if let Some(reason) = cannot_fuse() {
        return skip("close suspended", reason);
    }
    let operator = Operator::new();
    let (volume, mut mounted) = mount(&operator, &[]);
    let file = File::options().write(true).open(mounted.path()).unwrap();
    file.write_all_at(&[1; 4096], 0).unwrap();
    operator.does("suspend image");
    let (sender, written) = mpsc::channel();
    let writer = std::thread::spawn(move || {
        let done = file.write_all_at(&[3; 4096], 4096);
        drop(file);
        sender.send(done.map_err(|e| e.to_string())).unwrap();
    });
    assert!(written.recv_timeout(A_WHILE).is_err(), "a suspended volume was written to");
    operator.does("close image");
    assert_eq!(written.recv().unwrap(), Ok(()));
    writer.join().unwrap();
    mounted.end_well();
    assert_eq!(volume.read(0, 8192), [[1; 4096], [3; 4096]].concat());
}

#[test]
fn a_name_that_is_taken_leaves_no_mount() {
    if let Some(reason) = cannot_fuse() {
        return skip("taken name", reason);
    }
    let operator = Operator::new();
    let (volume, mounted) = mount(&operator, &["--read-only", "--name", "work"]);
    let other = operator.scratch.file("other", b"");
    let mut command = volume.command("open");
    command.env("UNDERSEAL_RUNTIME_DIR", operator.directory());
    let ran = output(command.args(["--read-only", "--name", "work", "--fuse", text(&other)]));
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    assert!(!is_mounted(&other), "{ran:?}");
    mounted.stop();
}
