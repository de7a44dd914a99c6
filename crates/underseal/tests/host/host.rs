//! A host: a list of volumes, a folder of control sockets, and no server left when it goes.

use std::path::PathBuf;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::volume::{Volume, text, underseal};
use crate::support::{Scratch, output};

pub(crate) struct Host {
    pub(crate) scratch: Scratch,
    lines: Vec<String>,
}

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Host {
    pub(crate) fn new() -> Self {
        let host = Self { scratch: Scratch::new(), lines: Vec::new() };
        host.save();
        host
    }

    pub(crate) fn directory(&self) -> PathBuf {
        self.scratch.path("run")
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.scratch.path("volumes")
    }

    /// Adds a line.
    pub(crate) fn line(&mut self, line: impl Into<String>) {
        self.lines.push(line.into());
        self.save();
    }

    fn save(&self) {
        self.scratch.file("volumes", (self.lines.join("\n") + "\n").as_bytes());
    }

    /// Adds a LUKS2 volume that opens with a key file, and its line with these options.
    pub(crate) fn volume(&mut self, name: &str, options: &str) -> Volume {
        let volume = Volume::at(&self.scratch, &format!("{name}.img")).format("48M", &[]);
        self.line(format!("{name} {} {} {options}", text(&volume.image), text(&volume.passphrase)));
        volume
    }

    /// A command on this list.
    pub(crate) fn command(&self, words: &str) -> Command {
        let mut command = underseal();
        command.args(words.split(' ')).arg("--config").arg(self.config());
        command.env("UNDERSEAL_RUNTIME_DIR", self.directory());
        command
    }

    pub(crate) fn run(&self, words: &str) -> Ran {
        let output = output(&mut self.command(words));
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// Runs a command that must succeed; returns its output.
    #[track_caller]
    pub(crate) fn does(&self, words: &str) -> String {
        let ran = self.run(words);
        assert_eq!(ran.code, Some(0), "{words}: {ran:?}");
        ran.out
    }

    /// The output of `ps --json`.
    pub(crate) fn ps(&self) -> Value {
        serde_json::from_str(&self.run("ps --json").out).unwrap()
    }

    /// The states of all volumes, as `name:state`.
    pub(crate) fn states(&self) -> String {
        let ps = self.ps();
        let state = |volume: &Value| {
            format!("{}:{}", volume["name"].as_str().unwrap(), volume["state"].as_str().unwrap())
        };
        let states: Vec<_> = ps["volumes"].as_array().unwrap().iter().map(state).collect();
        states.join(" ")
    }

    /// The process that serves a volume.
    pub(crate) fn pid(&self, name: &str) -> Option<Pid> {
        let ps = self.ps();
        let volume = ps["volumes"].as_array().unwrap().iter().find(|volume| volume["name"] == name)?.clone();
        Pid::from_raw(i32::try_from(volume["status"]["pid"].as_i64()?).unwrap())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let left = output(&mut self.command("ps --json")).stdout;
        let left: Value = serde_json::from_slice(&left).unwrap_or_default();
        for volume in left["volumes"].as_array().into_iter().flatten() {
            let pid = volume["status"]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
            if let Some(pid) = pid.and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}
