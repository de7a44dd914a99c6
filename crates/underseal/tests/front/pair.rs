//! Both programs.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::support::mounts::client;
use crate::support::tools::missing;
use crate::support::{Scratch, output, tool};

/// Key derivation that costs next to nothing.
pub(crate) const CHEAP: [&str; 4] = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];

/// A folder of images for each program.
pub(crate) struct Pair {
    scratch: Scratch,
}

/// The outputs of both programs.
pub(crate) struct Said {
    pub(crate) ours: Output,
    pub(crate) theirs: Output,
}

impl Pair {
    pub(crate) fn new() -> Self {
        let scratch = Scratch::new();
        for folder in ["ours", "theirs", "bin"] {
            fs::create_dir(scratch.path(folder)).unwrap();
        }
        symlink(env!("CARGO_BIN_EXE_underseal"), scratch.path("bin/cryptsetup")).unwrap();
        Self { scratch }
    }

    /// Our program, in our folder.
    pub(crate) fn ours(&self) -> Command {
        let mut command = tool(self.scratch.path("bin/cryptsetup").to_str().unwrap());
        command.current_dir(self.folder("ours")).env("UNDERSEAL_MAPPER", self.scratch.path("mapper"));
        command
    }

    /// The real one, in its folder.
    pub(crate) fn theirs(&self) -> Command {
        let mut command = tool("cryptsetup");
        command.current_dir(self.folder("theirs"));
        command
    }

    pub(crate) fn folder(&self, whose: &str) -> PathBuf {
        self.scratch.path(whose)
    }

    /// Writes the same file for both programs.
    pub(crate) fn file(&self, name: &str, bytes: &[u8]) {
        for whose in ["ours", "theirs"] {
            fs::write(self.folder(whose).join(name), bytes).unwrap();
        }
    }

    /// An empty image for both.
    pub(crate) fn image(&self, name: &str, size: u64) {
        for whose in ["ours", "theirs"] {
            fs::File::create(self.folder(whose).join(name)).unwrap().set_len(size).unwrap();
        }
    }

    /// The real program's image, for both.
    pub(crate) fn share(&self, name: &str) {
        fs::copy(self.folder("theirs").join(name), self.folder("ours").join(name)).unwrap();
    }

    /// Runs the same words with the same stdin.
    pub(crate) fn run(&self, words: &[&str], stdin: &str) -> Said {
        let ours = with_stdin(self.ours().args(words), stdin);
        let theirs = with_stdin(self.theirs().args(words), stdin);
        Said { ours, theirs }
    }

    /// Runs them, and both must end with the same status.
    #[track_caller]
    pub(crate) fn agree(&self, words: &[&str], stdin: &str) -> Said {
        let said = self.run(words, stdin);
        let (ours, theirs) = (said.ours.status.code(), said.theirs.status.code());
        assert_eq!(ours, theirs, "{words:?}\nours: {}\ntheirs: {}", all(&said.ours), all(&said.theirs));
        said
    }

    /// Runs them, and both must end well.
    #[track_caller]
    pub(crate) fn succeed(&self, words: &[&str], stdin: &str) -> Said {
        let said = self.agree(words, stdin);
        assert!(said.ours.status.success(), "{words:?}: {}", all(&said.ours));
        said
    }

    /// Whether the real program opens our image, and ours the real program's, with this passphrase.
    #[track_caller]
    pub(crate) fn each_opens_the_others(&self, image: &str, passphrase: &str, opens: bool) {
        let words =
            |whose: &str| vec!["open".into(), "--test-passphrase".into(), self.folder(whose).join(image)];
        let ours = with_stdin(self.ours().args(words("theirs")), passphrase);
        let theirs = with_stdin(self.theirs().args(words("ours")), passphrase);
        assert_eq!(ours.status.success(), opens, "ours on theirs: {}", all(&ours));
        assert_eq!(theirs.status.success(), opens, "theirs on ours: {}", all(&theirs));
    }
}

/// A volume that is closed however a test ends.
pub(crate) struct Open<'a> {
    pub(crate) pair: &'a Pair,
    pub(crate) name: String,
    pub(crate) plain: PathBuf,
}

impl<'a> Open<'a> {
    #[track_caller]
    pub(crate) fn start(pair: &'a Pair, name: &str, words: &[&str], stdin: &str) -> Self {
        let name = format!("us-{name}-{}", std::process::id());
        let output = with_stdin(pair.ours().arg("open").args(words).arg(&name), stdin);
        assert!(output.status.success(), "{}", all(&output));
        let plain = pair.folder("mapper").join(&name);
        Self { pair, name, plain }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let _ = output(client("fusermount3").args(["-u", "-q", "-z", "--"]).arg(&self.plain));
        let _ = self.pair.ours().args(["close", &self.name]).output();
    }
}

/// Everything that a program said.
pub(crate) fn all(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{}: {out}{err}", output.status)
}

/// Runs a command to its end.
pub(crate) fn with_stdin(command: &mut Command, stdin: &str) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|e| panic!("{}", missing(command, &e)));
    // A program that reads nothing closes the pipe.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    child.wait_with_output().unwrap()
}

/// The words of a path.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
