//! The watch for a server that was killed, and whose process does not end.
//!
//! A thread of the server waits in the kernel for a page of the mount. The page is locked for a
//! read that only the server could have answered. The kernel closes a process's descriptors when
//! the last of its threads has ended, and only closing /dev/fuse ends the mount's requests: so the
//! thread and the read wait for each other. The helper ends the requests.

use std::fs;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use signal_hook::consts::SIGUSR1;
use signal_hook::iterator::{Handle, Signals};

/// How long a process may take to end once its first thread has ended.
const ENDS: Duration = Duration::from_secs(2);

/// The signal that the kernel sends when the server's first thread ends, and the server.
pub(super) struct KilledWatch {
    signals: Signals,
    server: Option<Pid>,
}

impl KilledWatch {
    /// Begins to watch the process that has forked this one, from its first thread.
    pub(super) fn new() -> io::Result<Self> {
        let server = getppid();
        let signals = Signals::new([SIGUSR1])?;
        set_parent_process_death_signal(Some(Signal::USR1))?;
        Ok(Self { signals, server })
    }

    /// Returns the handle that ends the watch.
    pub(super) fn handle(&self) -> Handle {
        self.signals.handle()
    }

    /// Waits until the server's first thread has ended, and calls `killed` when the process is
    /// still there later. Returns without the call when `over` is closed, or by the handle.
    pub(super) fn run(mut self, over: &Receiver<()>, killed: impl FnOnce()) {
        for _ in self.signals.forever() {
            if over.recv_timeout(ENDS) == Err(RecvTimeoutError::Disconnected) {
                return;
            }
            // Other processes can send this signal, too.
            if self.server.is_some_and(is_without_first_thread) {
                return killed();
            }
        }
    }
}

/// Returns true for a process whose first thread has ended.
fn is_without_first_thread(process: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_pid()));
    // proc(5): the second field is a name in brackets, the third the state.
    stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')))
}
