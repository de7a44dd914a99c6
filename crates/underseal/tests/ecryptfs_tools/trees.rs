//! Trees come out as they went in.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::ecryptfs_kernel::tree::assert_same_tree;
use crate::ecryptfs_tools::{VECTORS, assert_done, assert_exports, assert_refused, ecryptfs, imported};
use crate::support::{Scratch, run, tool};

fn unpack(scratch: &Scratch, tree: &str) {
    let lower = scratch.path(tree);
    fs::create_dir(&lower).unwrap();
    let archive = format!("{VECTORS}/{tree}.tar.xz");
    run(tool("tar").args(["--xattrs", "--xattrs-include=user.*", "-xf", &archive, "-C"]).arg(&lower));
}

#[test]
fn every_tree_of_the_kernel_is_exported_exactly() {
    let manifest = fs::read_to_string(format!("{VECTORS}/manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    let scratch = Scratch::new();
    scratch.file("pass", manifest["passphrase"].as_str().unwrap().as_bytes());
    for (tree, about) in manifest["trees"].as_object().unwrap() {
        unpack(&scratch, tree);
        let options = about["options"].as_str().unwrap();
        // Options that the headers contain may be left out.
        for (to, more) in [("with", &["-o", options][..]), ("without", &[])] {
            let args = [&[tree.as_str(), to], more].concat();
            assert_done(&ecryptfs(&scratch, "export", &args));
            for (path, entry) in about["entries"].as_object().unwrap() {
                let exported = scratch.path(to).join(path);
                if let Some(digest) = entry["sha256"].as_str() {
                    let bytes = fs::read(&exported).unwrap();
                    let found: String =
                        Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
                    assert_eq!(found, digest, "{tree}: {path}");
                    if more.is_empty() && (path.contains('/') || ["f0", "f1", "sparse"].contains(&&**path)) {
                        let cat = ecryptfs(&scratch, "cat", &[tree, path]);
                        assert_done(&cat);
                        assert!(cat.stdout == bytes, "{tree}: cat {path}");
                    }
                } else if let Some(target) = entry["symlink"].as_str() {
                    assert_eq!(fs::read_link(&exported).unwrap(), Path::new(target), "{tree}: {path}");
                } else {
                    assert!(exported.is_dir(), "{tree}: {path}");
                }
            }
            fs::remove_dir_all(scratch.path(to)).unwrap();
        }
        assert_done(&ecryptfs(&scratch, "check", &[tree]));
        fs::remove_dir_all(scratch.path(tree)).unwrap();
    }
}

#[test]
fn what_is_imported_is_exported_again() {
    for options in [
        "",
        "ecryptfs_enable_filename_crypto",
        "ecryptfs_xattr_metadata,ecryptfs_cipher=blowfish,ecryptfs_key_bytes=24,ecryptfs_enable_filename_crypto",
        "ecryptfs_cipher=cast6,ecryptfs_key_bytes=32",
    ] {
        let scratch = Scratch::new();
        imported(&scratch, options);
        assert_exports(&scratch);
        assert_done(&ecryptfs(&scratch, "check", &["lower"]));
    }
}

#[test]
fn an_archive_holds_the_same_tree() {
    let scratch = Scratch::new();
    imported(&scratch, "ecryptfs_enable_filename_crypto");
    let file = scratch.path("plain").join("file15");
    run(tool("touch").args(["-d", "2001-02-03 04:05:06.789", file.to_str().unwrap()]));
    // Targets that are no paths, or no tidy ones, and a long one.
    for (name, target) in [
        ("odd1", "https://foo//bar".to_owned()),
        ("odd2", "./x/./y".into()),
        ("odd3", "../..//z/".into()),
        ("odd4", "/a//b".repeat(60)),
    ] {
        std::os::unix::fs::symlink(target, scratch.path("plain").join(name)).unwrap();
    }
    fs::remove_dir_all(scratch.path("lower")).unwrap();
    assert_done(&ecryptfs(&scratch, "import", &["plain", "lower", "-o", "ecryptfs_enable_filename_crypto"]));
    assert_done(&ecryptfs(&scratch, "export", &["lower", "tree.tar", "--tar"]));
    fs::create_dir(scratch.path("back")).unwrap();
    run(tool("tar").current_dir(scratch.folder()).args(["-xpf", "tree.tar", "-C", "back"]));
    assert_same_tree(&scratch.path("back"), &scratch.path("plain"), "tar");
    let stdout = ecryptfs(&scratch, "export", &["lower", "-", "--tar"]);
    assert_done(&stdout);
    assert!(stdout.stdout == fs::read(scratch.path("tree.tar")).unwrap());
}

#[test]
fn headers_and_names_move_and_nothing_else_changes() {
    let scratch = Scratch::new();
    imported(&scratch, "ecryptfs_enable_filename_crypto,ecryptfs_cipher=twofish,ecryptfs_key_bytes=16");
    let lower = scratch.path("lower");
    let encoded = |folder: &Path| {
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.as_bytes().starts_with(b"ECRYPTFS_FNEK_ENCRYPTED.")).count()
    };
    assert_eq!(encoded(&lower), fs::read_dir(scratch.path("plain")).unwrap().count());
    for place in ["xattr", "xattr", "file"] {
        let mut convert = crate::support::volume::underseal();
        run(convert.args(["ecryptfs", "convert", "-q", "--header", place]).arg(&lower));
        assert_exports(&scratch);
    }
    for _ in 0..2 {
        assert_done(&ecryptfs(&scratch, "rename-tree", &["lower", "--plain"]));
        assert_eq!(encoded(&lower), 0);
        assert_exports(&scratch);
    }
    assert_done(&ecryptfs(&scratch, "rename-tree", &["lower", "-o", "ecryptfs_enable_filename_crypto"]));
    assert_exports(&scratch);
    assert_eq!(encoded(&lower), fs::read_dir(scratch.path("plain")).unwrap().count());
}

#[test]
fn nothing_that_is_there_is_written_over() {
    let scratch = Scratch::new();
    imported(&scratch, "");
    assert_refused(&ecryptfs(&scratch, "import", &["plain", "lower"]), 2, &["lower", "something in it"]);
    assert_refused(&ecryptfs(&scratch, "export", &["lower", "plain"]), 2, &["plain", "something in it"]);
    scratch.file("there", b"mine");
    assert_refused(&ecryptfs(&scratch, "export", &["lower", "there", "--tar"]), 1, &["there", "exists"]);
    assert_eq!(fs::read(scratch.path("there")).unwrap(), b"mine");
}
