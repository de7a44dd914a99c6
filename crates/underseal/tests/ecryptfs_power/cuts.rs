//! The power is cut, and the lower filesystem recovers.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fastrand::Rng;

use crate::ecryptfs_mount::mounted::{Folder, client, unable};
use crate::ecryptfs_power::check::Found;
use crate::ecryptfs_power::disk::Disk;
use crate::ecryptfs_power::rounds;
use crate::ecryptfs_power::writer::{Safe, Writer};
use crate::support::mounts::{Mount, cannot_mount, skip};
use crate::support::tools::within;
use crate::support::{run, seed};

/// A kind of lower filesystem.
struct Kind {
    name: &'static str,
    bytes: u64,
    make: &'static [&'static str],
    mount: &'static [&'static str],
    safe: Safe,
}

/// ext4 commits every second, so that blocks without an fsync are written as well.
const EXT4: Kind = Kind {
    name: "ext4",
    bytes: 96 << 20,
    make: &["mkfs.ext4", "-q", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
    mount: &["-o", "commit=1"],
    safe: Safe::Synced,
};

// No xfs is smaller than 300 MiB.
const XFS: Kind =
    Kind { name: "xfs", bytes: 336 << 20, make: &["mkfs.xfs", "-q"], mount: &[], safe: Safe::Synced };

const BTRFS: Kind = Kind {
    name: "btrfs",
    bytes: 160 << 20,
    make: &["mkfs.btrfs", "-q"],
    mount: &["-o", "commit=1"],
    safe: Safe::SyncedButForOldNames,
};

const WRITERS: u64 = 3;

#[test]
fn on_ext4_what_was_fsynced_survives_and_every_file_opens() {
    power_cuts(&EXT4, "ecryptfs_enable_filename_crypto", 3);
}

#[test]
fn on_ext4_with_headers_in_xattrs_too() {
    power_cuts(&EXT4, "ecryptfs_xattr_metadata", 2);
}

#[test]
fn on_xfs_what_was_fsynced_survives_and_every_file_opens() {
    power_cuts(&XFS, "", 2);
}

#[test]
fn on_btrfs_what_was_fsynced_survives_and_every_file_opens() {
    power_cuts(&BTRFS, "", 2);
}

fn power_cuts(kind: &Kind, options: &str, usual: u64) {
    let test = format!("power cuts, {} {options}", kind.name);
    if let Some(reason) = cannot_mount().or_else(|| unknown(kind)) {
        return skip(&test, reason);
    }
    if unable(&test) {
        return;
    }
    let seed = seed(&test);
    for round in 0..rounds(usual) {
        power_cut(kind, options, seed.wrapping_add(round), &format!("{test}, round {round}"));
    }
}

fn power_cut(kind: &Kind, options: &str, seed: u64, what: &str) {
    let mut rng = Rng::with_seed(seed);
    let mut folder = Folder::new();
    let disk = Disk::new(&folder.scratch, kind.bytes, rng.u64(..));
    let below = folder.scratch.path("below");
    folder.lower = below.join("lower");
    let bare = std::env::var_os("UNDERSEAL_BARE").is_some();
    if bare {
        folder.plain = folder.lower.clone();
    }

    let device = disk.attach();
    run(client(kind.make[0]).args(&kind.make[1..]).arg(device.device()));
    let lower = Mount::new(device.device(), &below, kind.mount);
    fs::create_dir(&folder.lower).unwrap();
    let mount = (!bare).then(|| folder.mount(options));
    for n in 0..WRITERS {
        fs::create_dir(folder.at(&n.to_string())).unwrap();
    }
    run(client("sync").arg("-f").arg(&folder.lower));

    let over = Arc::new(AtomicBool::new(false));
    let wait = Duration::from_millis(rng.u64(200..1800));
    let writers: Vec<(Writer, u64)> = thread::scope(|scope| {
        let writer = |n: u64| Writer::new(folder.at(&n.to_string()), rng.u64(..), kind.safe, &over);
        let writers: Vec<Writer> = (0..WRITERS).map(writer).collect();
        let writers: Vec<_> = writers.into_iter().map(|writer| scope.spawn(move || writer.run())).collect();
        let seed = rng.u64(..);
        scope.spawn({
            let (lower, over) = (&folder.lower, &*over);
            move || write_back(lower, seed, over)
        });
        thread::sleep(wait);
        // Most of the time nothing is in danger: writes are flushed as soon as they are made.
        let wanted = rng.usize(0..40);
        let worth_it = within(Duration::from_millis(500), || disk.unflushed() >= wanted);
        let unflushed = disk.unflushed();
        over.store(true, Ordering::SeqCst);
        disk.cut();
        eprintln!("{what}: cut after {wait:?}, {unflushed} blocks not flushed ({worth_it})");
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    if let Some(mount) = mount {
        mount.kill();
    }
    drop((lower, device));
    disk.power_on();

    let device = disk.attach();
    let lower = Mount::new(device.device(), &below, kind.mount);
    let mount = (!bare).then(|| folder.mount(options));
    let mut found = Found::default();
    let numbers = shown_below(&folder, writers.len());
    for (n, (writer, _)) in writers.iter().enumerate() {
        found.check(writer, &folder.at(&n.to_string()), &numbers[n]);
    }
    let changes: u64 = writers.iter().map(|(_, changes)| changes).sum();
    eprintln!(
        "{what}: {changes} changes; {} files and {} pages found, {} pages missing, {} files gone",
        found.files, found.pages, found.missing, found.gone
    );
    assert!(found.wrong.is_empty(), "{what}:\n{}\n{}", found.wrong.join("\n"), folder.log());
    if let Some(mount) = mount {
        mount.unmount_after_errors();
    }
    drop((lower, device));
}

/// The lower folders, whatever they are called there: they have the same numbers as those in the
/// mount.
fn shown_below(folder: &Folder, count: usize) -> Vec<std::path::PathBuf> {
    use std::os::unix::fs::MetadataExt;
    let number = |path: &Path| fs::metadata(path).unwrap().ino();
    let below: Vec<_> = fs::read_dir(&folder.lower).unwrap().map(|entry| entry.unwrap().path()).collect();
    let find = |n: usize| {
        let wanted = number(&folder.at(&n.to_string()));
        below.iter().find(|path| number(path) == wanted).cloned().unwrap()
    };
    (0..count).map(find).collect()
}

/// Syncs random lower files, so that writes reach the disk in any order.
fn write_back(lower: &Path, seed: u64, over: &AtomicBool) {
    let mut rng = Rng::with_seed(seed);
    while !over.load(Ordering::SeqCst) {
        thread::sleep(Duration::from_millis(rng.u64(1..20)));
        let one_of = |folder: &Path, rng: &mut Rng| {
            let entries = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
            rng.choice(entries.collect::<Vec<_>>())
        };
        let file = one_of(lower, &mut rng).and_then(|folder| one_of(&folder, &mut rng));
        if let Some(Ok(file)) = file.map(File::open) {
            // The file, or the disk, may be gone.
            let _ = file.sync_data();
        }
    }
}

fn unknown(kind: &Kind) -> Option<&'static str> {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let known = known.lines().any(|line| line.split_whitespace().next_back() == Some(kind.name));
    let loaded = || client("modprobe").arg(kind.name).output().is_ok_and(|ran| ran.status.success());
    (!known && !loaded()).then_some("this kernel does not know the file system")
}
