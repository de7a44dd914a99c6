//! Trees written by the kernel, read byte for byte by the format code alone.

use std::collections::HashMap;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use serde_json::Value;
use sha2::{Digest, Sha256};
use underseal_ecryptfs::options::EcryptfsOptions;
use underseal_ecryptfs::{
    AuthToken, Cipher, EXTENT, FileHeader, HeaderLocation, Keyring, NameCipher, XATTR, is_encoded,
};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors");

/// The state of a lower path.
#[derive(Default)]
struct Lower {
    bytes: Vec<u8>,
    xattr: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
}

fn unpack(tree: &str) -> HashMap<PathBuf, Lower> {
    // On a disk: not every tmpfs keeps xattrs.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let tar = ["--xattrs", "--xattrs-include=user.*", "-C", folder.path().to_str().unwrap(), "-xf"];
    let unpacked = Command::new("tar").args(tar).arg(format!("{FOLDER}/{tree}.tar.xz")).output();
    let unpacked = unpacked.unwrap_or_else(|e| panic!("tar: {e}"));
    assert!(unpacked.status.success(), "{tree}: {}", String::from_utf8_lossy(&unpacked.stderr));
    let mut all = HashMap::new();
    let mut folders = vec![folder.path().to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let about = path.symlink_metadata().unwrap();
            let mut lower = Lower::default();
            if about.is_dir() {
                folders.push(path.clone());
            } else if about.is_symlink() {
                lower.target = Some(path.read_link().unwrap().into_os_string().into_vec());
            } else {
                lower.bytes = std::fs::read(&path).unwrap();
                let mut value = [0; 4096];
                let found = rustix::fs::lgetxattr(&path, XATTR, &mut value);
                lower.xattr = found.ok().map(|len| value[..len].to_vec());
            }
            all.insert(path.strip_prefix(folder.path()).unwrap().to_owned(), lower);
        }
    }
    all
}

/// Returns the plain bytes of a lower file.
fn open(lower: &Lower, keyring: &Keyring) -> Vec<u8> {
    let header = match &lower.xattr {
        Some(xattr) => {
            let header = FileHeader::read_xattr(xattr).unwrap();
            assert_eq!(header.to_xattr(), *xattr);
            header
        }
        None => {
            let header = FileHeader::read(&lower.bytes).unwrap();
            assert_eq!(header.to_file(), lower.bytes[..8192]);
            header
        }
    };
    let mut plain = lower.bytes[usize::try_from(header.data_offset()).unwrap()..].to_vec();
    let key = header.unlock(keyring).unwrap();
    key.contents().unwrap().decrypt(0, &mut plain);
    let size = usize::try_from(header.size()).unwrap();
    assert!(plain[size..].iter().all(|&byte| byte == 0), "zeros behind the end");
    assert_eq!(plain.len(), size.next_multiple_of(EXTENT));
    // And the way back.
    let mut again = plain.clone();
    key.contents().unwrap().encrypt(0, &mut again);
    assert!(lower.bytes.ends_with(&again));
    plain.truncate(size);
    plain
}

#[test]
fn every_tree_of_the_kernel_reads_back_exactly() {
    let manifest = std::fs::read_to_string(Path::new(FOLDER).join("manifest.json")).unwrap();
    let manifest: Value = serde_json::from_str(&manifest).unwrap();
    let passphrase = manifest["passphrase"].as_str().unwrap().as_bytes();
    let keyring = Keyring::from(AuthToken::from_passphrase(passphrase, AuthToken::DEFAULT_SALT).unwrap());
    let token = Arc::new(AuthToken::from_passphrase(passphrase, AuthToken::NAME_SALT).unwrap());
    for (tree, about) in manifest["trees"].as_object().unwrap() {
        let options = EcryptfsOptions::parse(about["options"].as_str().unwrap()).unwrap();
        let names = NameCipher::new(token.clone(), options.name_cipher_or(Cipher::DEFAULT).unwrap()).unwrap();
        let all = unpack(tree);
        let mut files = 0;
        for (path, entry) in about["entries"].as_object().unwrap() {
            let in_tree = entry["lower"].as_array().unwrap().iter().map(|lower| lower.as_str().unwrap());
            let Some(lower) = in_tree.clone().find_map(|lower| all.get(Path::new(lower))) else {
                panic!("{tree}: nothing at {:?}", in_tree.collect::<Vec<_>>());
            };
            for lower in in_tree.filter(|_| options.encrypts_names()) {
                let plain = lower.split('/').map(|part| {
                    let name = names.decode(part.as_bytes()).unwrap();
                    assert_eq!(names.encode(&name).unwrap(), part.as_bytes());
                    String::from_utf8(name).unwrap()
                });
                let plain = plain.collect::<Vec<_>>().join("/");
                assert!(plain == *path || ["f1", "hard1"].contains(&&*plain), "{plain}");
            }
            if let Some(target) = entry["symlink"].as_str() {
                let lower = lower.target.as_ref().unwrap();
                let plain =
                    if is_encoded(lower) { names.decode_target(lower).unwrap() } else { lower.clone() };
                assert_eq!(plain, target.as_bytes());
            } else if let Some(digest) = entry["sha256"].as_str() {
                let plain = open(lower, &keyring);
                assert_eq!(hex::encode(Sha256::digest(&plain)), digest, "{tree}: {path}");
                assert_eq!(Some(plain.len() as u64), entry["size"].as_u64());
                let place = if options.xattr_metadata { HeaderLocation::Xattr } else { HeaderLocation::File };
                assert_eq!(lower.xattr.is_some(), place == HeaderLocation::Xattr);
                files += 1;
            }
        }
        assert!(files > 10, "{tree}");
    }
}
