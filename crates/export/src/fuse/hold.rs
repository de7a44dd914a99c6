//! Threads that come to rest, so that another process may go on with their mount.
//!
//! What the kernel has handed out is answered; what it has not stays with it, and whoever takes it
//! next answers that: this process, or another one that has the mount's descriptor. So nothing of a
//! request is carried over.

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

/// How often threads are told that have not come to look: one may have been about to sleep.
const AGAIN: Duration = Duration::from_millis(2);
/// How long threads may take to go on.
const GOING_ON: Duration = Duration::from_secs(10);

/// A mount, for another process.
#[derive(Debug)]
pub struct CarriedMount {
    /// What requests come from.
    pub device: OwnedFd,
    /// The rest.
    pub place: MountPlace,
}

/// Where a mount is, and what its kernel and its users know of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MountPlace {
    /// An absolute path.
    pub path: PathBuf,
    /// Whether it is a folder.
    pub folder: bool,
    /// The mount namespace that the path is in, in the kernel's words (/proc/self/ns/mnt).
    pub namespace: String,
    /// The longest write that was agreed on, in bytes.
    pub longest: u32,
    /// The files' times, in seconds since 1970.
    pub since: u64,
    /// Their group.
    pub gid: u32,
}

/// This process's mount namespace.
pub(super) fn namespace() -> Result<String> {
    let link = std::fs::read_link("/proc/self/ns/mnt");
    let link = link.map_err(|e| Error::new(ErrorKind::Io, "/proc/self/ns/mnt").with_source(e))?;
    Ok(link.to_string_lossy().into_owned())
}

/// Brings a mount's threads to rest.
#[derive(Clone)]
pub struct FuseHolder(Arc<Shared>);

/// The threads' side of it.
#[derive(Debug, Default)]
pub(super) struct Hold {
    /// Looked at by every thread, every turn.
    is_held: AtomicBool,
    counts: Mutex<Counts>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Counts {
    /// Threads that have nothing under way, and take nothing.
    resting: usize,
    /// Those that no request would wake.
    deaf: usize,
}

impl Hold {
    pub(super) fn new(is_held: bool) -> Self {
        Self { is_held: is_held.into(), ..Self::default() }
    }

    pub(super) fn is_held(&self) -> bool {
        self.is_held.load(SeqCst)
    }

    /// A thread rests, or does so no more.
    pub(super) fn rests(&self, rests: bool) {
        add(&mut self.counts().resting, rests);
        self.changed.notify_all();
    }

    /// No request wakes a thread, or one does again. It looks after this whether all are held
    /// still.
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
    /// What brings its threads to rest; those of a mount that was [taken over](Self::take_over) are
    /// at rest until it lets them go on.
    pub fn holder(&self) -> FuseHolder {
        FuseHolder(self.shared().clone())
    }

    /// The mount, for another process.
    ///
    /// # Errors
    /// `Io` when there is no descriptor for it.
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
    /// Whether it is unmounted.
    pub fn is_gone(&self) -> bool {
        self.0.is_gone()
    }

    /// Lets no thread take a request, and waits until those that were taken are answered.
    ///
    /// # Errors
    /// `Drain` when some are not by then. The threads are held all the same.
    pub fn hold(&self, until: Instant) -> Result<()> {
        self.0.hold.is_held.store(true, SeqCst);
        if !self.wait(until, |counts, threads| counts.resting >= threads) {
            return Err(Error::new(ErrorKind::Drain, "requests of its mount are not answered in time"));
        }
        Ok(())
    }

    /// As if nothing had been.
    pub fn go_on(&self) {
        self.0.hold.is_held.store(false, SeqCst);
        if !self.wait(Instant::now() + GOING_ON, |counts, _| counts.resting + counts.deaf == 0) {
            log::error!("threads of {} do not go on", self.0.path.display());
        }
    }

    /// Wakes the threads until so many rest. False when it is too late for that.
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
