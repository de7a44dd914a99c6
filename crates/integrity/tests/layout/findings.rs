//! The fuzzer's seeds and all of its findings, replayed.

use std::path::Path;

use crate::exercise;

fn files(folder: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(folder);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.map(|path| (path.display().to_string(), std::fs::read(&path).unwrap())).collect()
}

/// The fuzzer's findings join its seeds as `finding-..`; a file of this kind need not open, but
/// must not panic.
#[test]
fn every_seed_of_the_fuzzer_opens_and_no_finding_panics() {
    for (target, run) in [
        ("integrity_superblock", exercise::superblock as fn(&[u8]) -> bool),
        ("integrity_journal", exercise::journal),
    ] {
        let seeds = files(target);
        assert!(seeds.len() > 2);
        for (name, bytes) in seeds {
            assert!(run(&bytes) || name.contains("finding-"), "{name}");
        }
    }
}
