//! Detects callers that are being killed.
//!
//! A thread that waits for a request cannot be killed once the request was read, not even with
//! SIGKILL. So calls that take long check this themselves, as the kernel's own filesystems do, and
//! end early. Other signals have no effect: a program with a timer every few milliseconds would
//! never get a long file. FUSE's interrupts do not distinguish signals.

use std::fs;

/// The bit of SIGKILL. The kernel adds this signal to every thread of a process that any signal is
/// about to end.
const KILL: u64 = 1 << 8;

/// Returns true when a thread is about to die.
pub(super) fn is_dying(thread: u32) -> bool {
    // The number 0 stands for no thread, or a thread outside of this PID namespace.
    thread != 0 && fs::read_to_string(format!("/proc/{thread}/status")).is_ok_and(|status| has_kill(&status))
}

fn has_kill(status: &str) -> bool {
    let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
    pending.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & KILL != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sigkill_counts() {
        let status =
            |mask: &str| format!("Name:\tsh\nSigQ:\t1/3\nSigPnd:\t{mask}\nShdPnd:\t0000000000000100\n");
        assert!(has_kill(&status("0000000000000100")));
        assert!(has_kill(&status("0000000000000102")));
        assert!(!has_kill(&status("0000000000004000")));
        assert!(!has_kill("Name:\tsh\n"));
        assert!(!is_dying(0) && !is_dying(std::process::id()));
    }
}
