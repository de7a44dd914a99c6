//! A directory with a volume in it, and the binary run there.

mod server;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tempfile::TempDir;
use underseal_testing::{skip, wait_until};

pub(crate) use server::{Server, signal_to as server_signal};
pub(crate) use underseal_testing::PATIENCE;

/// A passphrase that occurs nowhere else: tests search for it in places where it must not be.
pub(crate) const PASSPHRASE: &str = "hunter2-of-the-command-tests-0451";
/// A key derivation that costs nothing.
pub(crate) const CHEAP: [&str; 4] = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];

/// A directory of a test's own. `pass` holds the passphrase, `wrong` another one.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        let this = Self(tempfile::tempdir().unwrap());
        std::fs::write(this.path("pass"), format!("{PASSPHRASE}\n")).unwrap();
        std::fs::write(this.path("wrong"), "open sesame\n").unwrap();
        this
    }

    /// A directory with a LUKS2 volume `disk` of 32 MiB, 16 MiB of them data.
    pub(crate) fn with_volume() -> Self {
        let this = Self::new();
        this.format("disk", &["--size", "32M"]);
        this
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// The binary, to be run in this directory.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_underseal"));
        command.args(args).current_dir(self.0.path()).stdin(Stdio::null());
        // Apart from the control sockets of the user that runs the tests.
        command.env("UNDERSEAL_RUNTIME_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/run"));
        command
    }

    /// Runs the binary to its end.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Ran {
        Ran::from(self.command(args).output().unwrap())
    }

    /// Runs the binary with input on stdin.
    pub(crate) fn run_with_input<S: AsRef<OsStr>>(&self, args: &[S], input: &[u8]) -> Ran {
        feed(self.command(args), input)
    }

    pub(crate) fn format(&self, image: &str, args: &[&str]) {
        let all = [&["format", image, "--passphrase-file", "pass"], &CHEAP[..], args].concat();
        self.run(&all).succeeds();
    }

    /// A command on `image` with the right passphrase.
    pub(crate) fn unlock(&self, command: &str, image: &str, args: &[&str]) -> Ran {
        self.run(&[&[command, image, "--passphrase-file", "pass"], args].concat())
    }

    /// Runs another program in this directory; it must succeed.
    pub(crate) fn tool<S: AsRef<OsStr>>(&self, program: &str, args: &[S]) -> String {
        let mut command = Command::new(program);
        command.args(args).current_dir(self.0.path()).stdin(Stdio::null());
        loop {
            let output =
                command.output().unwrap_or_else(|e| panic!("{program} is needed for the tests: {e}"));
            // qemu-img 7.2 gives up, by chance, when it derives a key in less time than the clock
            // shows.
            if !String::from_utf8_lossy(&output.stderr).contains("Unable to get accurate CPU usage") {
                return Ran::from(output).succeeds();
            }
        }
    }

    /// libnbd's shell, to run Python connected to `uri` as `h`.
    pub(crate) fn nbdsh(&self, uri: &str, script: &str) -> Command {
        let mut command = Command::new("nbdsh");
        command.args(["-u", uri, "-c", script]).current_dir(self.0.path()).stdin(Stdio::null());
        // The distribution's own Python is the one that has libnbd as a module.
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("/usr/bin:{path}"));
        command
    }

    /// A file of bytes that compress badly and differ from each other.
    pub(crate) fn noise(&self, name: &str, len: usize) -> Vec<u8> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ len as u64;
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        })
        .take(len)
        .collect();
        std::fs::write(self.path(name), &bytes).unwrap();
        bytes
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }
}

/// A program that has ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            bytes: output.stdout,
        }
    }
}

impl Ran {
    /// Asserts success; returns stdout.
    #[track_caller]
    pub(crate) fn succeeds(self) -> String {
        assert_eq!(self.code, Some(0), "{}\n{}", self.stdout, self.stderr);
        self.stdout
    }

    /// Asserts failure with status `code`: stderr has a line that contains `what`, and a line with
    /// the remedy.
    #[track_caller]
    pub(crate) fn fails(&self, code: i32, what: &str) {
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        assert!(self.stderr.contains(what), "{:?} lacks {what:?}", self.stderr);
        let mut lines = self.stderr.lines().skip_while(|line| !line.starts_with("underseal: "));
        assert!(lines.next().is_some(), "no line says what happened: {:?}", self.stderr);
        let remedy = lines.next();
        assert!(remedy.is_none_or(|line| line.starts_with("try: ")), "{:?}", self.stderr);
        assert_eq!(lines.next(), None, "{:?}", self.stderr);
        assert!(!self.stderr.contains(PASSPHRASE), "the passphrase is told");
    }
}

/// Runs a command with input on stdin.
pub(crate) fn feed(mut command: Command, input: &[u8]) -> Ran {
    use std::io::Write;
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        scope.spawn(move || {
            // A program that ends early closes its end of the pipe: only its exit status counts.
            let _ = stdin.write_all(input);
        });
        child.wait_with_output().unwrap()
    });
    Ran::from(output)
}

/// Waits for something that takes a moment.
#[track_caller]
pub(crate) fn eventually(what: &str, holds: impl FnMut() -> bool) {
    wait_until(what, PATIENCE, holds);
}

/// Whether a process is running, and not only a zombie. A process with a living thread keeps its
/// open files, an image's lock too, though /proc may call it a zombie: its first thread can end
/// before the others.
pub(crate) fn is_running(pid: u32) -> bool {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&Timespec::default())) == Ok(0),
        // Buried already; newer kernels say INVAL while that is being done.
        Err(Errno::SRCH | Errno::INVAL) => false,
        Err(e) => panic!("process {pid}: {e}"),
    }
}

pub(crate) fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Whether the tests run as root. Only root may look into a process that cannot be dumped.
pub(crate) fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip("a process", "only root may look into it");
    }
    root
}
