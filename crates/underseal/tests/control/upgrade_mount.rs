//! A mount whose server is replaced while programs have files in it open.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use underseal_export::control::{Asking, Given};

use crate::control::operator::Operator;
use crate::control::upgrade::{PAUSE, alone, at_rest};
use crate::support::mounts::{cannot_fuse, cannot_mount, skip};
use crate::support::nbd::Client;
use crate::support::scratch::assert_same;
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::volume::text;
use crate::support::{bytes, output, run, seed, tool};

/// Bytes of a write.
const BLOCK: usize = 32 << 10;

/// Writes and reads one block of a MiB after the other until `ends` is set. Returns the longest
/// wait, and the MiB's contents at the end.
fn busy(file: &File, at: u64, seed: u64, ends: &AtomicBool, count: &AtomicU64) -> (Duration, Vec<u8>) {
    let (mut longest, mut round, mut model) = (Duration::ZERO, 0, vec![0; 1 << 20]);
    file.write_all_at(&model, at).unwrap();
    while !ends.load(Ordering::Relaxed) {
        round += 1;
        let data = bytes(seed ^ round, BLOCK);
        let place = usize::try_from(round % 32).unwrap() * BLOCK;
        let begun = Instant::now();
        file.write_all_at(&data, at + place as u64).unwrap();
        let mut found = vec![0; BLOCK];
        file.read_exact_at(&mut found, at + place as u64).unwrap();
        if round % 16 == 0 {
            file.sync_data().unwrap();
        }
        longest = longest.max(begun.elapsed());
        assert_same(&found, &data, "what was written a moment ago");
        model[place..place + BLOCK].copy_from_slice(&data);
        count.fetch_add(1, Ordering::Relaxed);
    }
    (longest, model)
}

#[test]
fn a_mount_stays_while_new_processes_take_over() {
    if let Some(reason) = cannot_fuse() {
        return skip("a_mount_stays_while_new_processes_take_over", reason);
    }
    let operator = Operator::new();
    let path = operator.scratch.file("plain", b"");
    let options = ["--hand-over", "--fuse", text(&path), "--fuse-threads", "3"];
    let (volume, mut server) = operator.open(&options);
    let seed = seed("a_mount_stays_while_new_processes_take_over");
    let file = Arc::new(File::options().read(true).write(true).open(&path).unwrap());
    let (ends, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let users: Vec<_> = (0..3)
        .map(|i| {
            let (file, ends, count) = (file.clone(), ends.clone(), count.clone());
            thread::spawn(move || busy(&file, i << 20, seed ^ i << 32, &ends, &count))
        })
        .collect();
    let is_busy = || {
        let before = count.load(Ordering::Relaxed);
        wait_until("the mount is used", PATIENCE, || count.load(Ordering::Relaxed) > before + 20);
    };
    let size = fs::metadata(&path).unwrap().len();
    for _ in 0..6 {
        is_busy();
        let before = operator.pid();
        operator.does("upgrade image");
        assert_ne!(operator.pid(), before);
        assert_eq!(fs::metadata(&path).unwrap().len(), size);
    }
    is_busy();
    assert!(server.wait().success(), "{}", server.log());
    // The new server tells the kernel a new size.
    operator.does("resize image --size 16M");
    wait_until("the kernel has heard it", PATIENCE, || fs::metadata(&path).unwrap().len() == 16 << 20);
    ends.store(true, Ordering::Relaxed);
    let (waits, models): (Vec<_>, Vec<_>) = users.into_iter().map(|user| user.join().unwrap()).unzip();
    let longest = waits.into_iter().max().unwrap();
    eprintln!("a write, the read and the flush of it took {longest:?} at most, through 7 processes");
    assert!(longest < PAUSE, "{longest:?}");
    let model = models.concat();
    let mut client = Client::connect(&server.socket()).unwrap();
    assert_same(&client.read(0, model.len()).unwrap(), &model, "what clients of NBD see");
    drop((client, file));
    operator.does("close image");
    assert_eq!(fs::metadata(&path).unwrap().len(), 0, "it is unmounted");
    assert_same(&volume.read(0, model.len()), &model, "the image");
}

#[test]
fn a_mount_goes_on_when_nobody_takes_it() {
    if let Some(reason) = cannot_fuse() {
        return skip("a_mount_goes_on_when_nobody_takes_it", reason);
    }
    let operator = Operator::new();
    let path = operator.scratch.file("plain", b"");
    let (_volume, server) = operator.open(&["--hand-over", "--fuse", text(&path)]);
    let file = Arc::new(File::options().read(true).write(true).open(&path).unwrap());
    for round in 0..3 {
        let line = alone(&operator);
        let until = Instant::now() + PATIENCE;
        line.send(&Asking::Begin, &[], &[], until).unwrap();
        let heard = line.receive::<Given>(until).unwrap();
        let Given::Offer(offer) = &heard.message else { panic!("{heard:?}") };
        assert_eq!(offer.mount.as_ref().map(|mount| &*mount.path), Some(&*path));
        line.read(&mut vec![0; usize::try_from(heard.bytes).unwrap()], until).unwrap();
        let connections = at_rest(&line);
        // Requests that arrive during the pause wait in the kernel.
        let (written, data) = (file.clone(), [round; 4096]);
        let waits = thread::spawn(move || written.write_all_at(&data, 0).unwrap());
        thread::sleep(Duration::from_millis(100));
        assert!(!waits.is_finished());
        drop((line, heard, connections));
        waits.join().unwrap();
        let mut found = [0; 4096];
        file.read_exact_at(&mut found, 0).unwrap();
        assert_eq!((found, operator.pid()), (data, server.id()));
    }
    drop(file);
    operator.does("close image");
}

#[test]
fn a_mount_of_somebody_else_s_is_left_alone() {
    if let Some(reason) = cannot_mount() {
        return skip("a_mount_of_somebody_else_s_is_left_alone", reason);
    }
    let operator = Operator::new();
    let (path, other) = (operator.scratch.file("plain", b""), operator.scratch.file("other", b"another's"));
    let (_volume, server) = operator.open(&["--hand-over", "--fuse", text(&path)]);
    // A process with private mounts would unmount a copy.
    let upgrade = operator.command("upgrade image");
    let mut apart = tool("unshare");
    apart.arg("--mount").arg(upgrade.get_program()).args(upgrade.get_args());
    apart.env("UNDERSEAL_RUNTIME_DIR", operator.directory());
    let refused = output(&mut apart);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(6) && said.contains("another mount namespace"), "{refused:?}");
    assert_eq!(operator.pid(), server.id());
    // After the mount was removed, another mount may be at its path: neither server touches that.
    let times = fs::metadata(&path).unwrap().modified().unwrap();
    thread::sleep(Duration::from_millis(1100));
    operator.does("upgrade image");
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), times);
    for _ in 0..2 {
        run(tool("umount").arg(&path));
        run(tool("mount").arg("--bind").args([&other, &path]));
        operator.does("upgrade image");
        assert_eq!(fs::read(&path).unwrap(), b"another's");
        run(tool("umount").arg(&path));
        run(tool("mount").arg("--bind").args([&other, &path]));
    }
    operator.does("close image");
    assert_eq!(fs::read(&path).unwrap(), b"another's");
    run(tool("umount").arg(&path));
}
