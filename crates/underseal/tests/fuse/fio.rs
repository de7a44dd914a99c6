//! fio on the file: random blocks of all lengths are written and read at once by several threads, then all that was
//! written is read again and its sums checked.

use crate::mounted::{Mounted, client};
use crate::support::mounts::{cannot_fuse, skip};
use crate::support::volume::Volume;
use crate::support::{Scratch, run, seed};

const JOBS: u64 = 4;
const SHARE: u64 = 12 << 20;

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
    mounted.stop();
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
