//! Folders and bytes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A folder that goes when the test ends. Its path is short enough for sockets.
pub(crate) struct Scratch(tempfile::TempDir);

impl Scratch {
    pub(crate) fn new() -> Self {
        Self(tempfile::Builder::new().prefix("us-").tempdir_in("/tmp").unwrap())
    }

    /// A folder in memory, where there is one, for tests that kill programs at many of their
    /// syncs. What a killed program has written is there on every file system; a disk only takes
    /// longer to sync it.
    pub(crate) fn in_memory() -> Self {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { memory } else { Path::new("/tmp") };
        Self(tempfile::Builder::new().prefix("us-").tempdir_in(folder).unwrap())
    }

    pub(crate) fn folder(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    /// A file with these bytes.
    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// A file with nothing in it but its size.
    pub(crate) fn sparse(&self, name: &str, size: u64) -> PathBuf {
        let path = self.path(name);
        File::create(&path).unwrap().set_len(size).unwrap();
        path
    }
}

/// Gives a file these bytes, and writes only where it has others. When an image is put back again
/// and again, the rest need not go to the disk each time.
pub(crate) fn put_back(path: &Path, bytes: &[u8]) {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    let mut there = vec![0; 64 << 10];
    let mut at = 0;
    for piece in bytes.chunks(there.len()) {
        let there = &mut there[..piece.len()];
        file.read_exact_at(there, at).unwrap();
        if there != piece {
            file.write_all_at(piece, at).unwrap();
        }
        at += piece.len() as u64;
    }
}

/// A seed for a test's random choices: another one each run, or UNDERSEAL_SEED to repeat a run. It
/// is printed, which is seen when the test fails.
pub(crate) fn seed(test: &str) -> u64 {
    let given = std::env::var("UNDERSEAL_SEED").ok();
    let seed =
        given.map_or_else(|| fastrand::u64(..), |seed| seed.parse().expect("UNDERSEAL_SEED is a number"));
    eprintln!("{test}: UNDERSEAL_SEED={seed} repeats this run");
    seed
}

/// Bytes that look random; the same for the same seed.
pub(crate) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// Fails with the place of the first difference instead of two walls of numbers.
#[track_caller]
pub(crate) fn assert_same(found: &[u8], expected: &[u8], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    // Byte by byte is slow where nothing is optimised.
    if found != expected {
        let at = found.iter().zip(expected).position(|(a, b)| a != b).unwrap();
        let end = (at + 16).min(found.len());
        panic!("{what}: byte {at} differs: {:02x?}, not {:02x?}", &found[at..end], &expected[at..end]);
    }
}
