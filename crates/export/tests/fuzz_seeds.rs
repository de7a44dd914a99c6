//! The fuzz targets' seeds and findings, replayed.

mod exercise;

use std::path::Path;

/// The fuzzer's findings are stored among its seeds as `finding-..`; they need not reach the tested
/// code, but must not panic.
fn replay(target: &str, run: fn(&[u8]) -> bool) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let understood = run(&std::fs::read(&path).unwrap());
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        assert!(understood || name.starts_with("finding-") || name.starts_with("raw-"), "{}", path.display());
    }
}

#[test]
fn nbd_connections() {
    replay("nbd_connection", exercise::nbd::connection);
}

#[test]
fn fuse_requests() {
    replay("fuse_requests", exercise::fuse::requests);
}

#[test]
fn metrics() {
    replay("metrics", exercise::metrics);
}

#[test]
fn vhost_user_sequences() {
    replay("vhost_user_sequence", exercise::vhost_user::sequence);
}
