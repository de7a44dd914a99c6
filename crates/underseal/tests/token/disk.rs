//! A LUKS2 volume whose tokens are tried.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

use crate::support::volume::underseal;
use crate::support::{Scratch, output, run, tool};

pub(crate) const PASSPHRASE: &str = "the one that is typed";
pub(crate) const PIN: &str = "hunter2-pin";

pub(crate) struct Disk {
    pub(crate) scratch: Scratch,
    pub(crate) image: PathBuf,
}

impl Disk {
    /// Made by cryptsetup; `pass` holds its passphrase, `pin` and `wrong` a PIN and another.
    pub(crate) fn new() -> Self {
        let scratch = Scratch::new();
        let image = scratch.sparse("disk.img", 20 << 20);
        scratch.file("pass", PASSPHRASE.as_bytes());
        scratch.file("pin", PIN.as_bytes());
        scratch.file("wrong", b"another");
        let this = Self { scratch, image };
        let format = ["-q", "luksFormat", "--type", "luks2", "--pbkdf", "pbkdf2"];
        let mut format_command = tool("cryptsetup");
        run(format_command
            .args(format)
            .args(["--pbkdf-force-iterations", "1000"])
            .arg(&this.image)
            .arg(this.file("pass")));
        this
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.scratch.path(name)
    }

    /// `underseal token VERB IMAGE`.
    pub(crate) fn token(&self, verb: &str) -> Command {
        let mut command = underseal();
        command.args(["-q", "token", verb]).arg(&self.image);
        command
    }

    /// `underseal token enroll IMAGE` with the passphrase; what to enroll into follows.
    pub(crate) fn enroll(&self) -> Command {
        let mut command = self.token("enroll");
        command.arg("--passphrase-file").arg(self.file("pass"));
        command
    }

    /// Reads a sector without a terminal to ask on.
    pub(crate) fn read(&self) -> Command {
        let mut command = underseal();
        command.arg("read").arg(&self.image).args(["--length", "512", "-o"]).arg(self.file("out"));
        command
    }

    /// Opens by tokens alone; why not, if it does not.
    #[track_caller]
    pub(crate) fn opens(&self, command: &mut Command) -> Result<(), (i32, String)> {
        let Output { status, stderr, .. } = output(command);
        let said = String::from_utf8_lossy(&stderr).into_owned();
        for secret in [PASSPHRASE, PIN] {
            assert!(!said.contains(secret), "{said}");
        }
        if status.success() { Ok(()) } else { Err((status.code().unwrap_or(-1), said)) }
    }

    pub(crate) fn list(&self) -> Value {
        let listed = run(self.token("list").arg("--json"));
        serde_json::from_str::<Value>(&listed).unwrap()["tokens"].clone()
    }

    /// Whether cryptsetup finds the header sound.
    pub(crate) fn check(&self) {
        run(tool("cryptsetup").arg("luksDump").arg(&self.image));
    }
}
