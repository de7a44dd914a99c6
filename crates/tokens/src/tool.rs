//! A tool as a child: found in fixed places, with a separate environment, and given secrets only
//! through a pipe.
//!
//! ```text
//!   input --pipe--> the tool --pipe--> secret    locked memory
//!                            --pipe--> said      its messages, for the error
//! ```

#![expect(unsafe_code, reason = "a child, between fork and exec")]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, FdFlags, fcntl_setfd, ioctl_fionbio};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, Signal, ioctl_tiocsctty, kill_process_group, set_parent_process_death_signal, setsid,
};
use underseal_cipher::Key;

use crate::{Error, ErrorKind, Result};

/// The folders of tools, also as the tools' own search path.
const SEARCH: [&str; 4] = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"];
/// The length of a tool's longest answer.
const MAX_SECRET: usize = 1 << 20;
/// The longest stored output of a tool besides the secret.
const MAX_SAID: usize = 16 << 10;

/// A tool that is about to run.
pub(crate) struct Tool {
    name: String,
    command: Command,
    limit: Duration,
    /// Descriptors that the child inherits under their own numbers.
    inherited: Vec<OwnedFd>,
    /// The pipe for the secret, unless it is stdout.
    result: Option<OwnedFd>,
    /// The terminal that the tool uses besides its stderr.
    terminal: Option<File>,
    /// Whether the tool is the user's own program, with the user's environment and stderr.
    is_users: bool,
}

impl Tool {
    /// Finds a tool of this Debian package.
    pub(crate) fn find(name: &str, package: &str, limit: Duration) -> Result<Self> {
        let is_program = |path: &PathBuf| {
            path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
        };
        let found = SEARCH.iter().map(|folder| Path::new(folder).join(name)).find(is_program);
        let path = found.ok_or_else(|| {
            let what = format!("{name} is not installed: it comes with the Debian package {package}");
            Error::new(ErrorKind::NoTool, what)
        })?;
        let mut command = Command::new(path);
        command.env_clear().env("PATH", SEARCH.join(":")).env("LC_ALL", "C").current_dir("/");
        // SAFETY: both are system calls only, which a child may make between fork and exec.
        unsafe {
            command.pre_exec(|| {
                // A tool without a terminal cannot prompt the user, and dies with its parent.
                setsid()?;
                Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
            });
        }
        Ok(Self {
            name: name.into(),
            command,
            limit,
            inherited: Vec::new(),
            result: None,
            terminal: None,
            is_users: false,
        })
    }

    /// Returns a user's program, in the user's environment: its stderr and its terminal are the
    /// user's.
    pub(crate) fn of_user(program: &str, limit: Duration) -> Self {
        let command = Command::new(program);
        Self {
            name: program.into(),
            command,
            limit,
            inherited: Vec::new(),
            result: None,
            terminal: None,
            is_users: true,
        }
    }

    pub(crate) fn args<S: AsRef<std::ffi::OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: Option<&str>) -> Self {
        if let Some(value) = value {
            self.command.env(name, value);
        }
        self
    }

    /// Gives the tool this terminal as /dev/tty and stdout; the caller starts the tool with the
    /// terminal as stdin.
    pub(crate) fn with_terminal(mut self, terminal: &File) -> Result<Self> {
        self.terminal = Some(terminal.try_clone().map_err(|e| Error::system("a terminal", e))?);
        // SAFETY: as in `find`; the child's descriptors are in their places by then.
        unsafe {
            self.command.pre_exec(|| Ok(ioctl_tiocsctty(rustix::stdio::stdin())?));
        }
        Ok(self)
    }

    /// Adds a path from which the child reads these bytes, which are no secret and fit a pipe.
    pub(crate) fn with_file(mut self, option: &str, bytes: &[u8]) -> Result<Self> {
        let (read, write) = pipe()?;
        ioctl_fionbio(&write, true).map_err(|e| Error::system("a pipe", e))?;
        let written = rustix::io::write(&write, bytes).map_err(|e| Error::system("a pipe", e))?;
        if written < bytes.len() {
            return Err(Error::unusable(format!("{} bytes are too many for {}", bytes.len(), self.name)));
        }
        self.command.arg(option).arg(path_of(&read));
        self.inherited.push(read);
        Ok(self)
    }

    /// Names a path for the secret; the tool's stdout then holds messages only.
    pub(crate) fn with_result(mut self, option: &str) -> Result<Self> {
        let (read, write) = pipe()?;
        self.command.arg(option).arg(path_of(&write));
        self.inherited.push(write);
        self.result = Some(read);
        Ok(self)
    }

    /// Starts the tool with `stdin`.
    pub(crate) fn start(mut self, stdin: Stdio) -> Result<Running> {
        let (said, said_end) = pipe()?;
        let again = || said_end.try_clone().map_err(|e| Error::system("a pipe", e));
        let secret = match self.result.take() {
            Some(secret) => {
                match self.terminal.take() {
                    Some(terminal) => self.command.stdout(terminal),
                    None => self.command.stdout(again()?),
                };
                secret
            }
            None => {
                let (secret, end) = pipe()?;
                self.command.stdout(end);
                secret
            }
        };
        self.command.stdin(stdin);
        if !self.is_users {
            self.command.stderr(again()?);
        }
        for fd in &self.inherited {
            fcntl_setfd(fd, FdFlags::empty()).map_err(|e| Error::system("a descriptor", e))?;
        }
        let child = self.command.spawn().map_err(|e| {
            Error::new(ErrorKind::Failed, format!("{} cannot be started", self.name)).with_source(e)
        })?;
        for fd in [&secret, &said] {
            ioctl_fionbio(fd, true).map_err(|e| Error::system("a pipe", e))?;
        }
        // The command and `inherited` are dropped with the child's ends of the pipes, so that the
        // child's end is noticed.
        Ok(Running {
            name: self.name,
            leads: !self.is_users,
            child,
            secret: Stream { fd: Some(secret), bytes: Key::zeroed(4096)?, len: 0 },
            said: Stream { fd: Some(said), bytes: Key::zeroed(MAX_SAID)?, len: 0 },
            deadline: Instant::now() + self.limit,
        })
    }

    /// Runs the tool to its end with `input` on its stdin; returns the secret, and the tool's
    /// messages.
    pub(crate) fn run(self, input: &[u8]) -> Result<Done> {
        let (read, write) = pipe()?;
        let mut running = self.start(read.into())?;
        running.talk(Some(write), input, |_, _| false)?;
        running.finish()
    }
}

/// The output of a tool that has ended.
#[derive(Debug)]
pub(crate) struct Done {
    name: String,
    pub(crate) status: ExitStatus,
    pub(crate) secret: Key,
    /// The tool's messages, as one line.
    pub(crate) said: String,
}

impl Done {
    /// The tool's failure; `None` when its exit status is success.
    pub(crate) fn failure(&self, kind: ErrorKind) -> Option<Error> {
        (!self.status.success()).then(|| Error::new(kind, told(&self.name, &self.said)))
    }
}

fn told(name: &str, said: &str) -> String {
    if said.is_empty() { format!("{name} failed without a message") } else { format!("{name}: {said}") }
}

/// A child and this process's ends of its pipes. Dropping it kills the child.
pub(crate) struct Running {
    name: String,
    /// Whether the child leads a session.
    leads: bool,
    child: Child,
    secret: Stream,
    said: Stream,
    deadline: Instant,
}

impl Running {
    /// Writes `input` and closes `to`, and reads output until `enough` returns true for the secret
    /// and the messages, or the child closes its ends. Returns true for enough output.
    pub(crate) fn talk<F: AsFd>(
        &mut self,
        mut to: Option<F>,
        mut input: &[u8],
        enough: impl Fn(&[u8], &[u8]) -> bool,
    ) -> Result<bool> {
        if let Some(to) = &to {
            ioctl_fionbio(to, true).map_err(|e| Error::system("a pipe", e))?;
        }
        loop {
            if enough(self.secret.read(), self.said.read()) {
                return Ok(true);
            }
            if input.is_empty() {
                to = None;
            }
            if self.secret.fd.is_none() && self.said.fd.is_none() {
                return Ok(false);
            }
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::new(ErrorKind::Failed, format!("{} did not end in time", self.name)));
            }
            let mut fds = Vec::with_capacity(3);
            fds.extend(self.secret.fd.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
            fds.extend(self.said.fd.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
            fds.extend(to.as_ref().map(|fd| PollFd::new(fd, PollFlags::OUT)));
            let wait = Timespec::try_from(left).map_err(|_| Error::unusable("a time limit without end"))?;
            match poll(&mut fds, Some(&wait)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(Error::system("poll", e)),
            }
            drop(fds);
            self.secret.take(MAX_SECRET, &self.name)?;
            self.said.take(usize::MAX, &self.name)?;
            if let Some(end) = &to {
                match rustix::io::write(end, input) {
                    Ok(written) => input = &input[written..],
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    // The child reads no more; its exit explains the reason.
                    Err(_) => input = &[],
                }
            }
        }
    }

    /// Returns true when the child has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// The child's output so far; the next answer follows it.
    pub(crate) fn take_secret(&mut self) -> Result<Key> {
        let taken = Key::new(self.secret.read())?;
        self.secret.clear();
        Ok(taken)
    }

    /// The child's last messages as an error.
    pub(crate) fn failed(&self, kind: ErrorKind) -> Error {
        Error::new(kind, told(&self.name, &one_line(self.said.read())))
    }

    /// Reads to the end and waits for the child.
    pub(crate) fn finish(mut self) -> Result<Done> {
        self.talk(None::<OwnedFd>, &[], |_, _| false)?;
        let status = loop {
            if let Some(status) = self.child.try_wait().map_err(|e| Error::system("wait", e))? {
                break status;
            }
            if Instant::now() > self.deadline {
                return Err(Error::new(ErrorKind::Failed, format!("{} did not end in time", self.name)));
            }
            thread::sleep(Duration::from_millis(2));
        };
        let secret = Key::new(self.secret.read())?;
        Ok(Done { name: self.name.clone(), status, secret, said: one_line(self.said.read()) })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A child that has ended needs no signal: its number is not reused before it is waited for.
        if let Ok(None) = self.child.try_wait() {
            if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()).filter(|_| self.leads) {
                // The child's own children are in its session.
                let _ = kill_process_group(pid, Signal::KILL);
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A buffered output of a child.
struct Stream {
    /// `None` at the end of the output.
    fd: Option<OwnedFd>,
    bytes: Key,
    len: usize,
}

impl Stream {
    fn read(&self) -> &[u8] {
        &self.bytes.as_bytes()[..self.len]
    }

    fn clear(&mut self) {
        self.bytes.as_mut_bytes()[..self.len].fill(0);
        self.len = 0;
    }

    /// Reads available bytes. A full buffer grows up to `limit`, or, without a limit, discards its
    /// content.
    fn take(&mut self, limit: usize, name: &str) -> Result<()> {
        let Some(fd) = &self.fd else { return Ok(()) };
        loop {
            if self.len == self.bytes.len() && limit == usize::MAX {
                self.len = 0;
            } else if self.len == self.bytes.len() {
                if self.len >= limit {
                    return Err(Error::new(
                        ErrorKind::Failed,
                        format!("{name} returns more than {limit} bytes"),
                    ));
                }
                let mut larger = Key::zeroed(self.len * 2)?;
                larger.as_mut_bytes()[..self.len].copy_from_slice(self.read());
                self.bytes = larger;
            }
            match rustix::io::read(fd, &mut self.bytes.as_mut_bytes()[self.len..]) {
                Ok(0) => break,
                Ok(read) => self.len += read,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(Error::system("a pipe", e)),
            }
        }
        self.fd = None;
        Ok(())
    }
}

pub(crate) fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    pipe_with(PipeFlags::CLOEXEC).map_err(|e| Error::system("a pipe", e))
}

fn path_of(fd: &OwnedFd) -> String {
    format!("/dev/fd/{}", fd.as_raw_fd())
}

/// The messages of a tool: its last lines, within the length of an error.
fn one_line(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(3)..];
    let joined = last.join("; ");
    let skip = joined.chars().count().saturating_sub(400);
    joined.chars().skip(skip).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Returns a terminal for a tool that asks for its PIN on one: this process's end, and the tool's.
pub(crate) fn terminal() -> Result<(OwnedFd, File)> {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let failed = |e: Errno| Error::system("a terminal for the tool", e);
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).map_err(failed)?;
    grantpt(&ours).map_err(failed)?;
    unlockpt(&ours).map_err(failed)?;
    let name = ptsname(&ours, Vec::new()).map_err(failed)?;
    let theirs = rustix::fs::open(
        name.as_c_str(),
        rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    );
    Ok((ours, theirs.map_err(failed)?.into()))
}

#[cfg(test)]
mod tests;
