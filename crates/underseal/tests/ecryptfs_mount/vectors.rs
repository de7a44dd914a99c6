//! Trees that the kernel wrote.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::ecryptfs_mount::mounted::{Folder, unable};
use crate::support::{run, tool};

const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ecryptfs/tests/vectors");

#[test]
fn what_the_kernel_wrote_is_read() {
    if unable("what_the_kernel_wrote_is_read") {
        return;
    }
    let manifest = fs::read_to_string(format!("{VECTORS}/manifest.json")).unwrap();
    let manifest: Value = serde_json::from_str(&manifest).unwrap();
    let trees = manifest["trees"].as_object().unwrap();
    assert!(trees.len() >= 8);
    for (name, tree) in trees {
        let folder = Folder::new();
        folder.scratch.file("passphrase", manifest["passphrase"].as_str().unwrap().as_bytes());
        run(tool("tar")
            .args(["--xattrs", "--xattrs-include=user.*", "-C"])
            .arg(&folder.lower)
            .args(["-xf", &format!("{VECTORS}/{name}.tar.xz")]));
        let mount = folder.mount(tree["options"].as_str().unwrap());
        let mut found = Vec::new();
        walk(&folder.plain, &mut found);
        let entries = tree["entries"].as_object().unwrap();
        let mut expected: Vec<_> = entries.keys().cloned().collect();
        let plain = folder.plain.to_str().unwrap().len() + 1;
        let mut found: Vec<_> = found.iter().map(|path| path[plain..].to_owned()).collect();
        expected.sort();
        found.sort();
        assert_eq!(found, expected, "{name}");
        for (path, entry) in entries {
            check(&folder.at(path), entry, &format!("{name}: {path}"));
        }
        mount.unmount();
    }
}

fn check(path: &Path, entry: &Value, what: &str) {
    let about = path.symlink_metadata().unwrap();
    assert_eq!(format!("0o{:o}", about.mode()), entry["mode"].as_str().unwrap(), "{what}");
    if let Some(target) = entry["target"].as_str() {
        assert_eq!(fs::read_link(path).unwrap().to_str(), Some(target), "{what}");
        assert_eq!(about.size(), target.len() as u64, "{what}");
    } else if about.is_file() {
        assert_eq!(about.size(), entry["size"].as_u64().unwrap(), "{what}");
        let digest = hex(&Sha256::digest(fs::read(path).unwrap()));
        assert_eq!(digest, entry["sha256"].as_str().unwrap(), "{what}");
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn walk(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        found.push(entry.path().to_str().unwrap().to_owned());
        if entry.file_type().unwrap().is_dir() {
            walk(&entry.path(), found);
        }
    }
}
