//! A plain tree with everything in it that may be hard, compared with another.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::support::bytes;

/// Sizes around extents, the buffers of the command and nothing.
const SIZES: [usize; 10] = [0, 1, 15, 4095, 4096, 4097, 8192, 20_000, 131_072, 300_001];

/// Makes a tree in a folder that is there.
pub(crate) fn make(root: &Path, seed: u64) {
    for (nth, size) in (0..).zip(SIZES) {
        fs::write(root.join(format!("file{size}")), bytes(seed + nth, size)).unwrap();
    }
    fs::create_dir_all(root.join("folder/in folder")).unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    fs::write(root.join("folder/in folder/deep"), bytes(seed + 100, 5000)).unwrap();
    fs::write(root.join("folder").join("n".repeat(143)), b"a long name").unwrap();
    fs::write(root.join(OsStr::from_bytes(b"\xe9 \n not UTF-8")), b"bytes").unwrap();
    fs::hard_link(root.join("file4097"), root.join("folder/link")).unwrap();
    symlink("folder/in folder", root.join("relative")).unwrap();
    symlink("/nowhere/at all", root.join("folder/absolute")).unwrap();
    symlink("t".repeat(600), root.join("long target")).unwrap();
    fs::set_permissions(root.join("file1"), fs::Permissions::from_mode(0o4711)).unwrap();
    fs::set_permissions(root.join("folder"), fs::Permissions::from_mode(0o2750)).unwrap();
}

/// The properties of an entry that are compared.
#[derive(Debug, PartialEq)]
struct About {
    mode: u32,
    owner: (u32, u32),
    modified: i64,
    links: u64,
    contents: Vec<u8>,
}

fn read(root: &Path) -> BTreeMap<PathBuf, About> {
    let mut all = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let about = path.symlink_metadata().unwrap();
            let contents = match about.file_type() {
                kind if kind.is_dir() => {
                    folders.push(path.clone());
                    Vec::new()
                }
                kind if kind.is_symlink() => path.read_link().unwrap().as_os_str().as_bytes().to_vec(),
                _ => fs::read(&path).unwrap(),
            };
            let entry = About {
                mode: about.mode(),
                owner: (about.uid(), about.gid()),
                modified: about.mtime(),
                links: if about.is_dir() { 0 } else { about.nlink() },
                contents,
            };
            all.insert(path.strip_prefix(root).unwrap().to_owned(), entry);
        }
    }
    all
}

/// Fails with the first entry that differs.
#[track_caller]
pub(crate) fn assert_same_tree(found: &Path, expected: &Path, what: &str) {
    let (found, expected) = (read(found), read(expected));
    let names = |tree: &BTreeMap<PathBuf, About>| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&found), names(&expected), "{what}");
    for (path, expected) in &expected {
        let found = &found[path];
        let same = found == expected;
        assert!(
            same,
            "{what}: {path:?}: mode {:o} {:o}, times {} {}, links {} {}, {} and {} bytes, contents alike: {}",
            found.mode,
            expected.mode,
            found.modified,
            expected.modified,
            found.links,
            expected.links,
            found.contents.len(),
            expected.contents.len(),
            found.contents == expected.contents
        );
    }
}
