//! A lower tree has one writer: during a mount, a second mount and the tools are refused. Where the
//! roots of both differ, a tool is refused for files that are open in the mount.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Output;

use rustix::fs::{FlockOperation, XattrFlags, flock, getxattr, setxattr};
use rustix::io::Errno;
use underseal_ecryptfs::{AuthToken, FileHeader, Keyring, XATTR};

use crate::ecryptfs_mount::mounted::{Folder, PASSPHRASE, unable, underseal};
use crate::support::output;
use crate::support::tools::{PATIENCE, wait_until};

const XATTRS: &str = "ecryptfs_xattr_metadata";
/// The key of the tests' passphrase.
fn signature() -> String {
    AuthToken::from_passphrase(PASSPHRASE.as_bytes(), AuthToken::DEFAULT_SALT)
        .unwrap()
        .signature()
        .to_string()
}

fn tool(folder: &Folder, verb: &str, lower: &Path, args: &[&str]) -> Output {
    let mut command = underseal();
    command.current_dir(folder.scratch.folder()).args(["ecryptfs", verb]).args(args).arg(lower);
    if verb != "convert" {
        command.args(["--passphrase-file", "passphrase"]);
    }
    output(&mut command)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
fn assert_in_use(output: &Output) {
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(said(output).contains("in use by underseal (process "), "{output:?}");
}

/// Waits until the mount has heard that a file was closed.
fn until_free(lower: &Path) {
    wait_until("the file is free", PATIENCE, || {
        flock(File::open(lower).unwrap(), FlockOperation::NonBlockingLockExclusive).is_ok()
    });
}

/// Another mount of the same lower folder, or of one in it.
fn another(lower: &Path) -> Folder {
    let mut folder = Folder::new();
    folder.lower = lower.into();
    folder
}

#[test]
fn a_second_mount_is_refused_but_readers_go_together() {
    if unable("a_second_mount_is_refused_but_readers_go_together") {
        return;
    }
    let folder = Folder::new();
    let second = another(&folder.lower);
    let mount = folder.mount("");
    fs::write(folder.at("file"), b"first").unwrap();
    assert_in_use(&second.refused("", &["passphrase"]));
    assert_in_use(&second.refused("ro", &["passphrase"]));
    mount.unmount();
    let readers = [folder.mount("ro"), second.mount("ro")];
    assert_eq!(fs::read(second.at("file")).unwrap(), b"first");
    assert_in_use(&another(&folder.lower).refused("", &["passphrase"]));
    for mount in readers {
        mount.unmount();
    }
    second.mount("").unmount();
}

#[test]
fn tools_that_write_leave_a_mounted_tree_alone() {
    if unable("tools_that_write_leave_a_mounted_tree_alone") {
        return;
    }
    for options in ["", XATTRS] {
        let folder = Folder::new();
        folder.scratch.file("new", b"another one\n");
        let mount = folder.mount(options);
        let mut file = File::create(folder.at("file")).unwrap();
        file.write_all(&[b'A'; 10_000]).unwrap();
        let new = ["--new-passphrase-file", "new"];
        let place = if options.is_empty() { "xattr" } else { "file" };
        let tried: [(&str, &[&str]); 5] = [
            ("rewrap", &new),
            ("add-key", &new),
            ("convert", &["--header", place]),
            ("rename-tree", &["--plain"]),
            ("rename-tree", &["-o", "ecryptfs_enable_filename_crypto"]),
        ];
        for (verb, args) in tried {
            assert_in_use(&tool(&folder, verb, &folder.lower, args));
        }
        let mut remove = underseal();
        remove.current_dir(folder.scratch.folder()).args(["ecryptfs", "remove-key"]).arg(&folder.lower);
        assert_in_use(&output(remove.arg(signature()).args(["--passphrase-file", "passphrase"])));
        file.write_all(&[b'B'; 10_000]).unwrap();
        file.sync_all().unwrap();
        drop(file);
        mount.unmount();
        let mount = folder.mount(options);
        let found = fs::read(folder.at("file")).unwrap();
        assert!(found.len() == 20_000 && found[9_999] == b'A' && found[10_000] == b'B');
        mount.unmount();
        assert!(tool(&folder, "rewrap", &folder.lower, &new).status.success());
    }
}

#[test]
fn an_import_into_a_mounted_folder_is_refused() {
    if unable("an_import_into_a_mounted_folder_is_refused") {
        return;
    }
    let folder = Folder::new();
    fs::create_dir(folder.scratch.path("photos")).unwrap();
    fs::write(folder.scratch.path("photos/one"), b"x").unwrap();
    let mount = folder.mount("");
    assert_in_use(&tool(&folder, "import", &folder.lower, &["photos"]));
    assert_eq!(fs::read_dir(&folder.plain).unwrap().count(), 0);
    mount.unmount();
}

#[test]
fn a_tool_below_the_root_changes_no_file_that_is_open() {
    if unable("a_tool_below_the_root_changes_no_file_that_is_open") {
        return;
    }
    for options in ["", XATTRS] {
        let folder = Folder::new();
        folder.scratch.file("new", b"another one\n");
        let new = ["--new-passphrase-file", "new"];
        let mount = folder.mount(options);
        fs::create_dir(folder.at("in")).unwrap();
        let mut file = File::create(folder.at("in/file")).unwrap();
        file.write_all(&[b'A'; 10_000]).unwrap();
        let place = if options.is_empty() { "xattr" } else { "file" };
        for lower in [folder.below("in"), folder.below("in/file")] {
            assert_in_use(&tool(&folder, "add-key", &lower, &new));
            assert_in_use(&tool(&folder, "convert", &lower, &["--header", place]));
        }
        // A file that is open for reading is in use as well: the mount's copy of its header would
        // be stale.
        drop(file);
        let mut file = File::open(folder.at("in/file")).unwrap();
        assert_in_use(&tool(&folder, "add-key", &folder.below("in"), &new));
        std::io::Read::read_exact(&mut file, &mut [0; 100]).unwrap();
        drop(file);
        until_free(&folder.below("in/file"));
        // The file is closed: the key is added, and later writes of the mount leave it there.
        let added = tool(&folder, "add-key", &folder.below("in"), &new);
        assert!(added.status.success(), "{added:?}");
        let mut file = File::options().append(true).open(folder.at("in/file")).unwrap();
        file.write_all(&[b'B'; 10_000]).unwrap();
        drop(file);
        mount.unmount();
        for passphrase in ["passphrase", "new"] {
            let mount = folder.mount_with(options, &[passphrase]);
            let found = fs::read(folder.at("in/file")).unwrap();
            assert!(found.len() == 20_000 && found[9_999] == b'A' && found[10_000] == b'B', "{passphrase}");
            mount.unmount();
        }
    }
}

#[test]
fn a_file_that_a_tool_has_replaced_is_looked_up_again() {
    if unable("a_file_that_a_tool_has_replaced_is_looked_up_again") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount(XATTRS);
    fs::create_dir(folder.at("in")).unwrap();
    fs::write(folder.at("in/file"), [b'A'; 10_000]).unwrap();
    fs::hard_link(folder.at("in/file"), folder.at("in/other")).unwrap();
    until_free(&folder.below("in/file"));
    let converted = tool(&folder, "convert", &folder.below("in"), &["--header", "file"]);
    assert!(converted.status.success(), "{converted:?}");
    // The kernel knows the name for a second, and the lower file that it led to.
    let mut file = File::options().append(true).open(folder.at("in/file")).unwrap();
    file.write_all(&[b'B'; 10_000]).unwrap();
    file.sync_all().unwrap();
    drop(file);
    mount.unmount();
    let mount = folder.mount(XATTRS);
    for name in ["in/file", "in/other"] {
        assert_eq!(fs::read(folder.at(name)).unwrap().len(), 20_000, "{name}");
    }
    mount.unmount();
}

#[test]
fn a_file_is_written_through_one_mount_at_a_time() {
    if unable("a_file_is_written_through_one_mount_at_a_time") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    fs::create_dir(folder.at("in")).unwrap();
    fs::write(folder.at("in/file"), [b'0'; 100]).unwrap();
    let inner = another(&folder.below("in"));
    let second = inner.mount("");
    let mut first = File::options().append(true).open(folder.at("in/file")).unwrap();
    first.write_all(&[b'A'; 9_000]).unwrap();
    let refused = File::options().append(true).open(inner.at("file")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::BUSY.raw_os_error()));
    first.sync_all().unwrap();
    drop(first);
    until_free(&folder.below("in/file"));
    File::options().append(true).open(inner.at("file")).unwrap().write_all(&[b'B'; 100]).unwrap();
    second.unmount_after_errors();
    mount.unmount_after_errors();
    let mount = folder.mount("");
    assert_eq!(fs::read(folder.at("in/file")).unwrap().len(), 9_200);
    mount.unmount();
}

#[test]
fn a_size_leaves_keys_alone_that_were_added_without_a_lock() {
    if unable("a_size_leaves_keys_alone_that_were_added_without_a_lock") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount(XATTRS);
    let mut file = File::create(folder.at("file")).unwrap();
    file.write_all(&[b'A'; 100]).unwrap();
    // The header changes as an older version would change it, without a lock.
    let token = |text: &str| AuthToken::from_passphrase(text.as_bytes(), AuthToken::DEFAULT_SALT).unwrap();
    let read = || {
        let mut value = vec![0; 4096];
        let len = getxattr(folder.below("file"), XATTR, &mut value[..]).unwrap();
        FileHeader::read_xattr(&value[..len]).unwrap()
    };
    let mut header = read();
    let key = header.unlock(&Keyring::from(token(PASSPHRASE))).unwrap();
    header.add(&key, &token("another one")).unwrap();
    setxattr(folder.below("file"), XATTR, &header.to_xattr(), XattrFlags::REPLACE).unwrap();
    file.write_all_at(&[b'B'; 100], 100).unwrap();
    drop(file);
    mount.unmount();
    let header = read();
    assert_eq!((header.size(), header.packets().len()), (200, 2));
    header.unlock(&Keyring::from(token("another one"))).unwrap();
}

#[test]
fn files_opened_and_closed_by_many_are_never_in_each_others_way() {
    if unable("files_opened_and_closed_by_many_are_never_in_each_others_way") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    fs::write(folder.at("file"), [0; 5000]).unwrap();
    std::thread::scope(|scope| {
        for n in 0..4u8 {
            let folder = &folder;
            scope.spawn(move || {
                for _ in 0..300 {
                    let write = n % 2 == 0;
                    let file = File::options().read(true).write(write).open(folder.at("file")).unwrap();
                    if write {
                        file.write_all_at(&[n], u64::from(n)).unwrap();
                    }
                    file.read_exact_at(&mut [0], 4999).unwrap();
                }
            });
        }
    });
    mount.unmount();
}
