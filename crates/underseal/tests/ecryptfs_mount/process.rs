//! Resources that the process of a mount holds and releases, and resources that it leaves alone.

use std::fs::{self, File};
use std::os::unix::fs::{chown, lchown, symlink};
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use crate::ecryptfs_mount::mounted::{Folder, unable, underseal, unmount_stale};
use crate::support::mounts::{Mount, cannot_fuse_over_io_uring, cannot_mount, skip};
use crate::support::output;
use crate::support::tools::{PATIENCE, children, wait_until, within};

#[test]
fn no_thread_stays_in_the_folder_it_was_started_from() {
    if unable("no_thread_stays_in_the_folder_it_was_started_from") {
        return;
    }
    let folder = Folder::new();
    let here = folder.scratch.path("here");
    fs::create_dir(&here).unwrap();
    // In the foreground the main thread stays in the folder, and the serving threads leave it.
    let mut command = underseal();
    command.current_dir(&here).args(["ecryptfs", "mount", "../lower", "../plain"]);
    let mut server = command.args(["--passphrase-file", "../passphrase"]).spawn().unwrap();
    let task = format!("/proc/{}/task", server.id());
    let mut left = Vec::new();
    let all_left = within(PATIENCE, || {
        left = fs::read_dir(&task).unwrap().flatten().map(|task| task.path()).collect();
        left.retain(|task| {
            fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("ecryptfs-"))
        });
        // Two threads take requests, eight do long operations; and one takes requests that do not
        // come through io_uring.
        left.len() == if cannot_fuse_over_io_uring().is_none() { 11 } else { 10 }
            && left.iter().all(|task| fs::read_link(task.join("cwd")).is_ok_and(|cwd| cwd == Path::new("/")))
    });
    unmount(&folder);
    let ended = server.wait().unwrap();
    assert!(all_left && ended.success(), "{left:?}");
}

fn unmount(folder: &Folder) {
    wait_until("it is unmounted", PATIENCE, || {
        output(underseal().args(["ecryptfs", "umount"]).arg(&folder.plain)).status.success()
    });
}

#[test]
fn a_second_signal_ends_it_and_its_number_goes() {
    if unable("a_second_signal_ends_it_and_its_number_goes") {
        return;
    }
    let folder = Folder::new();
    let mut mount = folder.mount("");
    let file = File::create(folder.at("file")).unwrap();
    mount.signal(Signal::TERM);
    wait_until("it is out of sight", PATIENCE, || !folder.at("file").exists());
    assert!(folder.scratch.path("pid").exists(), "it still serves the file that is open");
    mount.signal(Signal::TERM);
    mount.wait();
    assert!(!folder.scratch.path("pid").exists());
    drop(file);
}

#[test]
fn a_signal_after_the_helper_was_killed_leaves_no_dead_mount() {
    if unable("a_signal_after_the_helper_was_killed_leaves_no_dead_mount") {
        return;
    }
    let folder = Folder::new();
    for is_ended_by_signal in [false, true] {
        let mut mount = folder.mount("");
        let helper = children(mount.pid().as_raw_nonzero().get().cast_unsigned());
        let [helper] = helper[..] else { panic!("{helper:?}") };
        kill_process(Pid::from_raw(helper).unwrap(), Signal::KILL).unwrap();
        let before = folder.log().len();
        mount.signal(Signal::TERM);
        wait_until("it says why it stays", PATIENCE, || {
            folder.log()[before..].contains("cannot be unmounted")
        });
        fs::write(folder.at("file"), b"served").unwrap();
        assert_eq!(fs::read(folder.at("file")).unwrap(), b"served");
        if is_ended_by_signal {
            mount.signal(Signal::TERM);
            mount.wait();
            unmount_stale(&folder.plain);
        } else {
            mount.unmount_after_errors();
        }
    }
}

#[test]
fn a_connection_that_is_aborted_is_an_error_and_leaves_no_mount() {
    let test = "a_connection_that_is_aborted_is_an_error_and_leaves_no_mount";
    if let Some(reason) = cannot_mount() {
        return skip(test, reason);
    }
    let folder = Folder::new();
    let mut mount = folder.mount("");
    let file = File::create(folder.at("file")).unwrap();
    // `umount --force` aborts the connection, and leaves a mount that is in use.
    let refused = rustix::mount::unmount(&folder.plain, rustix::mount::UnmountFlags::FORCE).unwrap_err();
    assert_eq!(refused, rustix::io::Errno::BUSY);
    mount.wait();
    let log = folder.log();
    assert!(log.contains("was aborted, and it is unmounted now"), "{log}");
    assert!(fs::read_dir(&folder.plain).unwrap().next().is_none(), "a dead mount is there still");
    drop(file);
}

#[test]
fn a_limit_of_files_sizes_is_an_error_to_who_writes() {
    if unable("a_limit_of_files_sizes_is_an_error_to_who_writes") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount_under("ulimit -f 1000");
    let refused = fs::write(folder.at("large"), vec![7; 4 << 20]).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EFBIG), "{refused}");
    fs::write(folder.at("small"), b"not lost").unwrap();
    assert_eq!(fs::read(folder.at("small")).unwrap(), b"not lost");
    mount.unmount_after_errors();
}

#[test]
fn only_mounts_of_this_kind_are_unmounted() {
    let test = "only_mounts_of_this_kind_are_unmounted";
    if let Some(reason) = cannot_mount() {
        return skip(test, reason);
    }
    let folder = Folder::new();
    let umount = |path: &Path, more: &[&str]| {
        output(
            underseal()
                .current_dir(folder.scratch.folder())
                .args(["ecryptfs", "umount"])
                .args(more)
                .arg(path),
        )
    };
    let said = |output: &std::process::Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let other = Mount::tmpfs(&folder.scratch.path("a b\\c"), 1 << 20);
    fs::write(other.directory().join("file"), b"x").unwrap();
    for more in [&[][..], &["--lazy"]] {
        let refused = umount(other.directory(), more);
        assert!(
            refused.status.code() == Some(2) && said(&refused).contains("a tmpfs is mounted there"),
            "{refused:?}"
        );
        assert!(other.directory().join("file").exists());
    }
    let refused = umount(&folder.plain, &[]);
    assert!(
        refused.status.code() == Some(2) && said(&refused).contains("nothing is mounted there"),
        "{refused:?}"
    );
    // By a path that is not the mount table's.
    let mount = folder.mount("");
    std::os::unix::fs::symlink(folder.scratch.folder(), folder.scratch.path("link")).unwrap();
    wait_until("it is unmounted", PATIENCE, || umount(Path::new("link/plain"), &[]).status.success());
    drop(mount);
}

#[test]
fn root_does_not_believe_what_another_has_set_up() {
    if unable("root_does_not_believe_what_another_has_set_up") {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip("root_does_not_believe_what_another_has_set_up", "giving files away needs root");
    }
    let folder = Folder::new();
    let home = folder.scratch.path("home");
    for name in ["", ".ecryptfs", ".Private", "victim"] {
        fs::create_dir(home.join(name)).unwrap();
    }
    let wrapping =
        underseal_ecryptfs::wrapped::wrap(&underseal_cipher::Key::new(b"test").unwrap(), b"login").unwrap();
    fs::write(home.join(".ecryptfs/wrapped-passphrase"), wrapping).unwrap();
    fs::write(home.join(".ecryptfs/Private.sig"), "d395309aaad4de06\n").unwrap();
    fs::write(home.join(".ecryptfs/Private.mnt"), home.join("victim").to_str().unwrap()).unwrap();
    folder.scratch.file("login", b"login\n");
    let refused = || {
        let mut command = underseal();
        command.args(["ecryptfs", "mount-private", "--daemon", "--home"]).arg(&home);
        let refused = output(command.arg("--passphrase-file").arg(folder.scratch.path("login")));
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(2) && said.contains("belongs to another user"), "{refused:?}");
        let table = fs::read_to_string("/proc/mounts").unwrap();
        assert!(!table.contains(home.to_str().unwrap()), "{table}");
    };
    chown(&home, Some(61_234), None).unwrap();
    refused();
    // Not even in a folder of root's own, where others may write.
    chown(&home, Some(0), None).unwrap();
    chown(home.join(".ecryptfs/Private.mnt"), Some(61_234), None).unwrap();
    refused();
}

/// True where a test of links of other users cannot run.
fn cannot_give_links_away(test: &str) -> bool {
    if unable(test) {
        return true;
    }
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip(test, "giving links away needs root");
    }
    !is_root
}

#[test]
fn a_lower_folder_is_not_reached_through_a_link_of_another_user() {
    let test = "a_lower_folder_is_not_reached_through_a_link_of_another_user";
    if cannot_give_links_away(test) {
        return;
    }
    let folder = Folder::new();
    let at = |name: &str| folder.scratch.path(name);
    fs::create_dir(at("user")).unwrap();
    fs::create_dir(folder.lower.join("inner")).unwrap();
    symlink(&folder.lower, at("user/lower")).unwrap();
    let mount = |lower: &str, more: &[&str]| {
        let mut command = underseal();
        command.args(["ecryptfs", "mount", "--daemon", "--passphrase-file"]).arg(at("passphrase"));
        let ran = output(command.args(more).arg(at(lower)).arg(&folder.plain));
        unmount_stale(&folder.plain);
        ran
    };
    // A link of this user.
    let own = mount("user/lower/inner", &[]);
    assert!(own.status.success(), "{}", String::from_utf8_lossy(&own.stderr));
    lchown(at("user/lower"), Some(61_234), None).unwrap();
    for (lower, more) in
        [("user/lower", &[][..]), ("user/lower", &["--no-sandbox"]), ("user/lower/inner", &[])]
    {
        let refused = mount(lower, more);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{lower} {said}");
        assert!(said.contains("is a link of another user (uid 61234)"), "{said}");
        assert!(said.contains("\ntry: the path that the link leads to"), "{said}");
    }
}

#[test]
fn links_of_another_user_are_not_followed() {
    let test = "links_of_another_user_are_not_followed";
    if cannot_give_links_away(test) {
        return;
    }
    let folder = Folder::new();
    let at = |name: &str| folder.scratch.path(name);
    for name in ["user", "victim"] {
        fs::create_dir(at(name)).unwrap();
    }
    for (to, link) in [("../victim", "user/plain"), ("../victim/log", "user/log")] {
        symlink(to, at(link)).unwrap();
        lchown(at(link), Some(61_234), None).unwrap();
    }
    for (mountpoint, log, more) in [
        ("user/plain", "log", &[][..]),
        ("user/plain", "log", &["--no-sandbox"]),
        ("plain", "user/log", &[]),
        ("plain", "user/plain/log", &[]),
    ] {
        let mut command = underseal();
        command.args(["ecryptfs", "mount", "--daemon", "--passphrase-file"]).arg(at("passphrase"));
        command.arg("--log-file").arg(at(log)).args(more).arg(&folder.lower).arg(at(mountpoint));
        let refused = output(&mut command);
        unmount_stale(&at("victim"));
        unmount_stale(&folder.plain);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{mountpoint} {log} {said}");
        assert!(said.contains("is a link of another user (uid 61234)"), "{said}");
        assert!(said.contains("\ntry: the path that the link leads to"), "{said}");
        assert_eq!(fs::read_dir(at("victim")).unwrap().count(), 0, "{mountpoint} {log}");
    }
}
