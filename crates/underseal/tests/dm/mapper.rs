//! A device mapper of a test's own.

use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use rustix::net::sockopt::socket_peercred;
use rustix::process::{Signal, kill_process};

use crate::support::mounts::{cannot_mount, skip};
use crate::support::{Scratch, output, tool};

/// A shell function for commands that must fail: `! COMMAND` alone does not end the script.
pub(crate) const FAILS: &str = "fails() { if \"$@\"; then echo \"$*: it did not fail\"; exit 9; fi; }\n";

/// A device mapper with its own prefix of names, since all processes share /dev/mapper.
pub(crate) struct Mapper {
    pub(crate) scratch: Scratch,
    prefix: String,
    /// The lock of /dev/mapper, which all processes share: dmsetup removes nodes there that it does
    /// not know, so only one mapper runs at a time. Dropped last.
    _turn: Option<File>,
}

impl Mapper {
    /// Returns `None`, and reports the skip, where tests cannot mount.
    pub(crate) fn new() -> Option<Self> {
        if let Some(why) = cannot_mount() {
            skip("a device mapper in userspace", why);
            return None;
        }
        let turn = File::open("/dev").unwrap();
        turn.lock().unwrap();
        let prefix = format!("us{}-{}", std::process::id(), fastrand::u32(..));
        Some(Self { scratch: Scratch::new(), prefix, _turn: Some(turn) })
    }

    /// Another back end with the same names.
    pub(crate) fn beside(&self) -> Self {
        Self { scratch: Scratch::new(), prefix: self.prefix.clone(), _turn: None }
    }

    /// A device's name.
    pub(crate) fn name(&self, of: &str) -> String {
        format!("{}-{of}", self.prefix)
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.scratch.path("dm")
    }

    /// A command that sees the device mapper. It is ended when it takes too long.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = tool("timeout");
        command.args(["--kill-after=5", "200", env!("CARGO_BIN_EXE_underseal"), "dm", "run", "--folder"]);
        command.arg(self.folder()).args(words).env("UNDERSEAL_DM_LIBRARY", library());
        command
    }

    /// Runs a shell script, in the test's folder, with the prefix of names in `$N`.
    #[track_caller]
    pub(crate) fn script(&self, script: &str) -> String {
        self.succeeded(script, &self.try_script(script))
    }

    /// The same under a supervisor.
    #[track_caller]
    pub(crate) fn supervised(&self, script: &str) -> String {
        self.succeeded(script, &self.run_shell(&["--supervise"], script))
    }

    #[track_caller]
    fn succeeded(&self, script: &str, output: &Output) -> String {
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{script}\n{}\n{out}{err}\n{}", output.status, self.log());
        out.into_owned()
    }

    pub(crate) fn try_script(&self, script: &str) -> Output {
        self.run_shell(&[], script)
    }

    fn run_shell(&self, options: &[&str], script: &str) -> Output {
        let script = format!("{FAILS}{script}");
        let mut command = self.command(&[options, &["sh", "-euc", &script]].concat());
        output(command.env("N", &self.prefix).current_dir(self.scratch.folder()))
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder().join("log")).unwrap_or_default()
    }

    /// The back end's process.
    pub(crate) fn back_end(&self) -> Option<rustix::process::Pid> {
        let socket = UnixStream::connect(self.folder().join("control")).ok()?;
        Some(socket_peercred(&socket).unwrap().pid)
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        for mount in fs::read_to_string("/proc/self/mounts").unwrap_or_default().lines() {
            let path = mount.split(' ').nth(1).unwrap_or_default();
            if Path::new(path).starts_with(self.scratch.folder()) && !path.contains("/dm/") {
                let _ = output(tool("umount").args(["--lazy", path]));
            }
        }
        if self.back_end().is_some() {
            // Not `remove_all`: that removes the links of all other tests from /dev/mapper.
            let each =
                "dmsetup ls | cut --fields 1 | while read -r name; do dmsetup remove --force $name; done";
            let _ = output(&mut self.command(&["sh", "-c", each]));
        }
        if let Some(pid) = self.back_end() {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// The library, which cargo builds for no other crate.
pub(crate) fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--locked", "--offline", "--package", "underseal-dm-preload"]);
        let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap();
        assert!(built.success(), "the library is not built");
        Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("debug/libunderseal_dm.so")
    })
}
