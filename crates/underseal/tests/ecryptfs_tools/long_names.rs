//! Names of 144 to 255 bytes.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

use crate::ecryptfs_kernel::tree;
use crate::ecryptfs_tools::{assert_done, assert_exports, assert_refused, ecryptfs};
use crate::support::volume::underseal;
use crate::support::{Scratch, output};

const OPTIONS: &str = "ecryptfs_enable_filename_crypto,long_names";

fn imported(scratch: &Scratch) {
    scratch.file("pass", b"the test's passphrase\n");
    let plain = scratch.path("plain");
    fs::create_dir(&plain).unwrap();
    tree::make(&plain, 5);
    fs::create_dir(plain.join("d".repeat(144))).unwrap();
    fs::write(plain.join("d".repeat(144)).join("f".repeat(255)), b"long").unwrap();
    symlink("anywhere", plain.join("l".repeat(200))).unwrap();
    fs::hard_link(plain.join("file15"), plain.join("h".repeat(200))).unwrap();
    assert_done(&ecryptfs(scratch, "import", &["plain", "lower", "-o", OPTIONS]));
}

/// Long lower names and the files beside them, in the first folder.
fn count(scratch: &Scratch) -> usize {
    let names = fs::read_dir(scratch.path("lower")).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_str().is_some_and(|name| name.starts_with("UNDERSEAL_LONG_NAME."))).count()
}

#[test]
fn long_names_go_in_and_out_and_are_listed() {
    let scratch = Scratch::new();
    imported(&scratch);
    assert_eq!(count(&scratch), 6);
    assert_exports(&scratch);
    assert_done(&ecryptfs(&scratch, "check", &["lower"]));
    let (folder, file) = ("d".repeat(144), "f".repeat(255));
    let listed = ecryptfs(&scratch, "ls", &["lower"]);
    assert_done(&listed);
    assert!(String::from_utf8_lossy(&listed.stdout).contains(&format!("{folder}/{file}\n")));
    let cat = ecryptfs(&scratch, "cat", &["lower", &format!("{folder}/{file}")]);
    assert_eq!(cat.stdout, b"long");
    let info = output(underseal().current_dir(scratch.folder()).args(["ecryptfs", "info", "lower"]));
    let info = String::from_utf8(info.stdout).unwrap();
    assert!(info.contains("Long names:  4") && info.contains(",long_names"), "{info}");
    let encoded = ecryptfs(&scratch, "name", &["--encode", &folder, "-o", OPTIONS]);
    assert_done(&encoded);
    let lower = String::from_utf8(encoded.stdout).unwrap();
    assert!(scratch.path("lower").join(lower.trim()).is_dir());
    assert_refused(&ecryptfs(&scratch, "name", &[lower.trim()]), 5, &["a long name's digest"]);
    let held = fs::read_to_string(scratch.path("lower").join(format!("{}.name", lower.trim()))).unwrap();
    assert_eq!(ecryptfs(&scratch, "name", &[&held]).stdout, format!("{folder}\n").as_bytes());
}

#[test]
fn long_names_get_another_key_and_become_plain() {
    let scratch = Scratch::new();
    imported(&scratch);
    assert_done(&ecryptfs(&scratch, "rename-tree", &["lower", "--plain"]));
    assert_eq!(count(&scratch), 0);
    assert_exports(&scratch);
    let short = ["lower", "-o", "ecryptfs_enable_filename_crypto"];
    assert_refused(&ecryptfs(&scratch, "rename-tree", &short), 7, &["144 bytes", "143"]);
    for _ in 0..2 {
        assert_done(&ecryptfs(&scratch, "rename-tree", &["lower", "-o", OPTIONS]));
        assert_eq!(count(&scratch), 6);
        assert_exports(&scratch);
    }
    let other =
        "ecryptfs_enable_filename_crypto,long_names,ecryptfs_fn_cipher=twofish,ecryptfs_fn_key_bytes=32";
    assert_done(&ecryptfs(&scratch, "rename-tree", &["lower", "-o", other]));
    assert_eq!(count(&scratch), 6);
    assert_exports(&scratch);
    let convert = ["ecryptfs", "convert", "-q", "lower", "--header", "xattr"];
    assert_done(&output(underseal().current_dir(scratch.folder()).args(convert)));
    assert_exports(&scratch);
}

#[test]
fn what_is_left_over_or_lost_is_told_of() {
    let scratch = Scratch::new();
    imported(&scratch);
    let encode = |name: String| {
        let encoded = ecryptfs(&scratch, "name", &["--encode", &name, "-o", OPTIONS]);
        scratch.path("lower").join(String::from_utf8(encoded.stdout).unwrap().trim())
    };
    let (link, folder) = (encode("l".repeat(200)), encode("d".repeat(144)));
    fs::remove_file(&link).unwrap();
    let mut check = underseal();
    check.current_dir(scratch.folder()).args(["ecryptfs", "check", "lower", "--passphrase-file", "pass"]);
    let left_over = output(&mut check);
    assert_done(&left_over);
    let said = String::from_utf8(left_over.stderr).unwrap();
    let name = link.file_name().unwrap().to_str().unwrap();
    assert!(said.contains(&format!("{name}.name: it holds the name of nothing")), "{said}");
    // The `.name` file has another entry's form, a part of it, or nothing; then it is endless.
    let beside = folder.with_extension(format!("{}.name", folder.extension().unwrap().to_str().unwrap()));
    let held = fs::read(&beside).unwrap();
    let other =
        fs::read(link.with_extension(format!("{}.name", link.extension().unwrap().to_str().unwrap())));
    for damage in [&other.unwrap()[..], &held[..40], b""] {
        fs::write(&beside, damage).unwrap();
        let name = folder.file_name().unwrap().to_str().unwrap();
        assert_refused(
            &ecryptfs(&scratch, "export", &["lower", "back"]),
            7,
            &[name, "another one, or a part"],
        );
        fs::remove_dir_all(scratch.path("back")).unwrap();
    }
    fs::remove_file(&beside).unwrap();
    assert_refused(&ecryptfs(&scratch, "check", &["lower"]), 7, &["the file beside it"]);
    symlink("/dev/zero", &beside).unwrap();
    assert_refused(&ecryptfs(&scratch, "check", &["lower"]), 7, &["the file beside it"]);
}

/// The tree's owner may have put another file's hard link where a long name's file belongs.
#[test]
fn a_name_file_is_a_new_one_and_as_readable_as_its_entry() {
    let scratch = Scratch::new();
    scratch.file("pass", b"the test's passphrase\n");
    let lower = scratch.path("lower");
    fs::create_dir(&lower).unwrap();
    let name = "n".repeat(200);
    fs::write(lower.join(&name), b"contents").unwrap();
    let mine = scratch.file("mine", b"data of another user");
    let encoded = ecryptfs(&scratch, "name", &["--encode", &name, "-o", OPTIONS]);
    assert_done(&encoded);
    let beside = format!("{}.name", String::from_utf8(encoded.stdout).unwrap().trim());
    fs::hard_link(&mine, lower.join(&beside)).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        std::os::unix::fs::chown(lower.join(&name), Some(61_234), Some(61_235)).unwrap();
    }
    let mut rename = crate::support::tool("sh");
    rename.current_dir(scratch.folder()).args(["-c", "umask 077; exec \"$@\"", "sh"]);
    rename.arg(env!("CARGO_BIN_EXE_underseal")).args(["ecryptfs", "rename-tree", "-q", "lower"]);
    assert_done(&output(rename.args(["-o", OPTIONS, "--passphrase-file", "pass"])));
    assert_eq!(fs::read(&mine).unwrap(), b"data of another user");
    let about = fs::metadata(lower.join(&beside)).unwrap();
    assert_eq!((about.nlink(), about.mode() & 0o777), (1, 0o644));
    if is_root {
        assert_eq!((about.uid(), about.gid()), (61_234, 61_235));
    }
    let listed = ecryptfs(&scratch, "ls", &["lower"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains(&name));
}
