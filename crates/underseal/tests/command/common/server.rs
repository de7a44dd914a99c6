//! `underseal open` in the foreground.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::{Place, Ran};

/// A server that is ready; killed when dropped.
pub(crate) struct Server {
    child: Option<Child>,
    stdout: BufReader<ChildStdout>,
    /// The NBD URIs that it announced.
    pub(crate) uris: Vec<String>,
}

impl Server {
    /// Serves `disk` on the socket `nbd`.
    pub(crate) fn start(place: &Place, args: &[&str]) -> Self {
        Self::start_command(place, &[&["--nbd", "unix:nbd"], args].concat())
    }

    /// Serves `disk` with these arguments.
    pub(crate) fn start_command(place: &Place, args: &[&str]) -> Self {
        Self::start_image(place, "disk", args)
    }

    /// Serves this image with these arguments.
    pub(crate) fn start_image(place: &Place, image: &str, args: &[&str]) -> Self {
        Self::run(place.command(&[&["open", image, "--passphrase-file", "pass"], args].concat()))
    }

    /// Serves what this command opens.
    pub(crate) fn run(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let mut this = Self { child: Some(child), stdout, uris: vec![] };
        let Some((_, uris)) = line.trim().split_once(" is open: ") else {
            panic!("not ready: {line:?} {:?}", this.wait());
        };
        this.uris = uris.split(' ').map(str::to_owned).collect();
        this
    }

    pub(crate) fn uri(&self) -> &str {
        &self.uris[0]
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        signal_to(self.pid(), signal);
    }

    /// Sends SIGTERM and asserts that the server ends with status 0; returns stderr.
    #[track_caller]
    pub(crate) fn stop(self) -> String {
        self.signal(Signal::TERM);
        let ran = self.wait();
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        ran.stderr
    }

    /// Waits for its end.
    pub(crate) fn wait(mut self) -> Ran {
        let output = self.child.take().unwrap().wait_with_output().unwrap();
        let mut ran = Ran::from(output);
        self.stdout.read_to_string(&mut ran.stdout).unwrap();
        ran
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub(crate) fn signal_to(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}
