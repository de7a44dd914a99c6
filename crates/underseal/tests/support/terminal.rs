//! A pseudo-terminal, which script(1) makes.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Only a test that fails waits so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// A shell command on a terminal of its own.
pub(crate) struct Terminal {
    child: Child,
    keyboard: ChildStdin,
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
        let mut script = Command::new("script");
        script.current_dir(folder);
        Self::of(script, command)
    }

    /// The same by a script(1) that has its folder and environment.
    pub(crate) fn of(mut script: Command, command: &str) -> Self {
        let mut child = script
            .args(["--quiet", "--return", "--command", command, "/dev/null"])
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script(1) is needed for the tests");
        let (send, screen) = channel();
        let mut output = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len @ 1..) = output.read(&mut bytes) {
                if send.send(bytes[..len].to_vec()).is_err() {
                    return;
                }
            }
        });
        let keyboard = child.stdin.take().unwrap();
        Self { child, keyboard, screen, shown: String::new(), seen: 0 }
    }

    /// Waits a moment: cryptsetup forgets what is typed before it has set its terminal up, which comes after the question.
    pub(crate) fn waits(&mut self) -> &mut Self {
        std::thread::sleep(Duration::from_millis(300));
        self
    }

    /// Waits until the text appears after what was seen so far.
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

    /// The process of script(1), above the shell.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// All that was shown so far.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    /// The same up to the text that was looked for last.
    pub(crate) fn seen(&self) -> &str {
        &self.shown[..self.seen]
    }

    pub(crate) fn types(&mut self, keys: &str) -> &mut Self {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
        self
    }

    /// Waits for the end; gives the exit status and everything that was shown.
    pub(crate) fn ends(mut self) -> (Option<i32>, String) {
        while let Ok(bytes) = self.screen.recv_timeout(PATIENCE) {
            self.shown.push_str(&String::from_utf8_lossy(&bytes));
        }
        (self.child.wait().unwrap().code(), self.shown)
    }
}
