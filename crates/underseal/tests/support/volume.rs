//! An encrypted image and the command's way to it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::tools::tool;
use super::{Scratch, output, run};

pub(crate) const PASSPHRASE: &str = "correct horse battery staple";

/// Key derivation that costs next to nothing.
pub(crate) const CHEAP_PBKDF2: [&str; 4] = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];

/// The command under test.
pub(crate) fn underseal() -> Command {
    tool(env!("CARGO_BIN_EXE_underseal"))
}

/// An image, the file with its passphrase, and the options of every opening.
#[derive(Debug, Clone)]
pub(crate) struct Volume {
    pub(crate) image: PathBuf,
    pub(crate) passphrase: PathBuf,
    pub(crate) options: Vec<String>,
}

impl Volume {
    /// An image that is there, or will be; the passphrase's file is made.
    pub(crate) fn at(scratch: &Scratch, name: &str) -> Self {
        let passphrase = scratch.file(&format!("{name}.pass"), PASSPHRASE.as_bytes());
        Self { image: scratch.path(name), passphrase, options: Vec::new() }
    }

    /// Adds options for opening.
    pub(crate) fn with<I: IntoIterator<Item: Into<String>>>(mut self, options: I) -> Self {
        self.options.extend(options.into_iter().map(Into::into));
        self
    }

    /// Makes a volume with a cheap key derivation.
    pub(crate) fn format(self, size: &str, options: &[&str]) -> Self {
        let mut format = underseal();
        format.arg("format").arg(&self.image).args(["--size", size, "-q"]).args(options);
        if !options.contains(&"plain") {
            format.args(CHEAP_PBKDF2);
        }
        run(format.arg("--passphrase-file").arg(&self.passphrase));
        self
    }

    /// A LUKS2 volume with the defaults.
    pub(crate) fn luks2(scratch: &Scratch, size: &str) -> Self {
        Self::at(scratch, "image").format(size, &[])
    }

    /// An authenticated volume, with a byte of its image changed, and where in its plain bytes that
    /// shows: the whole sector there, 4096 bytes, is not as it was written. What was written begins
    /// its plain bytes.
    pub(crate) fn damaged(scratch: &Scratch, written: &[u8]) -> (Self, u64) {
        let how = ["--cipher", "aes-gcm-random", "--integrity", "aead"];
        let volume = Self::at(scratch, "image").format("24M", &how);
        volume.write(0, written);
        let image = File::options().read(true).write(true).open(&volume.image).unwrap();
        let (at, mut byte) = (20 << 20, [0]);
        image.read_exact_at(&mut byte, at).unwrap();
        image.write_all_at(&[byte[0] ^ 1], at).unwrap();
        let found = output(&mut volume.command("check"));
        assert_eq!(found.status.code(), Some(1), "{found:?}");
        let list = String::from_utf8(found.stdout).unwrap();
        let first = list.split_whitespace().find_map(|word| word.parse().ok()).expect("a sector");
        assert!(first + 4096 < written.len() as u64, "{list}");
        (volume, first)
    }

    /// The command with everything that it needs to open this volume.
    pub(crate) fn command(&self, verb: &str) -> Command {
        let mut command = underseal();
        command.arg(verb).arg(&self.image).args(&self.options);
        command.arg("--passphrase-file").arg(&self.passphrase);
        command
    }

    /// The plain bytes from `offset` on, through `underseal read`.
    pub(crate) fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let range = ["--offset".into(), offset.to_string(), "--length".into(), len.to_string()];
        self.read_with(&range)
    }

    pub(crate) fn read_all(&self) -> Vec<u8> {
        self.read_with::<&str>(&[])
    }

    fn read_with<S: AsRef<OsStr>>(&self, args: &[S]) -> Vec<u8> {
        let mut command = self.command("read");
        let output = output(command.args(args));
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {}\n{err}", output.status);
        output.stdout
    }

    /// Writes plain bytes through `underseal write`.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) {
        let mut command = self.command("write");
        command.args(["--offset", &offset.to_string()]).stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(data).unwrap();
        let status = child.wait().unwrap();
        assert!(status.success(), "{command:?}: {status}");
    }

    /// The plain bytes' number.
    pub(crate) fn size(&self) -> u64 {
        self.read_all().len() as u64
    }
}

/// A path for a command line that is one string.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("the tests' own paths are text")
}
