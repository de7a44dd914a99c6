//! `--desktop`: a stand-in for udisks, which sets up loop devices and mounts as udisks does, or
//! lies; and folders that strangers made.

mod descriptors;
mod in_use;

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::fuse::mounted::{Mounted, client, is_mounted};
use crate::support::mounts::{Mount, apart, cannot_mount, skip, unmount_stale};
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::volume::Volume;
use crate::support::{Scratch, output, run};

/// Does the work of udisksctl, as root, with its words. As udisks, it forces an unmount by making
/// it lazy.
const HONEST: &str = "#!/bin/sh
echo \"$*\" >> \"$STAND_IN/calls\"
case $1 in
loop-setup) echo \"Mapped file $4 as $(losetup ${5:+--read-only} --find --show \"$4\").\" ;;
mount) mkdir -p \"$STAND_IN/media disk\" && mount \"$4\" \"$STAND_IN/media disk\" && echo \"Mounted $4 at ..\" ;;
unmount) umount ${5:+--lazy} \"$4\" ;;
loop-delete) losetup --detach \"$4\" ;;
esac
";

struct Desktop {
    scratch: Scratch,
    volume: Volume,
    runtime: PathBuf,
}

impl Desktop {
    /// A volume with an ext4, a runtime folder, and this program as `udisksctl`.
    fn new(udisksctl: &str) -> Self {
        let scratch = Scratch::new();
        let volume = Volume::luks2(&scratch, "40M");
        let plain = Mounted::start(&scratch, &volume, &[]);
        run(client("mkfs.ext4").args(["-q", "-F"]).arg(plain.path()));
        plain.stop();
        let runtime = scratch.path("run");
        fs::create_dir(&runtime).unwrap();
        fs::set_permissions(&runtime, Permissions::from_mode(0o700)).unwrap();
        let desktop = Self { scratch, volume, runtime };
        desktop.udisksctl(udisksctl);
        let folder = desktop.scratch.folder().display();
        let started = format!("#!/bin/sh\nSTAND_IN='{folder}' exec '{folder}/stand-in' \"$@\"\n");
        let bin = desktop.scratch.path("bin");
        fs::create_dir(&bin).unwrap();
        for program in ["udisksctl", "systemctl"] {
            fs::write(bin.join(program), &started).unwrap();
            fs::set_permissions(bin.join(program), Permissions::from_mode(0o755)).unwrap();
        }
        install(&bin);
        desktop
    }

    fn udisksctl(&self, script: &str) {
        // Never written to while it runs.
        let new = self.scratch.file("new-stand-in", script.as_bytes());
        fs::set_permissions(&new, Permissions::from_mode(0o755)).unwrap();
        fs::rename(new, self.scratch.path("stand-in")).unwrap();
    }

    fn command(&self, options: &[&str]) -> Command {
        let mut command = self.volume.command("open");
        command.env("XDG_RUNTIME_DIR", &self.runtime).args(["-v", "--desktop"]).args(options);
        command
    }

    /// Opens the volume, and returns when its file system is mounted.
    fn open(&self, options: &[&str]) -> Child {
        self.open_by(&mut self.command(options))
    }

    fn open_by(&self, command: &mut Command) -> Child {
        let log = File::create(self.scratch.path("log")).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        let log = self.log();
        assert!(ready.contains(" is mounted on ") && ready.contains("media disk"), "{ready:?}\n{log}");
        assert!(is_there(&self.media()), "{log}");
        child
    }

    fn refused(&self, status: i32, words: &[&str]) {
        let Output { status: ended, stderr, .. } = output(&mut self.command(&[]));
        let said = String::from_utf8_lossy(&stderr);
        assert_eq!(ended.code(), Some(status), "{said}");
        for word in words {
            assert!(said.contains(word), "no {word:?} in: {said}");
        }
        self.assert_nothing_left(&said);
    }

    fn log(&self) -> String {
        fs::read_to_string(self.scratch.path("log")).unwrap()
    }

    /// The orders that the stand-in was given.
    fn calls(&self) -> String {
        fs::read_to_string(self.scratch.path("calls")).unwrap_or_default()
    }

    fn media(&self) -> PathBuf {
        self.scratch.path("media disk")
    }

    fn file(&self) -> PathBuf {
        let name = self.volume.image.file_name().unwrap();
        fs::canonicalize(&self.runtime).unwrap().join("underseal-desktop").join(name)
    }

    /// The loop devices over the volume's file, as long as that is served.
    fn loops(&self) -> Vec<String> {
        let all = run(client("losetup").args(["--list", "--noheadings", "--output", "NAME,BACK-FILE"]));
        let folder = self.scratch.folder().to_string_lossy();
        all.lines()
            .filter(|line| line.contains(&*folder) && line.contains("underseal-desktop"))
            .map(|line| line.split_whitespace().next().unwrap().to_owned())
            .collect()
    }

    /// The kernel's file that is there as long as the volume has its loop device.
    fn attached(&self) -> PathBuf {
        let devices = self.loops();
        Path::new("/sys/block").join(devices[0].strip_prefix("/dev/").unwrap()).join("loop/backing_file")
    }

    fn assert_nothing_left(&self, what: &str) {
        let ours = self.loops();
        assert!(ours.is_empty(), "{what}: {ours:?}");
        assert!(!is_there(&self.media()), "{what}");
        assert!(!is_mounted(&self.file()), "{what}");
    }
}

impl Drop for Desktop {
    fn drop(&mut self) {
        unmount_stale(&self.media());
        for device in self.loops() {
            let _ = client("losetup").args(["--detach", &device]).status();
        }
    }
}

/// Lays a folder over /usr/bin, in this mount namespace: root's udisksctl is started from there.
fn install(folder: &Path) {
    let layers = format!("lowerdir={}:/usr/bin", folder.display());
    run(client("mount").args(["-t", "overlay", "overlay", "-o", &layers, "/usr/bin"]));
}

fn is_there(media: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let at = media.to_string_lossy().replace(' ', "\\040");
    mounts.lines().any(|line| line.split(' ').nth(1) == Some(&*at))
}

fn end(mut child: Child, signal: Signal) -> std::process::ExitStatus {
    kill_process(Pid::from_child(&child), signal).unwrap();
    wait_until("the server has ended", PATIENCE, || child.try_wait().unwrap().is_some());
    child.wait().unwrap()
}

/// True where the test cannot run, or has run: in a mount namespace of its own. Programs of other
/// tests copy the mounts of their namespace, and a copy keeps the loop device below it in use.
fn unable(test: &str) -> bool {
    const APART: &str = "UNDERSEAL_TEST_APART";
    if cannot_mount().inspect(|reason| skip(test, reason)).is_some() {
        return true;
    }
    if std::env::var_os(APART).is_some() {
        return false;
    }
    let mut apart = apart();
    apart.arg(std::env::current_exe().unwrap());
    apart.args(["--exact", "--nocapture", &format!("fuse::desktop::{test}")]).env(APART, "1");
    assert!(apart.stdin(Stdio::null()).status().unwrap().success());
    true
}

#[test]
fn a_volume_is_on_the_desktop_until_its_server_ends() {
    if unable("a_volume_is_on_the_desktop_until_its_server_ends") {
        return;
    }
    let desktop = Desktop::new(HONEST);
    let child = desktop.open(&[]);
    fs::write(desktop.media().join("note"), b"kept").unwrap();
    let status = end(child, Signal::INT);
    let log = desktop.log();
    assert!(status.success() && !log.contains("ERROR"), "{status}\n{log}");
    desktop.assert_nothing_left("ended");
    wait_until("the file is removed", PATIENCE, || !desktop.file().exists());

    // A file that is in use when its server ends is waited for.
    let child = desktop.open(&[]);
    assert_eq!(fs::read(desktop.media().join("note")).unwrap(), b"kept");
    let user = File::open(desktop.media().join("note")).unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(700));
    assert!(is_there(&desktop.media()));
    drop(user);
    assert!(end(child, Signal::CONT).success());
    desktop.assert_nothing_left("waited for");

    let child = desktop.open(&["--read-only"]);
    assert!(fs::write(desktop.media().join("note"), b"lost").is_err());
    assert!(end(child, Signal::INT).success());
    desktop.assert_nothing_left("read-only");

    // A server that is killed leaves its mount, which the next one takes away, and nothing else.
    end(desktop.open(&[]), Signal::KILL);
    wait_until("the helper takes it down", PATIENCE, || {
        !is_there(&desktop.media()) && desktop.loops().is_empty()
    });
    let child = desktop.open(&[]);
    assert_eq!(fs::read(desktop.media().join("note")).unwrap(), b"kept");
    assert!(end(child, Signal::INT).success());
    desktop.assert_nothing_left("killed");
}

#[test]
fn what_udisks_answers_is_checked_and_given_back() {
    if unable("what_udisks_answers_is_checked_and_given_back") {
        return;
    }
    let desktop = Desktop::new(HONEST);
    let other = desktop.scratch.sparse("other", 1 << 20);
    let foreign = run(client("losetup").args(["--find", "--show"]).arg(&other));
    let foreign = foreign.trim().to_owned();
    let lies = [
        // The device over the file is made, and another one named.
        (
            format!("losetup --find --show \"$4\" > /dev/null; echo \"Mapped file $4 as {foreign}.\""),
            "another file",
        ),
        ("losetup --find --show \"$4\" > /dev/null; echo done".into(), "names no loop device"),
        ("echo 'Mapped file as /dev/loop999999.'".into(), "/dev/loop999999"),
        ("echo \"Mapped file $4 as $(losetup --offset 4096 --find --show \"$4\").\"".into(), "another size"),
        ("echo 'Error: GDBus.Error:a.b.C: Not authorized to' >&2; exit 1".into(), "Error: Not authorized to"),
        ("echo 'Not authorized' >&2; exit 1".into(), "polkit"),
    ];
    for (lie, said) in lies {
        let told = HONEST.replace("loop-setup) ", &format!("loop-setup) {lie} ;; never) "));
        desktop.udisksctl(&told);
        desktop.refused(1, &["--desktop", said]);
    }
    for (mount, said) in
        [("echo 'no file system' >&2; exit 1", "no file system"), ("echo 'Mounted'", "not mounted")]
    {
        desktop.udisksctl(&HONEST.replace("mount) mkdir", &format!("mount) {mount} ;; never) mkdir")));
        desktop.refused(1, &["--desktop", said]);
    }
    // As without udev: udisks makes the device, waits for it, and does not know it.
    let lost = HONEST.replace("loop-setup) ", "loop-setup) losetup --find --show \"$4\"; exit 1 ;; never) ");
    desktop.udisksctl(&lost.replace("loop-delete) ", "loop-delete) exit 1 ;; never) "));
    desktop.refused(1, &["--desktop"]);
    // Another program mounts all new devices.
    let first = HONEST
        .replace("echo \"Mounted $4 at ..\" ;;", "echo 'GDBus.Error:a.b.C: it is mounted' >&2; exit 1 ;;");
    desktop.udisksctl(&first);
    assert!(end(desktop.open(&[]), Signal::INT).success());
    desktop.assert_nothing_left("mounted by another program");
    // The other device is as it was.
    let there = run(client("losetup").args(["--list", "--noheadings", "--output", "BACK-FILE", &foreign]));
    assert_eq!(there.trim(), fs::canonicalize(&other).unwrap().to_string_lossy());
    run(client("losetup").args(["--detach", &foreign]));
}

#[test]
fn a_folder_that_is_not_the_users_own_is_not_used() {
    if unable("a_folder_that_is_not_the_users_own_is_not_used") {
        return;
    }
    let mut desktop = Desktop::new(HONEST);
    let folder = desktop.runtime.join("underseal-desktop");
    let elsewhere = desktop.scratch.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::set_permissions(&elsewhere, Permissions::from_mode(0o700)).unwrap();
    symlink(&elsewhere, &folder).unwrap();
    desktop.refused(2, &["symbolic link"]);
    fs::remove_file(&folder).unwrap();

    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
    desktop.refused(2, &["others may enter it"]);
    fs::set_permissions(&folder, Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(&folder, Some(1), None).unwrap();
    desktop.refused(2, &["belongs to another user"]);
    std::os::unix::fs::chown(&folder, Some(0), None).unwrap();
    let over = Mount::tmpfs(&folder, 1 << 20);
    fs::set_permissions(&folder, Permissions::from_mode(0o700)).unwrap();
    desktop.refused(2, &["something is mounted there"]);
    drop(over);
    // Not even the place of the file is a stranger's.
    symlink(&elsewhere, desktop.file()).unwrap();
    desktop.refused(1, &["cannot be made"]);
    fs::remove_file(desktop.file()).unwrap();

    fs::set_permissions(&desktop.runtime, Permissions::from_mode(0o755)).unwrap();
    desktop.refused(2, &["others may enter it"]);
    fs::set_permissions(&desktop.runtime, Permissions::from_mode(0o700)).unwrap();
    let link = desktop.scratch.path("link");
    symlink(&desktop.runtime, &link).unwrap();
    let own = std::mem::replace(&mut desktop.runtime, link);
    desktop.refused(2, &["does not use this folder"]);
    desktop.runtime = own;
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    assert!(end(desktop.open(&[]), Signal::INT).success());
}

#[test]
fn without_udisks_that_is_said_before_a_passphrase_is_asked_for() {
    if unable("without_udisks_that_is_said_before_a_passphrase_is_asked_for") {
        return;
    }
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "32M");
    let mut command = volume.command("open");
    let [users, roots] = ["users", "roots"].map(|name| scratch.path(name));
    fs::create_dir(&users).unwrap();
    fs::create_dir(&roots).unwrap();
    // Only the user's path leads to one: an entry like this hides the system's.
    run(client("mknod").arg(roots.join("udisksctl")).args(["c", "0", "0"]));
    install(&roots);
    let called = scratch.path("called");
    let script = format!("#!/bin/sh\n: > {}\n", called.display());
    let strange = scratch.file("users/udisksctl", script.as_bytes());
    fs::set_permissions(strange, Permissions::from_mode(0o755)).unwrap();
    command.arg("--desktop").env("PATH", &users).env("XDG_RUNTIME_DIR", scratch.folder());
    let failed = output(&mut command);
    let said = String::from_utf8_lossy(&failed.stderr);
    assert!(failed.status.code() == Some(1) && said.contains("install udisks2"), "{said}");
    assert!(!called.exists(), "root starts what PATH leads to");
    run(client("umount").args(["--lazy", "/usr/bin"]));

    fs::remove_file(roots.join("udisksctl")).unwrap();
    let silent = scratch
        .file("roots/udisksctl", b"#!/bin/sh\necho 'Error connecting to the udisks daemon' >&2\nexit 1\n");
    fs::set_permissions(silent, Permissions::from_mode(0o755)).unwrap();
    install(&roots);
    let failed = output(&mut command);
    let said = String::from_utf8_lossy(&failed.stderr);
    assert!(failed.status.code() == Some(1) && said.contains("Error connecting"), "{said}");
}
