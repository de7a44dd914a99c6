//! A time limit for a process that holds another process's device and may hang: the kernel ends it,
//! even if it was stopped.

#![expect(unsafe_code, reason = "timers and their signal")]

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// A time limit. It is made before system calls are filtered, and can be set afterwards.
pub(crate) struct TimeLimit(libc::timer_t);

impl TimeLimit {
    /// A limit that is not set yet.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: a structure of integers and a pointer, all of which may be zero.
        let mut event: libc::sigevent = unsafe { MaybeUninit::zeroed().assume_init() };
        event.sigev_notify = libc::SIGEV_SIGNAL;
        event.sigev_signo = libc::SIGKILL;
        let mut timer = MaybeUninit::uninit();
        // SAFETY: both are valid for the call, which reads one and writes the other.
        let made = unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, timer.as_mut_ptr()) };
        match made {
            // SAFETY: the call has written it.
            0 => Ok(Self(unsafe { timer.assume_init() })),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Ends the process after `limit`, unless it is set again.
    pub(crate) fn set(&self, limit: Duration) -> io::Result<()> {
        let once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let value = libc::timespec {
            tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        let spec = libc::itimerspec { it_interval: once, it_value: value };
        // SAFETY: the timer is there for as long as this is; the rest is valid for the call.
        match unsafe { libc::timer_settime(self.0, 0, &raw const spec, std::ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Lifts the limit.
    pub(crate) fn lift(self) -> io::Result<()> {
        self.set(Duration::ZERO)
    }
}
