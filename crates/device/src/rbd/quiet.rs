//! Signals are blocked in threads of the libraries: they are for the program's threads.

#![expect(unsafe_code, reason = "the signal mask of a thread")]

use std::mem::MaybeUninit;
use std::ptr;

/// Blocks all signals in threads that start while this value exists.
pub(super) struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    pub(super) fn begin() -> Self {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::zeroed());
        // SAFETY: both are sets of signals, the first filled before it is read; an empty one is
        // valid.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: restores the previous set of signals.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}
