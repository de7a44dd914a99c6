//! `underseal open` as a process.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::scratch::Scratch;
use super::tools::{PATIENCE, wait_until};
use super::volume::{Volume, text};

/// A served volume. It is stopped, if a test did not do so, when the value goes.
pub(crate) struct Server {
    child: Child,
    scratch: Scratch,
    ended: Option<ExitStatus>,
}

impl Server {
    /// Serves the volume on a Unix socket of its own and returns when clients can connect.
    pub(crate) fn start(volume: &Volume, options: &[&str]) -> Self {
        Self::start_in(Scratch::new(), volume, options)
    }

    /// As `start`, in a folder where another server left its socket.
    pub(crate) fn start_in(scratch: Scratch, volume: &Volume, options: &[&str]) -> Self {
        Self::start_command_in(scratch, volume.command("open"), options)
    }

    /// Serves as [`Server::start`], with a command that says what.
    pub(crate) fn start_command(command: Command, options: &[&str]) -> Self {
        Self::start_command_in(Scratch::new(), command, options)
    }

    pub(crate) fn start_command_in(scratch: Scratch, mut command: Command, options: &[&str]) -> Self {
        let log = File::create(scratch.path("log")).unwrap();
        command.args(["-v", "--nbd", &format!("unix:{}", text(&scratch.path("s")))]).args(options);
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        let server = Self { child, scratch, ended: None };
        assert!(ready.contains(" is open: "), "{command:?}: {ready:?}\n{}", server.log());
        server
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.scratch.path("s")
    }

    pub(crate) fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", text(&self.socket()))
    }

    /// Everything that was logged so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.scratch.path("log")).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops it, and waits until none of its threads runs.
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
        let threads = || std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let is_stopped = |thread: std::fs::DirEntry| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
        };
        wait_until("it is stopped", PATIENCE, || threads().all(|thread| is_stopped(thread.unwrap())));
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
        assert!(self.child.try_wait().unwrap().is_none(), "the server had ended:\n{}", self.log());
        self.signal(Signal::TERM);
        let status = self.wait();
        let log = self.log();
        assert!(status.success(), "{status}\n{log}");
        assert!(!self.socket().exists(), "the socket was left behind");
        assert!(!log.contains("panicked"), "{log}");
        log
    }

    /// As [`Server::stop`], for a server that cannot remove its socket.
    pub(crate) fn stop_leaving_its_socket(mut self) -> String {
        self.signal(Signal::TERM);
        let status = self.wait();
        let log = self.log();
        assert!(status.success() && !log.contains("panicked"), "{status}\n{log}");
        log
    }

    /// Kills the server, which leaves everything as it is; the returned folder can be given to the
    /// next one.
    pub(crate) fn kill(mut self) -> Scratch {
        self.signal(Signal::KILL);
        assert_eq!(self.wait().signal(), Some(9));
        std::mem::replace(&mut self.scratch, Scratch::new())
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The numbers of open descriptors and of threads. Only root can see the descriptors of a
    /// process that keeps secrets.
    pub(crate) fn holds(&self) -> (Option<usize>, usize) {
        let count = |what: &str| {
            let entries = fs::read_dir(format!("/proc/{}/{what}", self.child.id()));
            entries.ok().map(Iterator::count)
        };
        (count("fd"), count("task").unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.ended.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            eprintln!("the server's log:\n{}", self.log());
        }
    }
}
