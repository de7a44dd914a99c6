//! The seeds of the fuzz target `dm_supervised`, and random changes of them.

mod exercise;

use std::fs;
use std::path::Path;

#[test]
fn a_callers_memory_is_read_once_and_its_buffer_alone_is_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/dm_supervised");
    let mut answered = 0;
    for seed in fs::read_dir(folder).unwrap() {
        let path = seed.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        assert!(exercise::call(&bytes), "{}", path.display());
        for _ in 0..200 {
            let mut changed = bytes.clone();
            for _ in 0..fastrand::usize(1..4) {
                let at = [fastrand::usize(..changed.len().min(24)), fastrand::usize(..changed.len())];
                changed[at[fastrand::usize(..2)]] = fastrand::u8(..);
            }
            changed.truncate(changed.len() - fastrand::usize(..2) * fastrand::usize(..changed.len()));
            answered += usize::from(exercise::call(&changed));
        }
    }
    assert!(answered > 100, "{answered} were answered");
}
