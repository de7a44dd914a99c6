//! The import of an untrusted archive.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use underseal_ecryptfs::tools::{ImportOptions, ProgressWatch, import_tar};
use underseal_ecryptfs::{Cipher, Error, HeaderLocation, NameCipher};

/// The flags of the first byte. `SEALED` corrects checksums, so that the fuzzer need not guess
/// them.
const SEALED: u8 = 1;
const NAMES: u8 = 2;
const LONG_NAMES: u8 = 4;
const XATTRS: u8 = 8;

const BLOCK: usize = 512;
const CHECKSUM: std::ops::Range<usize> = 148..156;

/// Imports an archive into a folder, and checks that nothing beside that folder changes. Returns
/// true when an entry was created.
pub(crate) fn import(bytes: &[u8]) -> bool {
    let Some((&mode, archive)) = bytes.split_first() else { return false };
    let mut archive = archive.to_vec();
    if mode & SEALED != 0 {
        seal(&mut archive);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path();
    // Targets for a path that leads upwards, or a link; the name of one begins like the lower
    // folder's.
    for name in ["beside", "lower2"] {
        fs::create_dir(place.join(name)).expect("a folder");
        fs::write(place.join(name).join("file"), b"untouched").expect("a file");
    }
    fs::write(place.join("file"), b"untouched").expect("a file");
    let before = seen(place, &place.join("lower"));

    let token = Arc::new(super::token());
    let names =
        (mode & NAMES != 0).then(|| NameCipher::new(token.clone(), Cipher::DEFAULT).expect("a cipher"));
    let how = ImportOptions {
        tokens: vec![token],
        cipher: Cipher::DEFAULT,
        place: if mode & XATTRS != 0 { HeaderLocation::Xattr } else { HeaderLocation::File },
        names,
        long_names: mode & LONG_NAMES != 0,
    };
    let mut told = Told(0);
    let done =
        import_tar(&mut archive.as_slice(), &place.join("lower"), &how, &mut told).expect("an empty folder");
    assert_eq!(done.failed, told.0, "each failure is told");
    assert_eq!(seen(place, &place.join("lower")), before, "nothing was written outside");
    done.files + done.others > 0
}

/// Inode, links, mode, and the last change.
type About = (u64, u64, u32, (i64, i64));

/// Returns all entries of a place outside of the lower folder, with files' contents.
fn seen(place: &Path, lower: &Path) -> BTreeMap<PathBuf, (About, Vec<u8>)> {
    let mut all = BTreeMap::new();
    let mut folders = vec![place.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path == lower {
                continue;
            }
            let about = path.symlink_metadata().expect("an entry");
            if about.is_dir() {
                folders.push(path.clone());
            }
            let contents = if about.is_file() { fs::read(&path).expect("a file") } else { Vec::new() };
            let changed = (about.ctime(), about.ctime_nsec());
            all.insert(path, ((about.ino(), about.nlink(), about.mode(), changed), contents));
        }
    }
    all
}

struct Told(u64);

impl ProgressWatch for Told {
    fn advance(&mut self, _: u64) {}

    fn failed(&mut self, _: &Path, error: Error) {
        assert!(!error.to_string().is_empty());
        self.0 += 1;
    }
}

/// Corrects the headers' checksums: of the first block, and so on behind the bytes of each.
fn seal(archive: &mut [u8]) {
    let mut at = 0;
    while let Some(header) =
        archive.get_mut(at..at + BLOCK).filter(|header| header.iter().any(|&byte| byte != 0))
    {
        header[CHECKSUM].fill(b' ');
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let size = header[124..136].iter().take_while(|byte| (b'0'..=b'7').contains(byte));
        let size = size.fold(0_usize, |size, digit| size << 3 | usize::from(digit - b'0'));
        at += BLOCK + size.min(archive.len()).next_multiple_of(BLOCK);
    }
}
