//! Bytes: whatever is written is read.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::ecryptfs_mount::mounted::{Folder, client, unable};
use crate::support::scratch::assert_same;
use crate::support::trees::make_tree;
use crate::support::{bytes, run, seed};

const OPTIONS: [&str; 3] = [
    "",
    "ecryptfs_enable_filename_crypto,ecryptfs_key_bytes=32,policy=workers",
    "ecryptfs_xattr_metadata,policy=inline",
];

/// Where things go wrong: around extents, and around the largest request.
const EDGES: [u64; 9] = [0, 1, 4095, 4096, 4097, 8192, 131_072, 1 << 20, (1 << 20) + 1];

#[test]
fn random_writes_and_cuts_are_those_of_a_plain_file() {
    if unable("random_writes_and_cuts_are_those_of_a_plain_file") {
        return;
    }
    let seed = seed("random_writes_and_cuts_are_those_of_a_plain_file");
    for (n, options) in OPTIONS.into_iter().enumerate() {
        let folder = Folder::new();
        let mut rng = fastrand::Rng::with_seed(seed ^ n as u64);
        let mount = folder.mount(options);
        let open = |name: &str| {
            File::options().read(true).write(true).create(true).truncate(false).open(folder.at(name)).unwrap()
        };
        let mut plain: Vec<u8> = Vec::new();
        let mut file = open("file");
        for step in 0..400 {
            let at = rng.choice(EDGES).unwrap() + rng.u64(0..3) * rng.u64(0..4096);
            match rng.u8(0..10) {
                0..5 => {
                    let len = usize::try_from(rng.choice(EDGES).unwrap()).unwrap() + rng.usize(0..5000);
                    let data = bytes(rng.u64(..), len);
                    file.write_all_at(&data, at).unwrap();
                    let end = usize::try_from(at).unwrap() + len;
                    plain.resize(plain.len().max(end), 0);
                    plain[end - len..end].copy_from_slice(&data);
                }
                5..7 => {
                    file.set_len(at).unwrap();
                    plain.resize(usize::try_from(at).unwrap(), 0);
                }
                7 => {
                    let data = bytes(rng.u64(..), rng.usize(1..9000));
                    File::options().append(true).open(folder.at("file")).unwrap().write_all(&data).unwrap();
                    plain.extend(data);
                }
                8 => file = open("file"),
                _ => {
                    // From the server, not from the kernel's pages.
                    file.sync_all().unwrap();
                    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
                }
            }
            assert_eq!(file.metadata().unwrap().len(), plain.len() as u64, "step {step}");
            let from = rng.usize(0..=plain.len());
            let len = rng.usize(0..=plain.len() - from);
            let mut part = vec![0; len];
            file.read_exact_at(&mut part, from as u64).unwrap();
            assert_same(&part, &plain[from..from + len], &format!("{options}: step {step} at {from}"));
        }
        drop(file);
        assert_same(&fs::read(folder.at("file")).unwrap(), &plain, options);
        mount.unmount();
        let mount = folder.mount(options);
        assert_same(&fs::read(folder.at("file")).unwrap(), &plain, "mounted again");
        mount.unmount();
    }
}

#[test]
fn fio_verifies_what_it_wrote() {
    if unable("fio_verifies_what_it_wrote") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    for (name, options) in [
        ("random", "--rw=randwrite --bsrange=512-256k --ioengine=psync --numjobs=2 --size=8M"),
        ("mapped", "--rw=randwrite --bs=4k --ioengine=mmap --size=8M"),
        ("direct", "--rw=randwrite --bs=16k --ioengine=libaio --iodepth=8 --direct=1 --size=8M"),
        ("large", "--rw=write --bs=3M --ioengine=psync --size=24M --fsync=2"),
    ] {
        let mut fio = client("fio");
        fio.args([
            &format!("--name={name}"),
            "--verify=crc32c",
            "--verify_fatal=1",
            "--do_verify=1",
            "--verify_state_save=0",
        ]);
        fio.arg(format!("--directory={}", folder.plain.display())).args(options.split(' '));
        let told = run(&mut fio);
        assert!(told.contains("err= 0"), "{told}");
    }
    mount.unmount();
}

#[test]
fn a_tree_is_copied_compared_moved_and_removed() {
    if unable("a_tree_is_copied_compared_moved_and_removed") {
        return;
    }
    for options in OPTIONS {
        let folder = Folder::new();
        let tree = make_tree(&folder.scratch, seed("a_tree_is_copied_compared_moved_and_removed"));
        let mount = folder.mount(options);
        run(client("cp").args(["-a"]).arg(&tree).arg(folder.at("copy")));
        run(client("diff").arg("-r").arg(&tree).arg(folder.at("copy")));
        mount.unmount();
        let mount = folder.mount(options);
        run(client("diff").arg("-r").arg(&tree).arg(folder.at("copy")));
        fs::rename(folder.at("copy"), folder.at("moved")).unwrap();
        run(client("diff").arg("-r").arg(&tree).arg(folder.at("moved")));
        run(client("rm").arg("-r").arg(folder.at("moved")));
        assert_eq!(fs::read_dir(&folder.plain).unwrap().count(), 0);
        assert_eq!(fs::read_dir(&folder.lower).unwrap().count(), 0);
        mount.unmount();
    }
}

#[test]
fn room_is_reserved_and_zeros_are_written_but_there_are_no_holes() {
    if unable("room_is_reserved_and_zeros_are_written_but_there_are_no_holes") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    let data = bytes(5, 50_000);
    fs::write(folder.at("file"), &data).unwrap();
    let mut file = File::options().read(true).write(true).open(folder.at("file")).unwrap();
    fallocate(&file, FallocateFlags::empty(), 40_000, 20_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 60_000);
    fallocate(&file, FallocateFlags::KEEP_SIZE, 60_000, 100_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 60_000);
    let mut expected = data;
    expected.resize(60_000, 0);
    for (from, len) in [(10u64, 20u64), (4000, 9000), (8192, 4096), (59_000, 3000)] {
        fallocate(&file, FallocateFlags::ZERO_RANGE, from, len).unwrap();
        let (from, end) = (usize::try_from(from).unwrap(), usize::try_from(from + len).unwrap());
        expected.resize(expected.len().max(end), 0);
        expected[from..end].fill(0);
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        assert_same(&fs::read(folder.at("file")).unwrap(), &expected, "zeros");
    }
    let punched = fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4096);
    assert_eq!(punched, Err(Errno::OPNOTSUPP));
    // All of it is data, and the only hole is its end.
    file.set_len(200_000).unwrap();
    let seek = |to| rustix::fs::seek(&file, to);
    assert_eq!(seek(rustix::fs::SeekFrom::Data(100_000)), Ok(100_000));
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(100)), Ok(200_000));
    assert_eq!(seek(rustix::fs::SeekFrom::Data(200_000)), Err(Errno::NXIO));
    file.seek(SeekFrom::Start(150_000)).unwrap();
    let mut rest = Vec::new();
    file.read_to_end(&mut rest).unwrap();
    assert!(rest.len() == 50_000 && rest.iter().all(|&byte| byte == 0));
    drop(file);
    mount.unmount();
}

#[test]
fn readers_and_writers_of_one_file_do_not_disturb_each_other() {
    if unable("readers_and_writers_of_one_file_do_not_disturb_each_other") {
        return;
    }
    const SLICE: u64 = 10_000;
    let folder = Folder::new();
    let mount = folder.mount("");
    let path = folder.at("shared");
    File::create(&path).unwrap().set_len(4 * SLICE).unwrap();
    std::thread::scope(|scope| {
        for slice in 0..4u64 {
            let path = &path;
            scope.spawn(move || {
                // Slices share extents at their ends.
                let file = File::options().read(true).write(true).open(path).unwrap();
                for round in 0..50 {
                    let data = bytes(slice << 32 | round, usize::try_from(SLICE).unwrap());
                    file.write_all_at(&data, slice * SLICE).unwrap();
                    let mut found = vec![0; data.len()];
                    file.read_exact_at(&mut found, slice * SLICE).unwrap();
                    assert_same(&found, &data, "a slice");
                }
            });
        }
    });
    let whole = fs::read(&path).unwrap();
    for slice in 0..4u64 {
        let at = usize::try_from(slice * SLICE).unwrap();
        let last = bytes(slice << 32 | 49, usize::try_from(SLICE).unwrap());
        assert_same(&whole[at..at + last.len()], &last, "a slice at the end");
    }
    mount.unmount();
}

/// The kernel sends a long direct write in pieces, which may arrive in any order.
#[test]
fn direct_writes_that_append_are_appended_whole() {
    if unable("direct_writes_that_append_are_appended_whole") {
        return;
    }
    const LEN: usize = 8 << 20;
    let folder = Folder::new();
    let mount = folder.mount_plainly("");
    let path = folder.at("log");
    let mut options = File::options();
    let mut log = options.append(true).create(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let lines: Vec<_> = (0..6).map(|number| bytes(number, LEN)).collect();
    lines.iter().for_each(|line| log.write_all(line).unwrap());
    drop(log);
    let found = fs::read(&path).unwrap();
    assert_eq!(found.len(), lines.len() * LEN);
    for (found, line) in found.chunks(LEN).zip(&lines) {
        assert_same(found, line, "a write that appends");
    }
    mount.unmount();
}
