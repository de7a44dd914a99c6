//! The fuzz targets' seeds and findings, replayed.

mod exercise;

use std::path::Path;

fn replay(target: &str, run: fn(&[u8]) -> bool) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let mut understood = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        understood += usize::from(run(&std::fs::read(entry.unwrap().path()).unwrap()));
    }
    assert!(understood > 0, "{target}: no seed is what it should be");
}

#[test]
fn headers() {
    replay("ecryptfs_header", exercise::header);
}

#[test]
fn names() {
    replay("ecryptfs_name", exercise::name);
}

#[test]
fn archives() {
    replay("ecryptfs_import", exercise::archive::import);
}

#[test]
fn requests() {
    replay("ecryptfs_requests", exercise::mount::requests);
}

#[test]
fn files() {
    replay("ecryptfs_files", exercise::files);
}
