//! Servers whose exports are lower devices.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::tools::{PATIENCE, missing, wait_until};
use crate::support::volume::{CHEAP_PBKDF2, PASSPHRASE, Volume, text, underseal};
use crate::support::{Scratch, run, tool};

/// A server's process.
pub(crate) struct Backing {
    program: String,
    args: Vec<String>,
    socket: PathBuf,
    child: Option<Child>,
}

impl Backing {
    /// Runs a program; `SOCKET` in its arguments stands for where it listens.
    pub(crate) fn start(scratch: &Scratch, program: &str, args: &[&str]) -> Self {
        Self::start_at(scratch.path("lower"), program, args)
    }

    pub(crate) fn start_at(socket: PathBuf, program: &str, args: &[&str]) -> Self {
        let args = args.iter().map(|arg| arg.replace("SOCKET", text(&socket))).collect();
        let mut this = Self { program: program.into(), args, socket, child: None };
        this.come_back();
        this
    }

    pub(crate) fn nbdkit(scratch: &Scratch, args: &[&str]) -> Self {
        Self::start(scratch, "nbdkit", &[&["-f", "-U", "SOCKET"], args].concat())
    }

    pub(crate) fn uri(&self, parameters: &str) -> String {
        format!("nbd+unix:///?socket={}{parameters}", text(&self.socket))
    }

    /// A volume on the export.
    pub(crate) fn volume(&self, scratch: &Scratch, parameters: &str) -> Volume {
        let passphrase = scratch.file("lower.pass", PASSPHRASE.as_bytes());
        Volume { image: self.uri(parameters).into(), passphrase, options: Vec::new() }
    }

    /// A new volume on the export.
    pub(crate) fn formatted(&self, scratch: &Scratch, parameters: &str, options: &[&str]) -> Volume {
        let volume = self.volume(scratch, parameters);
        let mut format = underseal();
        format.arg("format").arg(&volume.image).arg("-q").args(CHEAP_PBKDF2).args(options);
        run(format.arg("--passphrase-file").arg(&volume.passphrase));
        volume
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.child.as_ref().expect("it runs")), signal).unwrap();
    }

    /// Stops it, and waits until none of its threads runs: one that has not heard of the signal yet
    /// would answer once more.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
        let threads = format!("/proc/{}/task", self.child.as_ref().expect("it runs").id());
        wait_until("it stands still", PATIENCE, || {
            std::fs::read_dir(&threads).unwrap().all(|thread| {
                let stat = std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap_or_default();
                stat.rsplit(") ").next().is_some_and(|state| state.starts_with('T'))
            })
        });
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let _ = std::fs::remove_file(&self.socket);
    }

    pub(crate) fn come_back(&mut self) {
        let mut command: Command = tool(&self.program);
        command.args(&self.args).stdout(Stdio::null());
        let child = command.spawn().unwrap_or_else(|e| panic!("{}", missing(&command, &e)));
        self.child = Some(child);
        let socket: &Path = &self.socket;
        wait_until("the lower server listens", PATIENCE, || {
            std::os::unix::net::UnixStream::connect(socket).is_ok()
        });
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        self.kill();
    }
}
