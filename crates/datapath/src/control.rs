//! What can be changed while a volume runs: its policy, its key, whether it runs at all.
//!
//! Every change has a version. A queue compares one number for each request; when it differs it takes a copy of the
//! settings. Nothing on a request's way takes a lock.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use underseal_volume::Volume;

use crate::post::Post;
use crate::{Error, ErrorKind, Policy, Result, Stats};

/// Queues have nothing else to do when they are to let go of a key.
const LET_GO: Duration = Duration::from_secs(10);

pub(crate) struct Control {
    version: AtomicU32,
    state: Mutex<State>,
    /// A queue has become quiet, or is gone.
    quiet: Condvar,
    /// Held through a change of several steps.
    changing: Mutex<()>,
}

struct State {
    settings: Settings,
    queues: Vec<Arc<Post>>,
    /// What queues counted that are gone.
    past: Stats,
}

/// A queue's copy of what is set.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) version: u32,
    pub(crate) policy: Policy,
    /// None: its key is wiped.
    pub(crate) volume: Option<Arc<Volume>>,
    pub(crate) suspended: bool,
}

impl Control {
    pub(crate) fn new(volume: Volume, policy: Policy) -> Self {
        let settings = Settings { version: 1, policy, volume: Some(Arc::new(volume)), suspended: false };
        Self {
            version: AtomicU32::new(settings.version),
            state: Mutex::new(State { settings, queues: Vec::new(), past: Stats::default() }),
            quiet: Condvar::new(),
            changing: Mutex::new(()),
        }
    }

    /// The version of what is set now.
    pub(crate) fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    pub(crate) fn settings(&self) -> Settings {
        self.state().settings.clone()
    }

    /// A queue begins.
    pub(crate) fn register(&self, post: Arc<Post>) -> Settings {
        let mut state = self.state();
        state.queues.push(post);
        state.settings.clone()
    }

    /// A queue ends.
    pub(crate) fn unregister(&self, post: &Arc<Post>) {
        let mut state = self.state();
        state.queues.retain(|other| !Arc::ptr_eq(other, post));
        post.stats.add_to(&mut state.past);
        drop(state);
        self.quiet.notify_all();
    }

    /// A queue has nothing in flight under this version.
    pub(crate) fn is_quiet(&self, post: &Post, version: u32) {
        let state = self.state();
        post.set_quiet(version);
        drop(state);
        self.quiet.notify_all();
    }

    pub(crate) fn set_policy(&self, policy: Policy) {
        let _changing = self.changing();
        self.change(|settings| settings.policy = policy);
    }

    /// Stops new requests and waits for those in flight. False: it was suspended already.
    ///
    /// # Errors
    /// `Busy` when they do not end in time; the volume runs on.
    pub(crate) fn suspend(&self, limit: Duration) -> Result<bool> {
        let _changing = self.changing();
        if self.state().settings.suspended {
            return Ok(false);
        }
        let version = self.change(|settings| settings.suspended = true);
        if !self.wait_until_quiet(version, limit) {
            self.change(|settings| settings.suspended = false);
            let context = format!("requests in flight did not end within {limit:?}");
            return Err(Error::new(ErrorKind::Busy, context));
        }
        Ok(true)
    }

    /// Waits until every queue has seen this version, which is suspended, and has nothing in flight. False: that takes
    /// longer than `limit`.
    fn wait_until_quiet(&self, version: u32, limit: Duration) -> bool {
        let begun = Instant::now();
        let mut state = self.state();
        while state.queues.iter().any(|post| post.quiet_at() != version) {
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return false;
            }
            let waited = self.quiet.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    pub(crate) fn resume(&self) -> Result<()> {
        let _changing = self.changing();
        if self.state().settings.volume.is_none() {
            return Err(Error::new(ErrorKind::NoKey, "the key is wiped: set one first"));
        }
        self.change(|settings| settings.suspended = false);
        Ok(())
    }

    /// Lets requests go on, with a key or without.
    pub(crate) fn release(&self) {
        let _changing = self.changing();
        self.change(|settings| settings.suspended = false);
    }

    /// Puts another volume, or none, in the place of a suspended one, and waits until no queue has the old one's key.
    pub(crate) fn replace(&self, volume: Option<Arc<Volume>>) -> Result<()> {
        let _changing = self.changing();
        if !self.state().settings.suspended {
            return Err(Error::new(ErrorKind::NotSuspended, "not suspended during key manipulation"));
        }
        let version = self.change(|settings| settings.volume = volume);
        if !self.wait_until_quiet(version, LET_GO) {
            let context =
                format!("a queue did not let go of the old key within {LET_GO:?}; it will when it is used");
            return Err(Error::new(ErrorKind::Busy, context));
        }
        Ok(())
    }

    pub(crate) fn stats(&self) -> Stats {
        let state = self.state();
        let mut sum = state.past.clone();
        for post in &state.queues {
            post.stats.add_to(&mut sum);
            post.stats.add_present(&mut sum);
        }
        sum
    }

    /// Makes a change known to every queue. Its version.
    fn change(&self, change: impl FnOnce(&mut Settings)) -> u32 {
        let mut state = self.state();
        change(&mut state.settings);
        state.settings.version = state.settings.version.wrapping_add(1);
        let version = state.settings.version;
        self.version.store(version, Ordering::Release);
        state.queues.iter().for_each(|post| post.rouse());
        version
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
