//! Locked memory, for a server whose device may carry swap.
//!
//! A server whose memory was swapped out would wait for its own device: for the memory to be read
//! back, or for the kernel to write out other pages first. Servers of users other than root lock
//! nothing: their devices carry no swap, and they would soon exceed the limit of locked memory. A
//! table's server has locked itself before, and keeps of its many queues only what they have used.

use rustix::mm::{MlockAllFlags, mlockall};

use super::UblkConfig;

/// Locks the process's memory and marks the thread, and those that it starts, as I/O flushers.
pub(super) fn stay_in_memory(config: &UblkConfig) {
    if !locks(config) {
        return;
    }
    lock(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE);
    if let Err(e) = rustix::process::configure_io_flusher_behavior(true) {
        log::warn!("the kernel was not told that this serves I/O, so the device should not carry swap: {e}");
    }
}

/// Locks the memory of queues made later, all of it before its first use. Existing memory is locked
/// already.
pub(super) fn lock_as_mapped(config: &UblkConfig) {
    if locks(config) {
        lock(MlockAllFlags::FUTURE);
    }
}

fn locks(config: &UblkConfig) -> bool {
    !config.unprivileged && !config.for_tables
}

fn lock(flags: MlockAllFlags) {
    if let Err(e) = mlockall(flags) {
        log::warn!("memory is not locked, so the device should not carry swap: {e}");
    }
}

/// Limits locking to used pages. The memory of the device's queues is complete by now; later
/// memory, such as that of other clients' queues, is only locked where it is used.
pub(super) fn lock_as_touched(config: &UblkConfig) {
    if locks(config)
        && let Err(e) = mlockall(MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)
    {
        log::debug!("memory to come is locked as before: {e}");
    }
}
