//! The server of a mount.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::Scratch;
use crate::support::mounts::{cannot_fuse, skip};
pub(crate) use crate::support::mounts::{client, unmount_stale};
use crate::support::tools::{PATIENCE, output, tool, wait_until};

pub(crate) const PASSPHRASE: &str = "a passphrase of the tests";

/// Why a test cannot run here, said where it cannot.
pub(crate) fn unable(test: &str) -> bool {
    let reason = cannot_fuse();
    if let Some(reason) = reason {
        skip(test, reason);
    }
    reason.is_some()
}

pub(crate) fn underseal() -> Command {
    tool(env!("CARGO_BIN_EXE_underseal"))
}

/// A lower folder and where it is mounted.
pub(crate) struct Folder {
    pub(crate) scratch: Scratch,
    pub(crate) lower: PathBuf,
    pub(crate) plain: PathBuf,
}

impl Folder {
    pub(crate) fn new() -> Self {
        let scratch = Scratch::new();
        let (lower, plain) = (scratch.path("lower"), scratch.path("plain"));
        fs::create_dir(&lower).unwrap();
        fs::create_dir(&plain).unwrap();
        scratch.file("passphrase", PASSPHRASE.as_bytes());
        Self { scratch, lower, plain }
    }

    /// Mounts with the tests' passphrase.
    #[track_caller]
    pub(crate) fn mount(&self, options: &str) -> Mounted<'_> {
        self.mount_with(options, &["passphrase"])
    }

    /// Mounts with passphrases in these files.
    #[track_caller]
    pub(crate) fn mount_with(&self, options: &str, passphrases: &[&str]) -> Mounted<'_> {
        self.mount_by(&mut self.command(options, passphrases))
    }

    /// Mounts from a shell that has set limits.
    #[track_caller]
    pub(crate) fn mount_under(&self, limits: &str) -> Mounted<'_> {
        let command = self.command("", &["passphrase"]);
        let mut shell = tool("sh");
        shell.args(["-c", &format!("{limits}; exec \"$0\" \"$@\"")]).arg(command.get_program());
        self.mount_by(shell.args(command.get_args()))
    }

    #[track_caller]
    fn mount_by(&self, command: &mut Command) -> Mounted<'_> {
        let done = output(command);
        assert!(done.status.success(), "{command:?}: {done:?}");
        let pid = fs::read_to_string(self.scratch.path("pid")).unwrap();
        let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
        Mounted { folder: self, pid, over: false }
    }

    /// Mounts without io_uring.
    #[track_caller]
    pub(crate) fn mount_plainly(&self, options: &str) -> Mounted<'_> {
        self.mount_by(self.command(options, &["passphrase"]).arg("--no-io-uring"))
    }

    /// Mounts with so many threads that take requests.
    #[track_caller]
    pub(crate) fn mount_on_threads(&self, options: &str, threads: usize) -> Mounted<'_> {
        self.mount_by(self.command(options, &["passphrase"]).arg("--threads").arg(threads.to_string()))
    }

    /// Mounts where that must fail.
    #[track_caller]
    pub(crate) fn refused(&self, options: &str, passphrases: &[&str]) -> Output {
        let done = output(&mut self.command(options, passphrases));
        assert!(!done.status.success(), "{options} was not refused");
        done
    }

    fn command(&self, options: &str, passphrases: &[&str]) -> Command {
        let mut command = underseal();
        command.args(["ecryptfs", "mount", "--daemon", "--pid-file"]).arg(self.scratch.path("pid"));
        command.arg("--log-file").arg(self.scratch.path("log"));
        for name in passphrases {
            command.arg("--passphrase-file").arg(self.scratch.path(name));
        }
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        command.arg(&self.lower).arg(&self.plain);
        command
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.scratch.path("log")).unwrap_or_default()
    }

    /// A path in the mount.
    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.plain.join(name)
    }

    /// A path below.
    pub(crate) fn below(&self, name: &str) -> PathBuf {
        self.lower.join(name)
    }
}

/// A mount. It is gone, however a test ends.
pub(crate) struct Mounted<'a> {
    folder: &'a Folder,
    pid: Pid,
    over: bool,
}

impl Mounted<'_> {
    /// Unmounts, and sees to it that the server ends well.
    pub(crate) fn unmount(self) -> String {
        let log = self.unmount_after_errors();
        assert!(!log.contains("ERROR") && !log.contains("panicked"), "{log}");
        log
    }

    /// Unmounts, and allows errors in the log. Returns the log.
    pub(crate) fn unmount_after_errors(mut self) -> String {
        let path = &self.folder.plain;
        // The last process that used the mount may not have released it yet.
        wait_until("it is unmounted", PATIENCE, || {
            output(underseal().args(["ecryptfs", "umount"]).arg(path)).status.success()
        });
        self.wait();
        let log = self.folder.log();
        assert!(!log.contains("panicked"), "{log}");
        log
    }

    /// Ends the server without a chance to put anything in order.
    pub(crate) fn kill(mut self) {
        kill_process(self.pid, Signal::KILL).unwrap();
        self.wait();
        unmount_stale(&self.folder.plain);
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).unwrap();
    }

    pub(crate) fn wait(&mut self) {
        // The server is not a child of this process: it has ended when its directory in /proc is
        // gone, or only a zombie is left.
        let status = format!("/proc/{}/status", self.pid.as_raw_nonzero());
        wait_until("the server has ended", PATIENCE, || {
            fs::read_to_string(&status).map_or(true, |text| text.contains("State:\tZ"))
        });
        self.over = true;
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the server's log:\n{}", self.folder.log());
        }
        if !self.over {
            unmount_stale(&self.folder.plain);
            let _ = kill_process(self.pid, Signal::KILL);
        }
    }
}
