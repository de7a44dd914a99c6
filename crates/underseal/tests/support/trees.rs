//! Files to copy.

use std::fs;
use std::path::PathBuf;

use super::{Scratch, bytes};

/// Files of all lengths in a few folders, with holes in some.
pub(crate) fn make_tree(scratch: &Scratch, seed: u64) -> PathBuf {
    let tree = scratch.path("tree");
    let mut rng = fastrand::Rng::with_seed(seed);
    for folder in 0..4 {
        let folder = tree.join(format!("folder{folder}"));
        fs::create_dir_all(&folder).unwrap();
        for file in 0..50 {
            let len = rng.choice([0, 1, 100, 4095, 4096, 4097, 65_536, 200_001]).unwrap();
            fs::write(folder.join(format!("file{file}")), bytes(rng.u64(..), len)).unwrap();
        }
    }
    fs::write(tree.join("large"), bytes(rng.u64(..), 5_000_011)).unwrap();
    fs::File::create(tree.join("sparse")).unwrap().set_len(3 << 20).unwrap();
    tree
}
