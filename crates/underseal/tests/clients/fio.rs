//! fio's nbd engine.

use crate::support::fio::verifying;
use crate::support::volume::Volume;
use crate::support::{Scratch, Server, run};

/// The number of connections that share the volume.
const CONNECTIONS: u32 = 4;
const SHARE: u64 = 12 << 20;

/// Random blocks of all lengths are written and read at once, then all that was written is read and
/// its sums checked.
fn verify(format: &[&str], block: u32, open: &[&str]) {
    let scratch = Scratch::new();
    let size = (16 << 20) + u64::from(CONNECTIONS) * SHARE;
    let volume = Volume::at(&scratch, "image").format(&size.to_string(), format);
    let server = Server::start(&volume, open);
    let mut fio = verifying(&server, CONNECTIONS, SHARE);
    fio.args([format!("--bsrange={block}-256k"), format!("--blockalign={block}")]);
    let report = run(fio.args(["--rw=randrw", "--iodepth=32", "--fsync=64"]));
    assert!(report.contains("err= 0"), "{report}");
    let log = server.stop();
    assert!(!log.contains("ERROR"), "{log}");
}

#[test]
fn what_fio_writes_through_the_page_cache_it_verifies() {
    verify(&["--sector-size", "4096"], 4096, &[]);
}

#[test]
fn what_fio_writes_past_the_page_cache_it_verifies() {
    verify(&["--sector-size", "4096"], 4096, &["--direct"]);
}

#[test]
fn what_fio_writes_in_small_sectors_it_verifies() {
    verify(&["--sector-size", "512", "--cipher", "aes-cbc-essiv:sha256", "--key-size", "256"], 512, &[]);
}
