//! Setup that needs root, or that a machine may not support. It is undone in the reverse order,
//! however a test ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::panicking;

use rustix::fs::{Mode, OFlags, open};
pub(crate) use underseal_testing::skip;

use super::tools::{PATIENCE, missing, output, wait_until, within};
use super::{Scratch, run, tool};

/// Why a test that mounts things cannot run here, if it cannot.
pub(crate) fn cannot_mount() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("mounting needs root");
    }
    if !Path::new("/dev/loop-control").exists() {
        return Some("there are no loop devices here");
    }
    cannot_fuse()
}

/// Why a test with FUSE cannot run here, if it cannot.
pub(crate) fn cannot_fuse() -> Option<&'static str> {
    let opened = fs::File::options().read(true).write(true).open("/dev/fuse");
    opened.is_err().then_some("/dev/fuse cannot be opened")
}

/// Why mounts take no requests through io_uring here, if they do not.
pub(crate) fn cannot_fuse_over_io_uring() -> Option<&'static str> {
    let setting = fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    let is_on = setting.is_ok_and(|setting| setting.trim() == "Y");
    let off = "the kernel has no FUSE over io_uring (Linux 6.14), or its setting fuse.enable_uring is off";
    cannot_fuse().or_else(|| (!is_on).then_some(off))
}

/// Reports a test of FUSE over io_uring as skipped, where it cannot run. Where the kernel cannot,
/// `.ci/run` reports that itself, by this variable.
pub(crate) fn without_io_uring(part: &str) -> bool {
    let Some(reason) = cannot_fuse_over_io_uring() else { return false };
    if std::env::var_os("UNDERSEAL_WITHOUT_FUSE_IO_URING").is_none() {
        skip(part, reason);
    }
    true
}

/// A program with a time limit: a mount whose server hangs would hang the program for ever.
pub(crate) fn client(program: &str) -> Command {
    let mut command = tool("timeout");
    command.args(["--kill-after=5", "300", program]);
    command
}

/// Unmounts without asking for anything.
pub(crate) fn unmount_stale(path: &Path) {
    let _ = output(client("fusermount3").args(["-u", "-q", "-z", "--"]).arg(path));
}

/// A command with private mounts. It detaches the mounts of other tests, because their servers
/// would wait for it.
pub(crate) fn apart() -> Command {
    apart_with(Path::new("none"))
}

/// As [`apart`], but keeps this mount.
pub(crate) fn apart_with(mount: &Path) -> Command {
    let script = r#"while read -r _ path _; do case $path in
"$0") ;;
/tmp/us-*) umount --lazy --no-canonicalize "$path" || true ;;
esac; done < /proc/self/mounts
exec "$@""#;
    let mut command = tool("unshare");
    command.args(["--mount", "timeout", "--kill-after=5", "300", "sh", "-c", script]).arg(mount);
    command
}

/// The holders of a mount, or of the file that is mounted: mount namespaces with a copy of it, open
/// files, loop devices.
pub(crate) fn holders(path: &Path) -> String {
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
    let mut found = String::new();
    let own = fs::read_link("/proc/self/ns/mnt").ok();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path()) {
        let who = || format!("{} {}", process.display(), read(process.join("comm")).trim());
        let is_elsewhere = fs::read_link(process.join("ns/mnt")).ok() != own;
        let is_there = |line: &str| line.split(' ').nth(4) == path.to_str();
        if is_elsewhere && read(process.join("mountinfo")).lines().any(is_there) {
            found += &format!("{}: it is mounted in its mount namespace\n", who());
        }
        for file in fs::read_dir(process.join("fd")).into_iter().flatten().flatten() {
            if fs::read_link(file.path()).is_ok_and(|to| to.starts_with(path)) {
                found += &format!("{}: descriptor {}\n", who(), file.file_name().display());
            }
        }
    }
    for device in fs::read_dir("/sys/block").into_iter().flatten().flatten().map(|entry| entry.path()) {
        if Path::new(read(device.join("loop/backing_file")).trim_end()).starts_with(path) {
            found += &format!("{}: a loop device over it\n", device.display());
        }
    }
    found
}

/// A command that runs with private mounts, where /dev/fuse has this mode. Only root may do that.
pub(crate) fn with_fuse_mode(scratch: &Scratch, mode: &str) -> Command {
    // The filesystem is a new one, since that of the folder may allow no devices.
    let script = r#"mkdir -p "$0"; mount -t tmpfs none "$0"; mknod -m "$1" "$0/fuse" c 10 229
mount --bind "$0/fuse" /dev/fuse; shift; exec "$@""#;
    let mut command = apart();
    command.args(["sh", "-euc", script]).arg(scratch.path("dev")).arg(mode);
    command
}

/// An NBD export as a file.
pub(crate) struct NbdFuse {
    child: Child,
    file: PathBuf,
}

impl NbdFuse {
    /// Mounts what `source` (an URI, or a command in square brackets) names as a file at `file`.
    pub(crate) fn mount<S: AsRef<std::ffi::OsStr>>(file: &Path, options: &[&str], source: &[S]) -> Self {
        let directory = file.parent().unwrap();
        fs::create_dir_all(directory).unwrap();
        let mut command = tool("nbdfuse");
        command.args(options).arg(file).args(source).stdin(Stdio::null());
        let child = command.spawn().unwrap_or_else(|e| panic!("{}", missing(&command, &e)));
        let mut mount = Self { child, file: file.into() };
        wait_until("nbdfuse has mounted", PATIENCE, || {
            let ended = mount.child.try_wait().unwrap();
            assert!(ended.is_none(), "{command:?}: {ended:?}");
            file.exists()
        });
        mount
    }

    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// Unmounts, which writes everything back, and waits for the end.
    pub(crate) fn unmount(mut self) {
        let directory = self.file.parent().unwrap();
        let unmounted = once_unused("fusermount3", &["-u"], directory);
        assert!(unmounted.status.success(), "{}: {unmounted:?}", directory.display());
        let status = self.child.wait().unwrap();
        assert!(status.success(), "nbdfuse: {status}");
        self.file = PathBuf::new();
    }
}

impl Drop for NbdFuse {
    fn drop(&mut self) {
        let Some(directory) = self.file.parent() else { return };
        let _ = tool("fusermount3").args(["-u", "-z"]).arg(directory).output();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Unmounts once no process uses the mount. The kernel may release it some time after a process has
/// ended or closed a file: so it is with a detached loop device's file, and with requests in flight
/// of an io_uring.
fn once_unused(program: &str, options: &[&str], directory: &Path) -> Output {
    let mut last = None;
    within(PATIENCE, || {
        let unmounted = last.insert(output(tool(program).args(options).arg(directory)));
        !String::from_utf8_lossy(&unmounted.stderr).contains("busy")
    });
    last.expect("it is tried at least once")
}

/// A file as a block device.
pub(crate) struct Loop {
    device: PathBuf,
    /// The backing file, as the kernel names it.
    backing: String,
}

impl Loop {
    pub(crate) fn attach(file: &Path, options: &[&str]) -> Self {
        let device = run(tool("losetup").args(["--find", "--show"]).args(options).arg(file));
        let mut this = Self { device: device.trim().into(), backing: String::new() };
        this.backing = this.backing().unwrap_or_default();
        this
    }

    pub(crate) fn device(&self) -> &Path {
        &self.device
    }

    /// The file behind the device as it is now.
    fn backing(&self) -> Option<String> {
        let name = self.device.file_name()?.to_str()?;
        fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let detached = output(tool("losetup").arg("--detach").arg(&self.device));
        // The kernel only does it when the last one closes the device, which others look at when it
        // changes. By then another test may have it.
        let gone =
            detached.status.success() && within(PATIENCE, || self.backing().as_ref() != Some(&self.backing));
        assert!(gone || panicking(), "{} is still attached: {detached:?}", self.device.display());
    }
}

/// A mounted filesystem.
pub(crate) struct Mount {
    device: PathBuf,
    directory: PathBuf,
}

impl Mount {
    pub(crate) fn new(device: &Path, directory: &Path, options: &[&str]) -> Self {
        fs::create_dir_all(directory).unwrap();
        run(tool("mount").args(options).arg(device).arg(directory));
        Self { device: device.into(), directory: directory.into() }
    }

    /// A filesystem in memory with room for `size` bytes.
    pub(crate) fn tmpfs(directory: &Path, size: u64) -> Self {
        Self::new(Path::new("tmpfs"), directory, &["-t", "tmpfs", "-o", &format!("size={size}")])
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether the device is mounted nowhere. A mount namespace of another test may have a copy of
    /// the mount: until that is gone the kernel keeps using the device.
    fn is_gone(&self) -> bool {
        let exclusively = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
        !self.device.is_absolute() || open(&self.device, exclusively, Mode::empty()).is_ok()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let unmounted = once_unused("umount", &[], &self.directory);
        if !unmounted.status.success() {
            let _ = output(tool("umount").arg("--lazy").arg(&self.directory));
            assert!(panicking(), "{}: {unmounted:?}", self.directory.display());
        }
        let gone = panicking() || within(PATIENCE, || self.is_gone());
        assert!(gone, "{} is in use still", self.device.display());
    }
}

/// A mounted filesystem that takes no changes until the value goes; reads continue.
pub(crate) struct Frozen(PathBuf);

impl Frozen {
    pub(crate) fn of(mount: &Path) -> Self {
        run(tool("fsfreeze").arg("--freeze").arg(mount));
        Self(mount.to_owned())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        run(tool("fsfreeze").arg("--unfreeze").arg(&self.0));
    }
}
