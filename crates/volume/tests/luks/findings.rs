//! The fuzzer's seeds and everything it ever found, replayed.

use std::path::Path;

use crate::exercise;

fn files(folder: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.map(|path| (path.display().to_string(), std::fs::read(&path).unwrap())).collect()
}

#[test]
fn every_seed_of_the_fuzzer_comes_to_a_volume() {
    for (name, bytes) in files("../../fuzz/seeds/luks1_header") {
        assert!(exercise::luks1(&bytes), "{name}");
    }
    for (name, bytes) in files("../../fuzz/seeds/luks2_header") {
        assert!(exercise::luks2(&bytes), "{name}");
    }
}
