//! The end of a mount by signals.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use underseal_ecryptfs::fs::Unmounter;

use crate::pid_file::PidFile;
use crate::signals::{Taken, Woken};

/// How often a mount that another one covers is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// The end of a mount: the first signal unmounts, and clients keep the files that they have open;
/// a second one ends the process at once.
pub(super) struct MountEnding {
    unmounter: Unmounter,
    /// The path in messages.
    shown: String,
    pid_file: Arc<Mutex<Option<PidFile>>>,
}

impl MountEnding {
    pub(super) fn new(unmounter: Unmounter, shown: String, pid_file: Arc<Mutex<Option<PidFile>>>) -> Self {
        Self { unmounter, shown, pid_file }
    }

    /// Waits for signals, and answers them. The process ends when its mount is unmounted and no
    /// file is open.
    pub(super) fn upon(&self, signals: &Taken) {
        let (mut is_second, mut is_covered) = (false, false);
        loop {
            let limit = is_covered.then(|| Instant::now() + AGAIN);
            is_covered = match signals.wait_until(None, limit) {
                Ok(Woken::Signal(signal)) => self.stop(signal, std::mem::replace(&mut is_second, true)),
                Ok(_) => self.is_covered_still(),
                Err(_) => return,
            };
        }
    }

    /// Unmounts. Returns true when another mount covers the mount, which has to wait for that.
    fn stop(&self, signal: i32, is_second: bool) -> bool {
        let Err(e) = self.unmount() else { return false };
        let shown = &self.shown;
        match Errno::from_io_error(&e) {
            Some(Errno::AGAIN | Errno::INVAL | Errno::NOENT) if is_second => self.end(signal),
            Some(Errno::AGAIN) => {
                log::warn!(
                    "{shown}: another mount covers it: it is served until that is unmounted, or a second signal"
                );
                return true;
            }
            // Another program has unmounted it.
            Some(Errno::INVAL | Errno::NOENT) => log::warn!(
                "{shown} is unmounted already: it ends when its last file is closed, or with a second signal"
            ),
            // Without its server the mount would stay, and fail every request.
            _ if !is_second => log::error!(
                "{shown}: cannot be unmounted, and is served still: {e}; try: `underseal ecryptfs umount {shown}`, \
                 or a second signal, which ends the server and leaves the mount"
            ),
            _ => self.end(signal),
        }
        false
    }

    /// Tries again to unmount a mount that was covered; returns true when it still is.
    fn is_covered_still(&self) -> bool {
        let Err(e) = self.unmount() else { return false };
        match Errno::from_io_error(&e) {
            Some(Errno::AGAIN) => return true,
            Some(Errno::INVAL | Errno::NOENT) => {}
            _ => log::error!("{}: cannot be unmounted: {e}", self.shown),
        }
        false
    }

    /// Unmounts; lazily where the mount is in use.
    fn unmount(&self) -> io::Result<()> {
        match self.unmounter.unmount(false) {
            Err(e) if Errno::from_io_error(&e) == Some(Errno::BUSY) => {
                log::warn!(
                    "the mount is in use: it ends when its last file is closed, or with a second signal"
                );
                self.unmounter.unmount(true)
            }
            done => done,
        }
    }

    fn end(&self, signal: i32) -> ! {
        remove(&self.pid_file);
        std::process::exit(128 + signal)
    }
}

/// Removes the PID file; the thread that ends the process calls this.
pub(super) fn remove(pid_file: &Mutex<Option<PidFile>>) {
    drop(pid_file.lock().unwrap_or_else(PoisonError::into_inner).take());
}
