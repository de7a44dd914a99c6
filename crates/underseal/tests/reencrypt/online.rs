use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use super::*;
use crate::control::operator::Ran;
use crate::support::cutter::Cutter;
use crate::support::nbd::Client;
use crate::support::scratch::assert_same;
use crate::support::tools::{PATIENCE, wait_until};

/// Waits until the reencryption of an open volume is so.
#[track_caller]
pub(crate) fn wait_for(operator: &Operator, name: &str, state: &str) {
    wait_until("the reencryption is so", PATIENCE, || {
        operator.status(name)["reencryption"]["state"] == state
    });
}

/// Waits until some of it is new.
#[track_caller]
pub(super) fn wait_for_progress(operator: &Operator, name: &str) {
    wait_until("some of it is new", PATIENCE, || {
        operator.status(name)["reencryption"]["done"].as_u64().is_some_and(|done| done > 0)
    });
}

pub(super) fn words(volume: &Volume, options: &str) -> String {
    format!("reencrypt image --passphrase-file {} {options}", text(&volume.passphrase)).trim().into()
}

/// Writes blocks of a range until it is stopped, or the server is gone. Returns the acknowledged
/// writes, and the offset of a write with an unknown result.
fn write_on(
    start: u64,
    blocks: u64,
    stop: &AtomicBool,
    mut write: impl FnMut(u64, &[u8]) -> bool,
) -> (Vec<(u64, u8)>, Option<u64>) {
    const BLOCK: u64 = 4096;
    let mut sure = vec![None; usize::try_from(blocks).unwrap()];
    let (mut dice, mut unsure) = (fastrand::Rng::new(), None);
    while !stop.load(SeqCst) {
        let block = dice.u64(0..blocks);
        let fill = dice.u8(1..);
        let offset = start + block * BLOCK;
        let slot = &mut sure[usize::try_from(block).unwrap()];
        if !write(offset, &[fill; 4096]) {
            // The block may have the new contents or not.
            (*slot, unsure) = (None, Some(offset));
            break;
        }
        *slot = Some(fill);
    }
    let acknowledged = sure.iter().enumerate().filter_map(|(block, fill)| Some((block, (*fill)?)));
    (acknowledged.map(|(block, fill)| (start + block as u64 * BLOCK, fill)).collect(), unsure)
}

fn over_nbd(socket: PathBuf) -> impl FnMut(u64, &[u8]) -> bool {
    let mut client = Client::connect(&socket).unwrap();
    move |offset, data| {
        let sent = client.send_write(1, offset, data).is_ok();
        sent && client.reply().is_ok_and(|(_, error)| error == 0)
    }
}

fn over_fuse(path: &Path) -> impl FnMut(u64, &[u8]) -> bool {
    let file = File::options().read(true).write(true).open(path).unwrap();
    move |offset, data| file.write_all_at(data, offset).is_ok()
}

fn assert_there(volume: &Volume, written: &[(u64, u8)], what: &str) {
    let all = volume.read_all();
    for (offset, fill) in written {
        let at = usize::try_from(*offset).unwrap();
        assert!(all[at..at + 4096].iter().all(|byte| byte == fill), "{what}: byte {offset}");
    }
}

#[test]
fn what_is_written_through_two_doors_meanwhile_is_there_afterwards() {
    let operator = Operator::new();
    let (volume, plain) = filled(&operator.scratch, "what_is_written_through_two_doors_meanwhile", &[]);
    let before = digests(&volume);
    let disk = operator.scratch.file("disk", b"");
    let server = operator.serve(&volume, &["--fuse", text(&disk)]);
    let stop = AtomicBool::new(false);
    let written = thread::scope(|scope| {
        // The first 8 MiB are read at the end, the rest is written to.
        let nbd = scope.spawn(|| write_on(8 << 20, 3 << 10, &stop, over_nbd(server.socket())));
        let fuse = scope.spawn(|| write_on(20 << 20, 3 << 10, &stop, over_fuse(&disk)));
        for turn in 0..2 {
            let told = operator.does(&words(&volume, &format!("--rate {}", ["full", "give-way"][turn])));
            assert!(told.contains("image: done"), "{told}");
        }
        stop.store(true, SeqCst);
        [nbd.join().unwrap().0, fuse.join().unwrap().0].concat()
    });
    assert!(written.len() > 100, "{}", written.len());
    assert!(operator.does("status image").contains("(100%), done"));
    server.stop();
    assert_same(&volume.read(0, 8 << 20), &plain[..8 << 20], "what nobody wrote to");
    assert_there(&volume, &written, "what was written meanwhile");
    assert_ne!(digests(&volume), before);
    run(&mut cryptsetup(&volume, "open --test-passphrase"));
}

#[test]
fn it_is_paused_slowed_down_stopped_and_started_again() {
    let operator = Operator::new();
    let (volume, plain) =
        filled(&operator.scratch, "it_is_paused_slowed_down_stopped_and_started_again", &[]);
    let server = operator.serve(&volume, &[]);
    operator.is_refused("reencrypt image --pause", 2, "not being reencrypted");
    operator.does(&words(&volume, "--rate 4M --no-wait"));
    wait_for_progress(&operator, "image");
    operator.is_refused(&words(&volume, ""), 2, "being reencrypted already");
    operator.does("reencrypt image --pause");
    wait_for(&operator, "image", "paused");
    assert!(operator.does("list").contains("reencrypts"));
    let status = operator.does("status image");
    assert!(status.contains("paused, at most 4 MiB/s"), "{status}");
    operator.does("reencrypt image --resume --rate 2M");
    wait_for(&operator, "image", "running");
    assert_eq!(operator.status("image")["reencryption"]["rate"]["limit"], 2 << 20);
    operator.does("reencrypt image --stop");
    wait_for(&operator, "image", "stopped");
    operator.is_refused("reencrypt image --resume", 2, "not being reencrypted");
    // A wiped key could not be given back: the volume has two keys.
    operator.is_refused("suspend image --wipe", 6, "encrypted segments");
    operator.does(&words(&volume, "--resume-only --rate full"));
    operator.does("suspend image --wipe");
    operator.does(&format!("resume image --passphrase-file {}", text(&volume.passphrase)));
    assert_same(
        &Client::connect(&server.socket()).unwrap().read(0, 1 << 20).unwrap(),
        &plain[..1 << 20],
        "served",
    );
    server.stop();
    assert_same(&volume.read(0, plain.len()), &plain, "at the end");
}

#[test]
fn a_server_that_is_killed_again_and_again_loses_nothing() {
    let operator = Operator::new();
    let (volume, plain) = filled(&operator.scratch, "a_server_that_is_killed_again_and_again", &[]);
    run(&mut reencrypt(&volume, "--init-only"));
    let mut all = std::collections::BTreeMap::new();
    for turn in 0..8 {
        let server = operator.serve(&volume, &["--reencrypt=8M"]);
        let stop = AtomicBool::new(false);
        let socket = server.socket();
        let (written, unsure) = thread::scope(|scope| {
            let writing = scope.spawn(|| write_on(16 << 20, 3 << 10, &stop, over_nbd(socket)));
            thread::sleep(std::time::Duration::from_millis(50 + turn * 30));
            server.kill();
            writing.join().unwrap()
        });
        all.extend(written);
        unsure.map(|offset| all.remove(&offset));
    }
    let server = operator.serve(&volume, &["--reencrypt=full"]);
    wait_for(&operator, "image", "done");
    server.stop();
    assert_same(&volume.read(0, 16 << 20), &plain[..16 << 20], "what nobody wrote to");
    assert_there(&volume, &all.into_iter().collect::<Vec<_>>(), "what was acknowledged");
}

#[test]
fn a_volume_in_the_middle_is_served_as_it_stands_and_goes_on_when_asked() {
    let operator = Operator::new();
    let (volume, plain) = filled(&operator.scratch, "a_volume_in_the_middle_is_served_as_it_stands", &[]);
    let server = operator.serve(&volume, &[]);
    operator.does(&words(&volume, "--rate 8M --no-wait"));
    wait_for_progress(&operator, "image");
    // Closing ends it between two steps.
    operator.does("close image");
    drop(server);
    assert!(dump(&volume.image).contains("online-reencrypt"));

    let server = operator.serve(&volume, &[]);
    assert!(operator.does("status image").contains("stopped"));
    let mut client = Client::connect(&server.socket()).unwrap();
    assert_same(&client.read(0, 16 << 20).unwrap(), &plain[..16 << 20], "as it stands");
    client.write(0, &[7; 4096]).unwrap();
    drop(client);
    server.stop();
    let server = operator.serve(&volume, &["--reencrypt"]);
    wait_for(&operator, "image", "done");
    server.stop();
    assert_eq!(volume.read(0, 4096), [7; 4096]);
    assert_same(&volume.read(4096, 16 << 20), &plain[4096..4096 + (16 << 20)], "at the end");
    // A service that resumes one starts after its end, too.
    operator.serve(&volume, &["--reencrypt"]).stop();
}

#[test]
fn what_an_open_volume_cannot_have_is_refused_before_anything_is_written() {
    let operator = Operator::new();
    let (volume, _) = filled(&operator.scratch, "what_an_open_volume_cannot_have", &["--sector-size", "512"]);
    let header = || std::fs::read(&volume.image).unwrap()[..16 << 20].to_vec();
    let before = header();
    let server = operator.serve(&volume, &[]);
    operator.is_refused(&words(&volume, "--sector-size 4096"), 2, "told of smaller sectors");
    operator.is_refused(&words(&volume, "--device-size 1M"), 2, "know its size");
    operator.is_refused(&words(&volume, "--resume-only"), 2, "no reencryption is under way");
    operator.is_refused("reencrypt image --stop", 2, "not being reencrypted");
    operator.is_refused("reencrypt nobody --stop", 2, "is not open");
    let wrong = operator.scratch.file("wrong", b"open sesame");
    operator.is_refused(
        &format!("reencrypt image --passphrase-file {}", text(&wrong)),
        3,
        "no keyslot opens",
    );
    operator.does("suspend image");
    operator.is_refused(&words(&volume, ""), 2, "is suspended");
    operator.does("resume image");
    server.stop();
    let server = operator.serve(&volume, &["--read-only"]);
    operator.is_refused(&words(&volume, ""), 6, "for reading only");
    server.stop();
    assert!(header() == before);
    // Once it has begun it is opened for what it is going to have.
    run(&mut reencrypt(&volume, "--sector-size 4096 --force-offline-reencrypt --init-only"));
    let server = operator.serve(&volume, &["--reencrypt=full"]);
    assert_eq!(operator.status("image")["block"], 4096);
    wait_for(&operator, "image", "done");
    server.stop();
    assert!(dump(&volume.image).contains("sector: 4096"));
}

#[test]
fn a_header_that_does_not_fit_the_open_volume_is_refused_before_anything_is_written() {
    let operator = Operator::new();
    let (volume, _) = filled(&operator.scratch, "a_header_that_does_not_fit_the_open_volume", &[]);
    let header = || std::fs::read(&volume.image).unwrap()[..16 << 20].to_vec();
    let before = header();
    let other = operator.scratch.file("other", &before);
    let server = operator.serve(&volume, &[]);
    let words = |options: &str| words(&volume, options);
    operator.is_refused(&words(&format!("--header {}", text(&other))), 2, "is open with the header");
    operator.does("resize image --size 8M");
    operator.is_refused(&words(""), 2, "but it is open with 8388608");
    operator.is_refused(&words("--resume-only --keep-lost"), 2, "no step of it was cut off");
    assert!(header() == before && std::fs::read(&other).unwrap() == before);
    operator.does("resize image");
    operator.does(&words(&format!("--init-only --header {}", text(&volume.image))));
    assert!(header() != before);
    server.stop();
}

#[test]
fn nobody_goes_on_with_a_volume_that_somebody_reads() {
    let operator = Operator::new();
    let (volume, plain) = filled(&operator.scratch, "nobody_goes_on_with_a_volume_that_somebody_reads", &[]);
    run(&mut reencrypt(&volume, "--init-only"));
    let server = operator.serve(&volume, &["--read-only"]);
    // Other programs may read the volume, too.
    assert_same(&volume.read(0, 1 << 20), &plain[..1 << 20], "as it stands");
    let theirs = || cryptsetup(&volume, "reencrypt --resume-only --force-offline-reencrypt");
    let refused = Ran::from(crate::support::output(theirs().stdin(std::process::Stdio::null())));
    assert_ne!(refused.code, Some(0), "{refused:?}");
    assert!(dump(&volume.image).contains("online-reencrypt"));
    assert_same(
        &Client::connect(&server.socket()).unwrap().read(0, 1 << 20).unwrap(),
        &plain[..1 << 20],
        "served",
    );
    server.stop();
    run(theirs().stdin(std::process::Stdio::null()));
    assert_same(&volume.read(0, plain.len()), &plain, "at the end");
}

#[test]
fn no_backup_comes_back_beside_a_running_reencryption() {
    let operator = Operator::new();
    let (volume, plain) = filled(&operator.scratch, "no_backup_comes_back_beside_a_running", &[]);
    let backup = operator.scratch.path("backup");
    operator.does(&format!("header backup {} {}", text(&volume.image), text(&backup)));
    let server = operator.serve(&volume, &[]);
    operator.does(&words(&volume, "--rate 2M --no-wait"));
    wait_for_progress(&operator, "image");
    let restore = format!("header restore {} {} --force", text(&volume.image), text(&backup));
    operator.is_refused(&restore, 4, "being reencrypted already");
    operator.does("reencrypt image --rate full");
    wait_for(&operator, "image", "done");
    server.stop();
    assert_same(&volume.read(0, plain.len()), &plain, "reencrypted");
}

#[test]
fn a_step_that_was_cut_off_waits_for_a_lock_only_for_a_while_and_says_so() {
    let operator = Operator::new();
    let (volume, plain) = filled(&operator.scratch, "a_step_that_was_cut_off_waits_for_a_lock", &[]);
    run(&mut reencrypt(&volume, "--init-only"));
    let is_hot = || info(&volume)["segments"].to_string().contains("in-reencryption");
    let cutter = Cutter::new();
    for sync in 1..30 {
        if is_hot() {
            break;
        }
        let step = reencrypt(&volume, "--resume-only --hotzone-size 4M");
        cutter.kill_at(sync, &["fsync", "fdatasync"], &step);
    }
    assert!(is_hot(), "{}", info(&volume));
    let held = File::open(&volume.image).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockShared).unwrap();
    let refused = Ran::from(crate::support::output(&mut volume.command("open")));
    assert_eq!(refused.code, Some(4), "{refused:?}");
    assert!(refused.err.contains("holds the header's lock"), "{refused:?}");
    drop(held);
    let server = operator.serve(&volume, &[]);
    server.stop();
    assert_same(&volume.read(0, plain.len()), &plain, "made good");
}
