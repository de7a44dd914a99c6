//! Keys that are missing, files that are damaged, lower folders that change or are full: errors for
//! the files concerned, with their lower paths in the log, and nothing else.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;

use rustix::io::Errno;

use crate::ecryptfs_mount::mounted::{Folder, client, unable};
use crate::support::bytes;
use crate::support::mounts::{cannot_mount, skip};
use crate::support::run;
use crate::support::tools::{PATIENCE, within};

fn errno(path: &Path) -> Option<i32> {
    fs::read(path).err().and_then(|e| e.raw_os_error())
}

const IO: Option<i32> = Some(Errno::IO.raw_os_error());

#[test]
fn without_its_key_a_file_has_a_size_and_does_not_open() {
    if unable("without_its_key_a_file_has_a_size_and_does_not_open") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    fs::write(folder.at("file"), vec![7; 5000]).unwrap();
    mount.unmount();
    folder.scratch.file("wrong", b"not this one");
    let wrong = underseal_ecryptfs::AuthToken::from_passphrase(
        b"not this one",
        underseal_ecryptfs::AuthToken::DEFAULT_SALT,
    );
    let meant = format!("ecryptfs_sig={}", wrong.unwrap().signature());
    let mount = folder.mount_with(&meant, &["wrong"]);
    assert_eq!(fs::metadata(folder.at("file")).unwrap().len(), 5000);
    assert_eq!(errno(&folder.at("file")), IO);
    fs::write(folder.at("mine"), b"of the other key").unwrap();
    fs::rename(folder.at("file"), folder.at("moved")).unwrap();
    let log = mount.unmount_after_errors();
    assert!(log.contains("/lower/file: open: none of the keys at hand"), "{log}");
    let mount = folder.mount("");
    assert_eq!(fs::read(folder.at("moved")).unwrap(), vec![7; 5000]);
    assert_eq!(errno(&folder.at("mine")), IO);
    mount.unmount_after_errors();
}

#[test]
fn what_is_missing_is_an_error_or_zeros() {
    if unable("what_is_missing_is_an_error_or_zeros") {
        return;
    }
    let folder = Folder::new();
    let data = bytes(11, 5 * 4096);
    let mount = folder.mount("");
    for name in ["zeroed", "cut", "header", "whole"] {
        fs::write(folder.at(name), &data).unwrap();
    }
    mount.unmount();
    let open = |name: &str| File::options().write(true).open(folder.below(name)).unwrap();
    open("zeroed").write_all_at(&[0; 4096], 8192 + 2 * 4096).unwrap();
    open("cut").set_len(8192 + 3 * 4096).unwrap();
    open("header").write_all_at(&[0xff; 100], 8).unwrap();

    let mount = folder.mount("");
    for name in ["zeroed", "cut", "header"] {
        assert_eq!(errno(&folder.at(name)), IO, "{name}");
    }
    // Intact extents are readable.
    let mut extent = vec![0; 4096];
    File::open(folder.at("cut")).unwrap().read_exact_at(&mut extent, 0).unwrap();
    assert!(extent == data[..4096]);
    assert_eq!(fs::read(folder.at("whole")).unwrap(), data);
    let log = mount.unmount_after_errors();
    for told in [
        "/lower/zeroed: read: extent 2 is missing",
        "/lower/cut: read: the file is cut off at extent 3",
        "/lower/header: open: ",
    ] {
        assert!(log.contains(told), "{told:?} is not in\n{log}");
    }

    let mount = folder.mount("no_strict");
    let mut expected = data.clone();
    expected[2 * 4096..3 * 4096].fill(0);
    assert!(fs::read(folder.at("zeroed")).unwrap() == expected);
    let mut expected = data;
    expected[3 * 4096..].fill(0);
    assert!(fs::read(folder.at("cut")).unwrap() == expected);
    mount.unmount_after_errors();
}

#[test]
fn one_damaged_file_does_not_fill_the_log() {
    if unable("one_damaged_file_does_not_fill_the_log") {
        return;
    }
    let folder = Folder::new();
    fs::write(folder.below("damaged"), [0xff; 9000]).unwrap();
    let mount = folder.mount("");
    for _ in 0..50 {
        assert_eq!(errno(&folder.at("damaged")), IO);
    }
    let log = mount.unmount_after_errors();
    assert_eq!(log.matches("/lower/damaged: open: ").count(), 20, "{log}");
}

#[test]
fn a_lower_folder_may_change_underneath() {
    if unable("a_lower_folder_may_change_underneath") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    for name in ["removed", "replaced", "kept"] {
        fs::write(folder.at(name), name).unwrap();
    }
    fs::create_dir(folder.at("folder")).unwrap();
    fs::write(folder.at("folder/inside"), b"inside").unwrap();
    fs::remove_file(folder.below("removed")).unwrap();
    fs::copy(folder.below("kept"), folder.below("new")).unwrap();
    fs::rename(folder.below("new"), folder.below("replaced")).unwrap();
    fs::rename(folder.below("folder"), folder.below("elsewhere")).unwrap();
    // The kernel caches names and attributes for a second.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(fs::read(folder.at("removed")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    assert_eq!(fs::read(folder.at("replaced")).unwrap(), b"kept");
    assert_eq!(fs::read(folder.at("elsewhere/inside")).unwrap(), b"inside");
    assert_eq!(fs::read(folder.at("kept")).unwrap(), b"kept");
    mount.unmount();
}

#[test]
fn a_full_lower_filesystem_says_so_and_files_stay_whole() {
    let test = "a_full_lower_filesystem_says_so_and_files_stay_whole";
    if let Some(reason) = cannot_mount() {
        return skip(test, reason);
    }
    let folder = Folder::new();
    run(client("mount").args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"]).arg(&folder.lower));
    let _gone = Lower(&folder.lower);
    let mount = folder.mount("");
    let first = bytes(1, 1_000_000);
    fs::write(folder.at("first"), &first).unwrap();
    let full = fs::write(folder.at("second"), bytes(2, 8_000_000)).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    assert_eq!(fs::read(folder.at("first")).unwrap(), first);
    // Acknowledged bytes of the second file are there.
    let second = fs::read(folder.at("second")).unwrap();
    assert!(second == bytes(2, 8_000_000)[..second.len()] && second.len() > 1_000_000, "{}", second.len());
    let grown = File::options().write(true).open(folder.at("first")).unwrap().set_len(1 << 40).unwrap_err();
    assert_eq!(grown.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    assert_eq!(fs::read(folder.at("first")).unwrap(), first, "it did not grow");
    assert!(fs::write(folder.at("third"), b"no room even for a header").is_err());
    assert!(!folder.at("third").exists(), "a file that would not open is not left behind");
    fs::remove_file(folder.at("second")).unwrap();
    // A file's space is free when the server has closed it too, which the kernel asks for some time
    // after the last close.
    assert!(within(PATIENCE, || fs::write(folder.at("third"), b"now there is").is_ok()));
    let log = mount.unmount_after_errors();
    assert!(log.contains("/lower/second: write: "), "{log}");

    run(client("mount").args(["-o", "remount,ro"]).arg(&folder.lower));
    let mount = folder.mount("");
    assert_eq!(fs::read(folder.at("third")).unwrap(), b"now there is");
    let refused = fs::write(folder.at("third"), b"x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::ROFS.raw_os_error()));
    mount.unmount_after_errors();
}

/// A lower filesystem of a test's own.
struct Lower<'a>(&'a Path);

impl Drop for Lower<'_> {
    fn drop(&mut self) {
        let _ = client("umount").arg("-l").arg(self.0).output();
    }
}

/// Another program's lease on the lower file, as Samba takes them.
#[test]
fn a_file_that_cannot_be_opened_for_a_moment_has_no_wrong_size() {
    if unable("a_file_that_cannot_be_opened_for_a_moment_has_no_wrong_size") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    fs::write(folder.at("file"), "0123456789").unwrap();
    mount.unmount();
    let mount = folder.mount("");
    let script = "import fcntl, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = open(sys.argv[1])
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print(flush=True)
sys.stdin.read()";
    let mut holder = client("python3");
    holder.args(["-c", script]).arg(folder.below("file")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = holder.spawn().unwrap();
    holder.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let leased = fs::metadata(folder.at("file")).map(|file| file.len());
    assert_eq!(leased.map_err(|e| e.kind()), Err(ErrorKind::WouldBlock));
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    assert_eq!(fs::metadata(folder.at("file")).unwrap().len(), 10);
    assert_eq!(fs::read(folder.at("file")).unwrap(), b"0123456789");
    mount.unmount();
}
