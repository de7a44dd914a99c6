//! The server of a mount.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::mounts::holders;
pub(crate) use crate::support::mounts::{client, unmount_stale};
use crate::support::scratch::Scratch;
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::volume::{Volume, text};

/// A mounted volume. It is unmounted, if a test did not do so, when the value goes.
pub(crate) struct Mounted {
    child: Child,
    path: PathBuf,
    log: PathBuf,
    ended: Option<ExitStatus>,
}

impl Mounted {
    /// Mounts the volume over an empty file and returns when it is there.
    pub(crate) fn start(scratch: &Scratch, volume: &Volume, options: &[&str]) -> Self {
        let path = scratch.file("disk", b"");
        Self::start_at(scratch, volume.command("open"), &path, options)
    }

    /// Mounts where a server that is gone has left its mount.
    pub(crate) fn start_again(scratch: &Scratch, volume: &Volume, path: &Path) -> Self {
        Self::start_at(scratch, volume.command("open"), path, &[])
    }

    /// Mounts at `path` with a command that says what.
    pub(crate) fn start_at(scratch: &Scratch, mut command: Command, path: &Path, options: &[&str]) -> Self {
        let log = scratch.path("log");
        command.args(["-v", "--fuse", text(path)]).args(options);
        let stderr = File::create(&log).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        let path = fs::canonicalize(path.parent().unwrap()).unwrap().join(path.file_name().unwrap());
        let mounted = Self { child, path, log, ended: None };
        assert!(ready.contains(" is open: "), "{command:?}: {ready:?}\n{}", mounted.log());
        assert!(mounted.is_mounted());
        mounted
    }

    /// The file, or the folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    pub(crate) fn is_mounted(&self) -> bool {
        is_mounted(&self.path)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let child = &mut self.child;
        let ended = &mut self.ended;
        wait_until("the server has ended", PATIENCE, || {
            *ended = ended.or_else(|| child.try_wait().unwrap());
            ended.is_some()
        });
        self.ended.unwrap()
    }

    /// Stops it as an operator does, and sees to it that it ended well and left nothing behind.
    pub(crate) fn stop(mut self) -> String {
        self.signal(Signal::TERM);
        self.end_well()
    }

    /// Ends it without a chance to put anything in order.
    pub(crate) fn kill(mut self) {
        self.signal(Signal::KILL);
        self.wait();
    }

    /// Waits for an end that nothing is wrong with.
    pub(crate) fn end_well(&mut self) -> String {
        let status = self.wait();
        let log = self.log();
        assert!(status.success(), "{status}\n{log}\nwho has it:\n{}", holders(&self.path));
        assert!(!self.is_mounted(), "the mount was left behind\n{log}");
        assert!(!log.contains("ERROR") && !log.contains("panicked"), "{log}");
        log
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.ended.is_none() {
            unmount_stale(&self.path);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            eprintln!("the server's log:\n{}", self.log());
        }
    }
}

pub(crate) fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(1) == Some(text(path)))
}
