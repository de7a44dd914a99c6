//! The fuzzer's seeds and all of its findings, replayed.

use std::path::Path;

use crate::exercise;

fn files(folder: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.map(|path| (path.display().to_string(), std::fs::read(&path).unwrap())).collect()
}

/// Findings of the fuzzer join its seeds as `finding-..`; such a file need not open, but must never
/// panic.
#[test]
fn every_seed_of_the_fuzzer_comes_to_a_volume_and_no_finding_panics() {
    for (target, run) in [
        ("luks1_header", exercise::luks1 as fn(&[u8]) -> bool),
        ("luks2_header", exercise::luks2),
        ("luks2_json", exercise::luks2_json),
        ("luks2_tokens", exercise::luks2_tokens),
        ("luks1_repair", exercise::luks1_repair),
        ("header_backup", exercise::backup),
        ("reencryption_state", exercise::reencryption_state),
    ] {
        for (name, bytes) in files(&format!("../../fuzz/seeds/{target}")) {
            let opened = run(&bytes);
            // A self-encrypting drive's volume is not opened, nor a volume that needs two keys.
            let refused = name.ends_with("/opal") || name.contains("/reencrypt-");
            assert!(opened || refused || name.contains("finding-"), "{name}");
        }
    }
}
