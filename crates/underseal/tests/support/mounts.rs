//! What only root may set up, or a machine may not have. It is undone in the reverse order, however a test ends.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::tools::{missing, output, wait_until};
use super::{run, tool};

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
    let opened = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    opened.is_err().then_some("/dev/fuse cannot be opened")
}

/// Says that a test, or a part of it, did not run, and why; and how many did not so far.
pub(crate) fn skip(test: &str, reason: &str) {
    static SKIPPED: AtomicUsize = AtomicUsize::new(0);
    let number = 1 + SKIPPED.fetch_add(1, Ordering::Relaxed);
    // Not by a macro, whose words a test that passes does not show.
    let line = format!("{test}: skipped: {reason} ({number} in this run)\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
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
        std::fs::create_dir_all(directory).unwrap();
        let mut command = tool("nbdfuse");
        command.args(options).arg(file).args(source).stdin(Stdio::null());
        let child = command.spawn().unwrap_or_else(|e| panic!("{}", missing(&command, &e)));
        let mut mount = Self { child, file: file.into() };
        wait_until("nbdfuse has mounted", Duration::from_secs(20), || {
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
        run(tool("fusermount3").arg("-u").arg(self.file.parent().unwrap()));
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

/// A file as a block device.
pub(crate) struct Loop(PathBuf);

impl Loop {
    pub(crate) fn attach(file: &Path, options: &[&str]) -> Self {
        let device = run(tool("losetup").args(["--find", "--show"]).args(options).arg(file));
        Self(device.trim().into())
    }

    pub(crate) fn device(&self) -> &Path {
        &self.0
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let detached = output(tool("losetup").arg("--detach").arg(&self.0));
        assert!(detached.status.success() || std::thread::panicking(), "{detached:?}");
    }
}

/// A mounted filesystem.
pub(crate) struct Mount(PathBuf);

impl Mount {
    pub(crate) fn new(device: &Path, directory: &Path, options: &[&str]) -> Self {
        std::fs::create_dir_all(directory).unwrap();
        run(tool("mount").args(options).arg(device).arg(directory));
        Self(directory.into())
    }

    /// A filesystem in memory with room for so many bytes.
    pub(crate) fn tmpfs(directory: &Path, size: u64) -> Self {
        Self::new(Path::new("tmpfs"), directory, &["-t", "tmpfs", "-o", &format!("size={size}")])
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.0
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let unmount = |options: &[&str]| -> Command {
            let mut command = tool("umount");
            command.args(options).arg(&self.0);
            command
        };
        if !output(&mut unmount(&[])).status.success() {
            let _ = output(&mut unmount(&["--lazy"]));
            assert!(std::thread::panicking(), "{} was still in use", self.0.display());
        }
    }
}
