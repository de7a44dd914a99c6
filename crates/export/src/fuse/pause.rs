//! The pause of a mount's threads, for a handover of the mount.
//!
//! Requests that the kernel has handed out are answered before the pause. Other requests stay in
//! the kernel, and are answered by the process that reads them next: this one, or another one with
//! the mount's descriptor. So a handover carries no request.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::INBOX;
use super::server::{FuseServer, Shared};
use crate::{Error, ErrorKind, Result};

/// How often paused threads are woken again: a thread may have missed a wakeup as it went to sleep.
const AGAIN: Duration = Duration::from_millis(2);
/// How long threads may take to resume.
const GOING_ON: Duration = Duration::from_secs(10);

/// A mount, for the new server of a handover.
#[derive(Debug)]
pub struct CarriedMount {
    /// The descriptor that requests come from.
    pub device: OwnedFd,
    /// The mount's path and settings.
    pub place: MountPlace,
}

/// A mount's path, and the settings known to the kernel and to clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MountPlace {
    /// The absolute path.
    pub path: PathBuf,
    /// True when the mount is a folder.
    pub folder: bool,
    /// The mount namespace of the path, as in /proc/self/ns/mnt.
    pub namespace: String,
    /// The longest write negotiated with the kernel, in bytes.
    pub longest: u32,
    /// The files' times, in seconds since 1970.
    pub since: u64,
    /// The files' group.
    pub gid: u32,
}

/// Returns this process's mount namespace.
pub(super) fn namespace() -> Result<String> {
    let link = std::fs::read_link("/proc/self/ns/mnt");
    let link = link.map_err(|e| Error::new(ErrorKind::Io, "/proc/self/ns/mnt").with_source(e))?;
    Ok(link.to_string_lossy().into_owned())
}

/// The means to pause a mount's threads.
#[derive(Clone)]
pub struct FuseHolder(Arc<Shared>);

/// The threads' side of the pause.
#[derive(Debug, Default)]
pub(super) struct Hold {
    /// True while threads are to pause; every thread reads it every turn.
    is_held: AtomicBool,
    counts: Mutex<Counts>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Counts {
    /// The number of paused threads: they have no request in flight, and take none.
    resting: usize,
    /// The number of threads that no request would wake.
    deaf: usize,
}

impl Hold {
    pub(super) fn new(is_held: bool) -> Self {
        Self { is_held: is_held.into(), ..Self::default() }
    }

    pub(super) fn is_held(&self) -> bool {
        self.is_held.load(SeqCst)
    }

    /// Counts the calling thread as paused, or no longer.
    pub(super) fn rests(&self, rests: bool) {
        add(&mut self.counts().resting, rests);
        self.changed.notify_all();
    }

    /// Counts the calling thread as one that no request wakes, or no longer. The thread then looks
    /// again whether all threads are to pause.
    pub(super) fn is_deaf(&self, deaf: bool) {
        add(&mut self.counts().deaf, deaf);
        self.changed.notify_all();
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn add(count: &mut usize, one: bool) {
    *count = if one { *count + 1 } else { count.saturating_sub(1) };
}

impl FuseServer {
    /// Returns the means to pause the threads. The threads of a mount from another server are
    /// paused until [`FuseHolder::go_on`].
    pub fn holder(&self) -> FuseHolder {
        FuseHolder(self.shared().clone())
    }

    /// Returns the mount, for the new server of a handover.
    ///
    /// # Errors
    /// `Io` when the descriptor cannot be duplicated.
    pub fn carried(&self) -> Result<CarriedMount> {
        let device = self.device().try_clone_to_owned();
        let no_descriptor = |e| Error::new(ErrorKind::Io, "no descriptor for the mount").with_source(e);
        let Shared { path, files, .. } = &**self.shared();
        let (since, gid) = files.since_and_group();
        let (path, folder, namespace) = (path.clone(), files.are_in_a_folder(), namespace()?);
        let place = MountPlace { path, folder, namespace, longest: INBOX, since, gid };
        Ok(CarriedMount { device: device.map_err(no_descriptor)?, place })
    }
}

impl FuseHolder {
    /// Returns true when the volume is unmounted.
    pub fn is_gone(&self) -> bool {
        self.0.is_gone()
    }

    /// Pauses all threads, and waits until the requests in flight are answered.
    ///
    /// # Errors
    /// `Drain` when some are not answered in time. The threads stay paused all the same.
    pub fn hold(&self, until: Instant) -> Result<()> {
        self.0.hold.is_held.store(true, SeqCst);
        if !self.wait(until, |counts, threads| counts.resting >= threads) {
            return Err(Error::new(ErrorKind::Drain, "requests of its mount are not answered in time"));
        }
        Ok(())
    }

    /// Resumes all threads.
    pub fn go_on(&self) {
        self.0.hold.is_held.store(false, SeqCst);
        if !self.wait(Instant::now() + GOING_ON, |counts, _| counts.resting + counts.deaf == 0) {
            log::error!("threads of {} do not go on", self.0.path.display());
        }
    }

    /// Wakes the threads until enough of them are counted. Returns false when the time has passed.
    fn wait(&self, until: Instant, enough: impl Fn(&Counts, usize) -> bool) -> bool {
        let hold = &self.0.hold;
        loop {
            let threads = self.0.threads();
            self.0.mapping.rouse();
            let counts = hold.counts();
            if enough(&counts, threads) {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            drop(hold.changed.wait_timeout(counts, AGAIN));
        }
    }
}

impl fmt::Debug for FuseHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FuseHolder").field(&self.0.hold).finish()
    }
}
