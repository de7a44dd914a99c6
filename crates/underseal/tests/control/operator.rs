//! An operator: runs commands on open volumes, with a private directory of control sockets.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::support::tools::{PATIENCE, wait_until};
use crate::support::volume::{Volume, text, underseal};
use crate::support::{Scratch, Server};

pub(crate) struct Operator {
    pub(crate) scratch: Scratch,
}

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Operator {
    pub(crate) fn new() -> Self {
        Self { scratch: Scratch::new() }
    }

    pub(crate) fn directory(&self) -> PathBuf {
        self.scratch.path("run")
    }

    /// A LUKS2 volume `image`, and its server.
    pub(crate) fn open(&self, options: &[&str]) -> (Volume, Server) {
        let volume = Volume::luks2(&self.scratch, "48M");
        let server = self.serve(&volume, options);
        (volume, server)
    }

    pub(crate) fn serve(&self, volume: &Volume, options: &[&str]) -> Server {
        let mut command = volume.command("open");
        command.env("UNDERSEAL_RUNTIME_DIR", self.directory());
        Server::start_command(command, options)
    }

    /// A table of one crypt line over a file `image`, and its server; called `table`.
    pub(crate) fn open_table(&self, key: &str, options: &[&str]) -> Server {
        let image = self.scratch.path("image");
        if !image.exists() {
            self.scratch.sparse("image", 16 << 20);
        }
        let line = format!("0 32768 crypt aes-xts-plain64 {key} 0 {} 0", text(&image));
        let table = self.scratch.file("table", line.as_bytes());
        let mut command = underseal();
        command
            .args(["table", "open", "--table", text(&table)])
            .env("UNDERSEAL_RUNTIME_DIR", self.directory());
        Server::start_command(command, options)
    }

    pub(crate) fn command(&self, words: &str) -> Command {
        let mut command = underseal();
        command.args(words.split(' ')).env("UNDERSEAL_RUNTIME_DIR", self.directory());
        command
    }

    pub(crate) fn run(&self, words: &str) -> Ran {
        Ran::from(self.command(words).output().unwrap())
    }

    pub(crate) fn run_with(&self, words: &str, input: &str) -> Ran {
        let mut command = self.command(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A command that refuses reads nothing.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        Ran::from(child.wait_with_output().unwrap())
    }

    /// Runs a command that must succeed; returns its output.
    #[track_caller]
    pub(crate) fn does(&self, words: &str) -> String {
        let ran = self.run(words);
        assert_eq!(ran.code, Some(0), "{words}: {ran:?}");
        ran.out
    }

    /// Runs what must be refused with these words.
    #[track_caller]
    pub(crate) fn is_refused(&self, words: &str, code: i32, why: &str) {
        let ran = self.run(words);
        assert_eq!(ran.code, Some(code), "{words}: {ran:?}");
        assert!(ran.err.contains(why), "{words}: {ran:?}");
    }

    pub(crate) fn status(&self, name: &str) -> serde_json::Value {
        serde_json::from_str(&self.does(&format!("status {name} --json"))).unwrap()
    }

    /// The process that serves the volume.
    #[track_caller]
    pub(crate) fn pid(&self) -> u32 {
        u32::try_from(self.status("image")["pid"].as_u64().unwrap()).unwrap()
    }

    /// Waits until it is known which process serves the volume; `None` if the last one is gone.
    pub(crate) fn still_served(&self) -> Option<u32> {
        let mut found = None;
        wait_until("it is known who serves", PATIENCE, || {
            let ran = self.run("status image --json");
            if ran.code == Some(0) {
                let status: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
                found = u32::try_from(status["pid"].as_u64().unwrap()).ok();
            }
            found.is_some() || ran.err.contains("no volume image is open")
        });
        found
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}
