//! Locked memory of a server whose device may carry swap.
//!
//! A server whose memory was swapped out would wait for its own device: for that memory to come
//! back, or for the kernel to write out other pages first. Servers of users lock nothing: their
//! devices carry no swap, and where locked memory is limited, all of it would soon be locked.

use rustix::mm::{MlockAllFlags, mlockall};

use super::UblkConfig;

/// Locks the process's memory and marks the thread as one that serves I/O, which the threads that
/// it starts inherit.
pub(super) fn stay_in_memory(config: &UblkConfig) {
    if config.unprivileged {
        return;
    }
    lock(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE);
    if let Err(e) = rustix::process::configure_io_flusher_behavior(true) {
        log::warn!("the kernel was not told that this serves I/O, so the device should not carry swap: {e}");
    }
}

/// The memory of queues that are made anew: all of it, before it is used. What was there is locked
/// already.
pub(super) fn lock_as_mapped(config: &UblkConfig) {
    if !config.unprivileged {
        lock(MlockAllFlags::FUTURE);
    }
}

fn lock(flags: MlockAllFlags) {
    if let Err(e) = mlockall(flags) {
        log::warn!("memory is not locked, so the device should not carry swap: {e}");
    }
}

/// The memory of the device's queues is there as a whole by now. Of what comes later, such as the
/// queues of other clients, only what is used is kept in memory.
pub(super) fn lock_as_touched(config: &UblkConfig) {
    if !config.unprivileged
        && let Err(e) = mlockall(MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)
    {
        log::debug!("memory to come is locked as before: {e}");
    }
}
