//! Becoming a daemon once the volume is open.
//!
//! ```text
//!   parent   fork --- waits on a pipe ------------------------> exits: 0, or as the child did
//!   child         \-- asks, unlocks, listens -- detach -- serves
//! ```
//!
//! The child does all the work, before and after, because locked memory and threads do not survive
//! a fork.

#![expect(unsafe_code, reason = "fork(2)")]

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Pid, Signal, WaitOptions};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT};

use crate::descriptors;
use crate::error::{Error, Result};
use crate::exit::Exit;

/// The child's duty to notify its parent.
pub(crate) struct Child {
    parent: OwnedFd,
    /// /dev/null, opened while files can still be opened.
    null: File,
    /// Descriptors that the parent inherited.
    inherited: Vec<RawFd>,
    /// True once the child has left the terminal.
    has_left: bool,
}

static DETACHED: AtomicBool = AtomicBool::new(false);

/// Returns true when this process has left its terminal.
pub(crate) fn is_detached() -> bool {
    DETACHED.load(Ordering::Relaxed)
}

/// Forks. The child returns; the parent does not.
///
/// No other thread may exist yet, and no descriptor that this program has opened. Fails with
/// `Failed` when the system refuses.
pub(crate) fn fork() -> Result<Child> {
    let inherited = descriptors::inherited();
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(failed)?;
    let parent = rustix::process::getpid();
    // SAFETY: this is the only thread (`open` forks before it starts any), so the child has the
    // whole process's state, locks included, and may continue as the parent would have.
    match unsafe { libc::fork() } {
        -1 => Err(failed(io::Error::last_os_error())),
        0 => {
            // Until it is detached the child ends with its parent.
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
    /// Lets the child outlive its parent and the terminal. Fails with `Failed` when the system
    /// refuses.
    pub(crate) fn survives(&mut self) -> Result<()> {
        if !self.has_left {
            rustix::process::setsid().map_err(failed)?;
            self.has_left = true;
        }
        rustix::process::set_parent_process_death_signal(None).map_err(failed)
    }

    /// Leaves the terminal and lets the parent exit successfully. Stdout and stderr are closed
    /// afterwards. Fails with `Failed` when the system refuses.
    pub(crate) fn detach(self) -> Result<()> {
        self.detach_saying("")
    }

    /// As [`Self::detach`]; the parent prints `last` on stdout as it ends.
    pub(crate) fn detach_saying(mut self, last: &str) -> Result<()> {
        self.survives()?;
        // The working directory could no longer be unmounted.
        rustix::process::chdir("/").map_err(failed)?;
        rustix::stdio::dup2_stdin(&self.null).map_err(failed)?;
        rustix::stdio::dup2_stdout(&self.null).map_err(failed)?;
        rustix::stdio::dup2_stderr(&self.null).map_err(failed)?;
        // A passphrase may have come through one of the inherited descriptors, and another process
        // may wait for the end of another one.
        for fd in self.inherited {
            // SAFETY: the descriptor was open before any of this program's, and is not owned here:
            // passphrases are read from borrowed descriptors. So its number never belonged to one
            // of this program's descriptors.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        DETACHED.store(true, Ordering::Relaxed);
        // A parent that has ended needs no answer.
        let _ = rustix::io::write(&self.parent, format!("!{last}").as_bytes());
        Ok(())
    }
}

/// Waits until the child is ready or has ended, and returns the exit status.
fn wait_for(child: Option<Pid>, mut ready: File) -> i32 {
    // The keys that end a program send signals to both; the child restores the terminal first, and
    // the parent then ends with the child's status.
    for signal in [SIGINT, SIGQUIT, SIGHUP] {
        let _ = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)));
    }
    if ready.read_exact(&mut [0]).is_ok() {
        // A closed stdout is ignored: the child has started.
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
