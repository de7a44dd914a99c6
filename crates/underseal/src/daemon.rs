//! Going into the background once everything works.
//!
//! ```text
//!   parent   fork --- waits on a pipe ------------------------> exits: 0, or as the child did
//!   child         \-- asks, unlocks, listens -- detach -- serves
//! ```
//!
//! The child does all the work, before and after, because locked memory and threads do not survive
//! a fork.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Pid, Signal, WaitOptions};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT};

use crate::error::{Error, Result};
use crate::exit::Exit;

/// The child's promise to tell its parent.
pub(crate) struct Child {
    parent: OwnedFd,
    /// Opened while files still can be.
    null: File,
    /// Descriptors that whoever started the parent had open.
    inherited: Vec<RawFd>,
    /// It has left the terminal already.
    has_left: bool,
}

static DETACHED: AtomicBool = AtomicBool::new(false);

/// Whether this process has left its terminal.
pub(crate) fn is_detached() -> bool {
    DETACHED.load(Ordering::Relaxed)
}

/// Forks. The child returns; the parent does not.
///
/// There must be no other thread yet, and no descriptor of our own.
///
/// # Errors
/// `Failed` when the system refuses.
pub(crate) fn fork() -> Result<Child> {
    let inherited = inherited();
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(failed)?;
    let parent = rustix::process::getpid();
    // SAFETY: this is the only thread (`open` forks before it starts any), so the child has the
    // whole process's state, locks included, and may go on as the parent would have.
    match unsafe { libc::fork() } {
        -1 => Err(failed(io::Error::last_os_error())),
        0 => {
            // Until it is detached the child belongs to its parent, and ends with it.
            rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).map_err(failed)?;
            if rustix::process::getppid() != Some(parent) {
                return Err(Error::new(Exit::Failed, "interrupted"));
            }
            let null = File::options().read(true).write(true).open("/dev/null").map_err(failed)?;
            Ok(Child { parent: write, null, inherited, has_left: false })
        }
        child => {
            drop(write);
            std::process::exit(wait_for(Pid::from_raw(child), File::from(read)))
        }
    }
}

impl Child {
    /// Ends neither with its parent any more nor with the terminal.
    ///
    /// # Errors
    /// `Failed` when the system refuses.
    pub(crate) fn survives(&mut self) -> Result<()> {
        if !self.has_left {
            rustix::process::setsid().map_err(failed)?;
            self.has_left = true;
        }
        rustix::process::set_parent_process_death_signal(None).map_err(failed)
    }

    /// Leaves the terminal and lets the parent end well. Nothing can be said on stdout or stderr
    /// afterwards.
    ///
    /// # Errors
    /// `Failed` when the system refuses.
    pub(crate) fn detach(self) -> Result<()> {
        self.detach_saying("")
    }

    /// As [`Self::detach`]; the parent says something on stdout as it ends.
    ///
    /// # Errors
    /// `Failed` when the system refuses.
    pub(crate) fn detach_saying(mut self, last: &str) -> Result<()> {
        self.survives()?;
        // The directory that it was started from can be unmounted.
        rustix::process::chdir("/").map_err(failed)?;
        rustix::stdio::dup2_stdin(&self.null).map_err(failed)?;
        rustix::stdio::dup2_stdout(&self.null).map_err(failed)?;
        rustix::stdio::dup2_stderr(&self.null).map_err(failed)?;
        // A passphrase may have come through one of the others, and somebody may wait for the end
        // of another.
        for fd in self.inherited {
            // SAFETY: it was open before anything here was, and nobody here has it: passphrases are
            // read from borrowed descriptors. So its number was never given to one of ours.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        DETACHED.store(true, Ordering::Relaxed);
        // A parent that is gone needs no answer.
        let _ = rustix::io::write(&self.parent, format!("!{last}").as_bytes());
        Ok(())
    }
}

/// The descriptors that are open besides the standard ones.
fn inherited() -> Vec<RawFd> {
    // Gone by the time that its numbers are used, and with it its own.
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let numbers = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let numbers: Vec<RawFd> = numbers.filter(|fd| *fd > 2).collect();
    // SAFETY: the borrow lasts for this call, which fails cleanly on a number that is no open
    // descriptor.
    let is_open = |fd: &RawFd| rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(*fd) }).is_ok();
    numbers.into_iter().filter(is_open).collect()
}

/// Waits until the child is ready or has ended, and gives the exit status.
fn wait_for(child: Option<Pid>, mut ready: File) -> i32 {
    // The keys that end a program reach both; the child puts the terminal right first, and this one
    // ends as it does.
    for signal in [SIGINT, SIGQUIT, SIGHUP] {
        let _ = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)));
    }
    if ready.read_exact(&mut [0]).is_ok() {
        // Whoever does not listen has what was asked for all the same.
        let _ = io::copy(&mut ready, &mut io::stdout());
        return 0;
    }
    let status =
        rustix::process::waitpid(child, WaitOptions::empty()).ok().flatten().map(|(_, status)| status);
    let code = status.and_then(|s| s.exit_status().or(s.terminating_signal().map(|signal| 128 + signal)));
    code.unwrap_or(Exit::Failed as i32)
}

fn failed(cause: impl Into<io::Error>) -> Error {
    Error::new(Exit::Failed, "cannot go into the background").because(&cause.into())
}
