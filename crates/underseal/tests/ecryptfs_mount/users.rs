//! Permissions: root's mounts for all users, users' own mounts, and the setup of ecryptfs-utils.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::process::Command;

use rustix::process::Signal;

use crate::ecryptfs_mount::mounted::{Folder, PASSPHRASE, client, unable, underseal, unmount_stale};
use crate::support::Scratch;
use crate::support::mounts::{skip, with_fuse_mode};
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::{output, run};

/// Two users that own nothing.
const USER: u32 = 61_234;
const OTHER: u32 = 61_235;
/// A user that has a name, which fusermount3 requires.
pub(crate) const NOBODY: u32 = 65_534;
/// A limit of the processes that this user's server may see when it starts a thread.
const PROCESSES: &str = "--nproc=100";

pub(crate) fn as_user(uid: u32, command: &[&str]) -> Command {
    let mut all = client("setpriv");
    let (uid, gid) = (format!("--reuid={uid}"), format!("--regid={uid}"));
    all.args([uid.as_str(), gid.as_str(), "--clear-groups", "--"]).args(command);
    all
}

pub(crate) fn unable_as_root(test: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        skip(test, "acting as other users needs root");
        return true;
    }
    unable(test)
}

#[test]
fn root_s_mount_makes_files_for_whoever_asks() {
    if unable_as_root("root_s_mount_makes_files_for_whoever_asks") {
        return;
    }
    let folder = Folder::new();
    for path in [folder.scratch.folder(), &folder.lower] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mount = folder.mount("");
    fs::create_dir(folder.at("shared")).unwrap();
    fs::set_permissions(folder.at("shared"), fs::Permissions::from_mode(0o1777)).unwrap();
    fs::create_dir(folder.at("group")).unwrap();
    chown(folder.at("group"), Some(USER), Some(4242)).unwrap();
    fs::set_permissions(folder.at("group"), fs::Permissions::from_mode(0o2775)).unwrap();
    let shared = folder.at("shared");
    let script = format!(
        "umask 027; echo mine > {0}/file; mkdir {0}/folder; ln -s x {0}/link; mkfifo {0}/fifo; echo g > {1}/file; mkdir {1}/folder",
        shared.display(),
        folder.at("group").display()
    );
    run(&mut as_user(USER, &["sh", "-c", &script]));
    for (name, mode) in [("file", 0o100_640), ("folder", 0o040_750), ("fifo", 0o010_640)] {
        let below = fs::symlink_metadata(folder.below("shared").join(name)).unwrap();
        assert_eq!((below.uid(), below.gid(), below.mode()), (USER, USER, mode), "{name}");
    }
    let link = fs::symlink_metadata(folder.below("shared/link")).unwrap();
    assert_eq!((link.uid(), link.gid()), (USER, USER));
    let in_group = |name: &str| fs::metadata(folder.below("group").join(name)).unwrap();
    assert_eq!((in_group("file").uid(), in_group("file").gid()), (USER, 4242));
    assert_eq!((in_group("folder").gid(), in_group("folder").mode() & 0o7000), (4242, 0o2000));
    // Another user is kept out by the modes and by the sticky folder.
    for script in ["cat file", "echo x > file", "rm file", "mv file other", "chmod 777 file", "ls folder"] {
        let script = format!("cd {} && {script}", shared.display());
        assert!(!output(&mut as_user(OTHER, &["sh", "-c", &script])).status.success(), "{script}");
    }
    // Root again.
    fs::write(folder.at("shared/root"), b"x").unwrap();
    assert_eq!(fs::metadata(folder.below("shared/root")).unwrap().uid(), 0);
    // A write by another takes set-user-id away.
    fs::set_permissions(folder.at("shared/root"), fs::Permissions::from_mode(0o4777)).unwrap();
    run(&mut as_user(USER, &["sh", "-c", &format!("echo x >> {}/root", shared.display())]));
    assert_eq!(fs::metadata(folder.below("shared/root")).unwrap().mode(), 0o100_777);
    // And so does fallocate(2); root's leaves it.
    for (user, mode) in [(0, 0o104_777), (USER, 0o100_777)] {
        fs::set_permissions(folder.at("shared/root"), fs::Permissions::from_mode(0o4777)).unwrap();
        let root = format!("{}/root", shared.display());
        run(&mut as_user(user, &["fallocate", "--length", "20000", &root]));
        assert_eq!(fs::metadata(folder.below("shared/root")).unwrap().mode(), mode, "{user}");
    }
    // An ACL of an owner who is not of the folder's group takes set-group-id away, as in ext4.
    for (kind, bit) in [("--default", 0o2000), ("--mask", 0)] {
        let group = folder.at("group");
        let group = group.to_str().unwrap();
        run(&mut as_user(USER, &["setfacl", kind, "--modify", "user:4343:rx", group]));
        assert_eq!(fs::metadata(folder.below("group")).unwrap().mode() & 0o7000, bit, "{kind}");
    }
    mount.unmount();
}

#[test]
fn a_user_mounts_what_others_do_not_see() {
    if unable_as_root("a_user_mounts_what_others_do_not_see") {
        return;
    }
    let scratch = Scratch::new();
    let mut own = with_fuse_mode(&scratch, "666");
    own.arg(std::env::current_exe().unwrap()).args([
        "--exact",
        "ecryptfs_mount::users::child_whose_user_mounts",
        "--ignored",
    ]);
    run(&mut own);
}

#[test]
#[ignore = "the child process of the test above, where users may use /dev/fuse"]
fn child_whose_user_mounts() {
    let folder = Folder::new();
    fs::set_permissions(folder.scratch.folder(), fs::Permissions::from_mode(0o777)).unwrap();
    for path in [&folder.lower, &folder.plain, &folder.scratch.path("passphrase")] {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let (lower, plain) = (text(&folder.lower), text(&folder.plain));
    let passphrase = text(&folder.scratch.path("passphrase"));
    let (pid, log) = (text(&folder.scratch.path("pid")), text(&folder.scratch.path("log")));
    // A copy of the binary that the user can run.
    let us = text(&folder.scratch.path("underseal"));
    fs::copy(env!("CARGO_BIN_EXE_underseal"), &us).unwrap();
    let us = us.as_str();
    let mount_by = |before: &[&str], mountpoint: &str, more: &[&str]| {
        let ours = [
            us,
            "ecryptfs",
            "mount",
            &lower,
            mountpoint,
            "--daemon",
            "--passphrase-file",
            &passphrase,
            "--pid-file",
            &pid,
            "--log-file",
            &log,
        ];
        output(&mut as_user(NOBODY, &[before, &ours, more].concat()))
    };
    let mount_on = |mountpoint: &str, more: &[&str]| mount_by(&[], mountpoint, more);
    let mount = |more: &[&str]| mount_on(&plain, more);
    let mounted = mount_by(&["prlimit", PROCESSES], &plain, &[]);
    assert!(mounted.status.success(), "{mounted:?}");
    let script = format!(
        "cd {plain} && umask 022 && echo mine > file && chmod 600 file && mkdir d && mv file d && cat d/file && rm -r d && echo again > file"
    );
    assert_eq!(run(&mut as_user(NOBODY, &["sh", "-c", &script])), "mine\n");
    // A name in a folder that the server may not search is not a lost one.
    let script = format!(
        "cd {plain} && mkdir shut open && echo one > shut/a && ln shut/a open/a && cat shut/a && exec 3< open/a &&
         chmod 0 shut && echo two >> open/a; cat open/a; chmod 700 shut; rm -r shut open"
    );
    assert_eq!(run(&mut as_user(NOBODY, &["sh", "-c", &script])), "one\none\ntwo\n");
    assert!(!output(&mut as_user(OTHER, &["ls", &plain])).status.success(), "another user got in");
    assert_eq!(fs::metadata(folder.below("file")).unwrap().uid(), NOBODY);
    // Keys are where others do not see them.
    let table = fs::read_to_string("/proc/mounts").unwrap();
    assert!(table.contains(&plain) && !table.contains(PASSPHRASE) && !table.contains("sig="));
    let pid_text = fs::read_to_string(folder.scratch.path("pid")).unwrap();
    assert_eq!(fs::metadata(format!("/proc/{}/mem", pid_text.trim())).unwrap().uid(), 0, "it can be dumped");
    pages_without_a_thread_to_drop_them(&lower, &plain);
    run(&mut as_user(NOBODY, &[us, "ecryptfs", "umount", &plain]));
    // Letting others in is up to the administrator.
    let conf = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    if !conf.lines().any(|line| line.trim() == "user_allow_other") {
        let refused = mount(&["-o", "allow_other"]);
        assert!(!refused.status.success());
        assert!(String::from_utf8_lossy(&refused.stderr).contains("user_allow_other"), "{refused:?}");
    }
    unmount_stale(&folder.plain);
    // Over the lower folder itself, in the sandbox. The server of the mount before still ends.
    let mut mounted = None;
    wait_until("it is mounted over itself", PATIENCE, || {
        let ran = mount_on(&lower, &[]);
        let is_busy = ran.status.code() == Some(4);
        mounted = Some(ran);
        !is_busy
    });
    let mounted = mounted.unwrap();
    assert!(mounted.status.success(), "{mounted:?}");
    let script = format!("cd {lower} && cat file && echo more > new && mv new file && cat file");
    let ran = output(&mut as_user(NOBODY, &["sh", "-c", &script]));
    run(&mut as_user(NOBODY, &[us, "ecryptfs", "umount", &lower]));
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "again\nmore\n", "{ran:?}\n{}", folder.log());
}

#[test]
fn the_private_folder_of_ecryptfs_utils_is_mounted() {
    if unable("the_private_folder_of_ecryptfs_utils_is_mounted") {
        return;
    }
    let folder = Folder::new();
    let home = folder.scratch.folder().to_owned();
    for name in [".ecryptfs", ".Private", "Private"] {
        fs::create_dir(home.join(name)).unwrap();
    }
    // The login's passphrase "login", over the mount's passphrase "test": as
    // ecryptfs-wrap-passphrase does it, version 1.
    let wrapping =
        underseal_ecryptfs::wrapped::wrap(&underseal_cipher::Key::new(b"test").unwrap(), b"login").unwrap();
    fs::write(home.join(".ecryptfs/wrapped-passphrase"), wrapping).unwrap();
    fs::write(home.join(".ecryptfs/Private.sig"), "d395309aaad4de06\nbe877764c5918621\n").unwrap();
    fs::write(home.join(".ecryptfs/Private.mnt"), home.join("Private").to_str().unwrap()).unwrap();
    folder.scratch.file("login", b"login\n");
    folder.scratch.file("wrong", b"logout\n");
    let command = |name: &str| {
        let mut command = underseal();
        command.args(["ecryptfs", "mount-private", "--daemon", "--home"]).arg(&home);
        command.arg("--log-file").arg(home.join("log")).arg("--passphrase-file").arg(home.join(name));
        command
    };
    assert_eq!(output(&mut command("wrong")).status.code(), Some(3));
    run(&mut command("login"));
    fs::write(home.join("Private/secret.txt"), b"private").unwrap();
    let lower: Vec<_> =
        fs::read_dir(home.join(".Private")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(lower.len() == 1 && lower[0].to_str().unwrap().starts_with("ECRYPTFS_FNEK_ENCRYPTED."));
    run(underseal().args(["ecryptfs", "umount"]).arg(home.join("Private")));
    assert_eq!(fs::read_dir(home.join("Private")).unwrap().count(), 0);
    // The mount's passphrase opens it, too.
    fs::remove_dir(&folder.lower).unwrap();
    fs::rename(home.join(".Private"), &folder.lower).unwrap();
    folder.scratch.file("passphrase", b"test");
    let mount = folder.mount("ecryptfs_sig=d395309aaad4de06,ecryptfs_fnek_sig=be877764c5918621");
    assert_eq!(fs::read(folder.at("secret.txt")).unwrap(), b"private");
    mount.unmount();
}

#[test]
fn a_signal_unmounts_once_nobody_has_files_open() {
    if unable("a_signal_unmounts_once_nobody_has_files_open") {
        return;
    }
    let folder = Folder::new();
    let mut mount = folder.mount("");
    let file = fs::File::create(folder.at("file")).unwrap();
    mount.signal(Signal::TERM);
    wait_until("it is out of sight", PATIENCE, || !folder.at("file").exists());
    std::io::Write::write_all(&mut &file, b"to the end").unwrap();
    drop(file);
    mount.wait();
    let mount = folder.mount("");
    assert_eq!(fs::read(folder.at("file")).unwrap(), b"to the end");
    mount.unmount();
}

/// Maps a file shared, and prints why it cannot.
const MAP: &str = r#"
import errno, mmap, os, sys
try:
    mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 4096)
except OSError as e:
    print(errno.errorcode[e.errno])
"#;

/// A file that another program changes while the server's user may have no more threads is opened
/// past the kernel's pages, which stay wrong until they can be dropped.
fn pages_without_a_thread_to_drop_them(lower: &str, plain: &str) {
    let does = |script: &str| run(&mut as_user(NOBODY, &["sh", "-ec", script]));
    let fill = |letter: char| format!("head -c 262144 /dev/zero | tr '\\0' {letter}");
    let (a, b) = (fill('A'), fill('B'));
    does(&format!(
        "{a} > {plain}/changed; {b} > {plain}/other; sleep 1.2; cat {plain}/changed > {plain}/copy"
    ));
    does(&format!("cat {lower}/other > {lower}/changed"));
    let sleep = "for _ in $(seq 100); do sleep 60 > /dev/null 2>&1 & others=\"$others $!\"; done";
    let write = format!("printf C | dd of={plain}/changed bs=1 seek=245760 conv=notrunc status=none");
    // Written back, a shared mapping would undo writes past the kernel's pages.
    let map = format!("/usr/bin/python3 -c '{MAP}' {plain}/changed");
    assert_eq!(does(&format!("{sleep}; {write}; {map}; kill $others")), "ENODEV\n");
    assert_eq!(does(&format!("head -c 2 {plain}/changed")), "BB", "pages of before");
    assert_eq!(does(&format!("tail -c +245760 {plain}/changed | head -c 3")), "BCB");
    does(&format!("rm {plain}/changed {plain}/other {plain}/copy"));
}
