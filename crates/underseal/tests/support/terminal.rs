//! A pseudo-terminal with a shell on it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};

use underseal_testing::wait_until;

/// Only a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(120);

/// A shell command on a terminal of its own.
pub(crate) struct Terminal {
    child: Child,
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    shown: String,
    /// Up to where the screen was looked at.
    seen: usize,
}

impl Terminal {
    /// Runs `underseal` there.
    pub(crate) fn run(folder: &Path, args: &[&str]) -> Self {
        Self::shell(folder, &format!("{} {}", env!("CARGO_BIN_EXE_underseal"), args.join(" ")))
    }

    /// Runs a shell's command there.
    pub(crate) fn shell(folder: &Path, command: &str) -> Self {
        let mut setsid = Command::new("setsid");
        setsid.current_dir(folder);
        Self::of(setsid, command)
    }

    /// The same by a setsid(1) with its folder and environment set.
    pub(crate) fn of(mut setsid: Command, command: &str) -> Self {
        let (mut ours, theirs) = pair();
        let end = || theirs.try_clone().unwrap();
        let child = setsid
            .args(["--ctty", "sh", "-c", command])
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .expect("setsid(1) is needed for the tests");
        // The copies in the command would keep the terminal open.
        drop((setsid, theirs));
        let keyboard = ours.try_clone().unwrap();
        let (send, screen) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len @ 1..) = ours.read(&mut bytes) {
                if send.send(bytes[..len].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { child, keyboard, screen, shown: String::new(), seen: 0 }
    }

    /// Waits until typed text is not shown: cryptsetup turns that off after its question, and
    /// discards earlier input.
    #[track_caller]
    pub(crate) fn hides(&mut self) -> &mut Self {
        wait_until("the terminal hides what is typed", PATIENCE, || {
            !tcgetattr(&self.keyboard).unwrap().local_modes.contains(LocalModes::ECHO)
        });
        self
    }

    /// Waits until the text appears after the output that was seen so far.
    #[track_caller]
    pub(crate) fn sees(&mut self, text: &str) -> &mut Self {
        loop {
            if let Some(at) = self.shown[self.seen..].find(text) {
                self.seen += at + text.len();
                return self;
            }
            match self.screen.recv_timeout(PATIENCE) {
                Ok(bytes) => self.shown.push_str(&String::from_utf8_lossy(&bytes)),
                Err(e) => panic!("{text:?} is not shown ({e}): {:?}", self.shown),
            }
        }
    }

    /// The shell's process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// All that was shown so far.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    /// The output up to the last text that was looked for.
    pub(crate) fn seen(&self) -> &str {
        &self.shown[..self.seen]
    }

    pub(crate) fn types(&mut self, keys: &str) -> &mut Self {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
        self
    }

    /// Waits for the end; gives the exit status as a shell does, and everything that was shown.
    pub(crate) fn ends(mut self) -> (Option<i32>, String) {
        while let Ok(bytes) = self.screen.recv_timeout(PATIENCE) {
            self.shown.push_str(&String::from_utf8_lossy(&bytes));
        }
        let status = self.child.wait().unwrap();
        (status.code().or(status.signal().map(|signal| 128 + signal)), self.shown)
    }
}

/// Our side and the other's.
fn pair() -> (File, OwnedFd) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
    let theirs = rustix::fs::open(name, flags, rustix::fs::Mode::empty()).unwrap();
    (ours.into(), theirs)
}
