//! The signals that end or stop a program, caught for a while.

#![expect(unsafe_code, reason = "effects and masks of signals")]

use std::fs;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::low_level::{pipe, unregister};

use crate::{daemon, logging};

/// The signals that ask a program to end.
pub(crate) const ENDING: [i32; 4] = [SIGTERM, SIGINT, SIGQUIT, SIGHUP];
/// The signal that stops a program until it is continued.
pub(crate) const STOPPING: i32 = SIGTSTP;

/// Signals that only wake [`Taken::wait`]. Dropping it restores their default effect.
pub(crate) struct Taken(Vec<One>);

struct One {
    signal: i32,
    woken: UnixStream,
    id: SigId,
}

/// Restores the default effect of SIGCHLD. If a program was started with the signal ignored, the
/// kernel does not report how its children end (wait(2)).
pub(crate) fn hear_of_children() {
    // SAFETY: the default effect runs no code of this process.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// The end of a wait.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    Signal(i32),
    /// The descriptor is readable.
    Readable,
    /// The time limit has passed.
    TooLate,
}

/// Makes writes beyond the limit of a file's size (`ulimit -f`) fail with `EFBIG`. By default
/// SIGXFSZ ends the process: a mount, for all of its users.
pub(crate) fn file_size_limit_is_an_error() {
    // SAFETY: no code of this program runs for an ignored signal.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Makes this process, and the programs that it starts, ignore `signals`.
pub(crate) fn ignore(signals: impl IntoIterator<Item = i32>) {
    for signal in signals {
        // SAFETY: no code of this program runs for an ignored signal.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Catches `signals`. Only one caller at a time may do so. Fails when the system refuses.
pub(crate) fn take(signals: impl IntoIterator<Item = i32>) -> io::Result<Taken> {
    let by_default = by_default()?;
    let mut taken = Taken(Vec::new());
    for signal in signals {
        let (woken, waker) = UnixStream::pair()?;
        taken.0.push(One { signal, woken, id: pipe::register(signal, waker)? });
    }
    by_default.store(false, Ordering::SeqCst);
    Ok(taken)
}

/// Leaves signals to the threads that run already: this one and those that it starts are not
/// interrupted. The kernel delivers a signal to one thread, preferably the first, which may be in a
/// wait that the signal does not end. Fails when the system refuses.
pub(crate) fn leave_to_others(signals: impl IntoIterator<Item = i32>) -> io::Result<()> {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the set is made empty before anything else is done with it, and outlives the calls.
    let failed = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut())
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(failed)) }
}

impl Taken {
    /// Waits for a signal, or until `other` is readable. A daemon has no terminal that hangs up:
    /// there SIGHUP opens a new log file, as log rotation uses it, and ends nothing. See
    /// [`on_hangup`], too. Fails when the system refuses.
    pub(crate) fn wait(&self, other: Option<BorrowedFd<'_>>) -> io::Result<Woken> {
        self.wait_until(other, None)
    }

    /// As [`Taken::wait`], with a time limit.
    pub(crate) fn wait_until(
        &self,
        other: Option<BorrowedFd<'_>>,
        until: Option<Instant>,
    ) -> io::Result<Woken> {
        loop {
            let mut fds: Vec<_> = self.0.iter().map(|one| PollFd::new(&one.woken, PollFlags::IN)).collect();
            fds.extend(other.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let left = left.map(Timespec::try_from).transpose().unwrap_or_default();
            match poll(&mut fds, left.as_ref()) {
                Err(Errno::INTR) => continue,
                Ok(0) => return Ok(Woken::TooLate),
                polled => polled?,
            };
            let came = fds.iter().zip(&self.0).find(|(fd, _)| !fd.revents().is_empty());
            match came {
                Some((_, one)) => {
                    (&one.woken).read_exact(&mut [0])?;
                    match one.signal {
                        SIGHUP if daemon::is_detached() => {
                            logging::reopen();
                            hung_up();
                        }
                        SIGHUP if hangup_is_ignored() => drop(hung_up()),
                        SIGHUP if has_no_terminal() && hung_up() => {}
                        signal => return Ok(Woken::Signal(signal)),
                    }
                }
                None => return Ok(Woken::Readable),
            }
        }
    }
}

/// The action of SIGHUP where no terminal sends it.
static ON_HANGUP: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();

/// Sets the action of SIGHUP, which then does not end a process without a terminal: a daemon, a
/// process under nohup(1), or a service. Only the first call counts.
pub(crate) fn on_hangup(does: impl Fn() + Send + Sync + 'static) {
    has_no_terminal();
    let _ = ON_HANGUP.set(Box::new(does));
}

/// Runs the action; returns true if one is set.
fn hung_up() -> bool {
    ON_HANGUP.get().map(|does| does()).is_some()
}

/// Returns true when no terminal controls this process. The first answer is kept: later a sandbox
/// hides the terminal.
fn has_no_terminal() -> bool {
    static NONE: OnceLock<bool> = OnceLock::new();
    *NONE.get_or_init(|| fs::File::open("/dev/tty").is_err())
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Ok(by_default) = by_default() {
            by_default.store(true, Ordering::SeqCst);
        }
        for one in &self.0 {
            unregister(one.id);
        }
    }
}

/// Returns a flag that is true while the signals have their default effect. An installed handler
/// stays, so it must be able to act as if none were.
fn by_default() -> io::Result<&'static AtomicBool> {
    static BY_DEFAULT: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    if let Some(flag) = BY_DEFAULT.get() {
        return Ok(flag);
    }
    let flag = Arc::new(AtomicBool::new(true));
    for signal in
        ENDING.into_iter().chain([STOPPING]).filter(|&signal| signal != SIGHUP || !hangup_is_ignored())
    {
        signal_hook::flag::register_conditional_default(signal, flag.clone())?;
    }
    Ok(BY_DEFAULT.get_or_init(|| flag))
}

/// nohup(1) starts a program with the signal ignored, to outlive its terminal.
fn hangup_is_ignored() -> bool {
    static IGNORED: OnceLock<bool> = OnceLock::new();
    *IGNORED.get_or_init(|| {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
        mask & 1 << (SIGHUP - 1) != 0
    })
}
