//! fio on the file: random blocks of all lengths are written and read at once by several threads,
//! then all that was written is read again and its sums checked.

use std::path::Path;

use crate::fuse::mounted::{Mounted, client};
use crate::support::mounts::{cannot_fuse, skip};
use crate::support::volume::{Volume, text, underseal};
use crate::support::{Scratch, output, run, seed};

const JOBS: u64 = 4;
/// The bytes of one job: no multiple of a large sector.
const SHARE: u64 = (12 << 20) + 4096;

fn verify(name: &str, format: &[&str], block: u32, open: &[&str], how: &[&str]) {
    if let Some(reason) = cannot_fuse() {
        return skip(name, reason);
    }
    let scratch = Scratch::new();
    let size = (16 << 20) + JOBS * SHARE;
    let volume = Volume::at(&scratch, "image").format(&size.to_string(), format);
    let direct = open.iter().filter(|option| **option == "--direct").copied();
    let rest: Vec<&str> = open.iter().filter(|option| **option != "--direct").copied().collect();
    let mounted = Mounted::start(&scratch, &volume.with(direct), &rest);
    fio(&mounted, block, how);
    mounted.stop();
}

fn fio(mounted: &Mounted, block: u32, how: &[&str]) {
    let report =
        run(client("fio").args(["--name=verify", "--thread", "--group_reporting"]).args(how).args([
            format!("--filename={}", mounted.path().display()),
            format!("--numjobs={JOBS}"),
            format!("--size={SHARE}"),
            format!("--offset_increment={SHARE}"),
            format!("--bsrange={block}-2m"),
            format!("--blockalign={block}"),
            "--rw=randrw".into(),
            "--fsync=64".into(),
            "--fallocate=none".into(),
            "--verify=crc32c".into(),
            "--verify_fatal=1".into(),
            "--do_verify=1".into(),
            format!("--randseed={}", seed("fio") >> 1),
            "--aux-path=/tmp".into(),
            "--verify_state_save=0".into(),
        ]));
    assert!(report.contains("err= 0"), "{report}");
}

const ASYNC: [&str; 3] = ["--ioengine=libaio", "--iodepth=16", "--direct=1"];
const CACHED: [&str; 1] = ["--ioengine=psync"];

#[test]
fn many_direct_requests_a_thread_are_verified() {
    verify("direct", &["--sector-size", "4096"], 4096, &[], &ASYNC);
}

#[test]
fn many_direct_requests_over_a_direct_image_are_verified() {
    verify("direct both", &["--sector-size", "4096"], 4096, &["--direct"], &ASYNC);
}

#[test]
fn requests_through_the_page_cache_are_verified() {
    verify("cached", &["--sector-size", "4096"], 4096, &["--fuse-threads", "4"], &CACHED);
}

#[test]
fn parts_of_sectors_through_the_page_cache_are_verified() {
    verify("parts", &["--sector-size", "4096"], 512, &["--direct"], &CACHED);
}

#[test]
fn small_sectors_are_verified_on_one_thread() {
    verify("small", &["--sector-size", "512"], 512, &["--fuse-threads", "1"], &ASYNC);
}

/// Shares of the threads begin and end inside sectors, which are read, changed and written by one
/// at a time.
fn large_sectors(name: &str, play: impl FnOnce(&Mounted)) {
    if let Some(reason) = cannot_fuse() {
        return skip(name, reason);
    }
    let scratch = Scratch::new();
    let size = (JOBS * SHARE).next_multiple_of(65536);
    let disk = scratch.sparse("a", size);
    let key: String = (0..64_u8).map(|i| format!("{:02x}", i.wrapping_mul(7))).collect();
    let sectors = size / 512;
    let line = format!("0 {sectors} crypt aes-xts-plain64 {key} 0 {} 0 1 sector_size:65536\n", text(&disk));
    let table = scratch.file("table", line.as_bytes());
    let open = |path: &Path, options: &[&str]| {
        let mut command = underseal();
        command.args(["table", "open", "--table", text(&table)]);
        Mounted::start_at(&scratch, command, path, options)
    };
    let path = scratch.file("disk", b"");
    let mounted = open(&path, &["--fuse-threads", "4"]);
    play(&mounted);
    let shown = std::fs::read(mounted.path()).unwrap();
    mounted.stop();
    let mut decrypt = underseal();
    let stored = output(decrypt.args(["table", "decrypt", "--table", text(&table)]));
    assert!(stored.status.success() && stored.stdout == shown, "{decrypt:?}: other bytes are stored");
}

#[test]
fn pages_of_larger_sectors_are_verified() {
    large_sectors("large sectors", |mounted| fio(mounted, 4096, &ASYNC));
}

#[test]
fn parts_of_larger_sectors_through_the_page_cache_are_verified() {
    large_sectors("large sectors, cached", |mounted| fio(mounted, 512, &CACHED));
}

/// Every process writes each fourth page, so that all of them change every sector.
const MAPPED: &str = r#"
import mmap, os, sys
path, procs, page = sys.argv[1], 4, 4096
size = os.path.getsize(path) // page * page
def content(i, turn): return bytes([(i * 7 + turn) % 251]) * page
def play(me):
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), size) as pages:
        for turn in (1, 2):
            for i in range(me, size // page, procs):
                pages[i * page:(i + 1) * page] = content(i, turn)
            pages.flush()
children = []
for me in range(procs):
    pid = os.fork()
    if pid == 0:
        play(me)
        os._exit(0)
    children.append(pid)
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
with open(path, "rb") as file:
    fd = file.fileno()
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    for i in range(size // page):
        assert file.read(page) == content(i, 2), i
"#;

#[test]
fn mapped_pages_of_larger_sectors_are_written_by_many() {
    large_sectors("large sectors, mapped", |mounted| {
        run(client("python3").args(["-c", MAPPED, text(mounted.path())]));
    });
}
