//! What can be changed while a volume runs: its policy, its key, its size and layout, whether it runs at all.
//!
//! Every change has a version. A queue compares one number for each request; when it differs it takes a copy of the
//! settings. Nothing on a request's way takes a lock.
//!
//! Requests end under the settings that they began under. Who must not meet those waits until every queue has *settled*: it
//! has seen the version, and nothing of an earlier one is in flight there; where the volume is suspended, nothing at all.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use underseal_volume::Volume;

use crate::layout::Layout;
use crate::post::Post;
use crate::{Error, ErrorKind, Policy, Result, Stats};

/// Queues have nothing else to do when they are to let go of a key.
const LET_GO: Duration = Duration::from_secs(10);

pub(crate) struct Control {
    version: AtomicU32,
    /// That of the layout, to be looked at without the lock.
    size: AtomicU64,
    state: Mutex<State>,
    /// A queue has settled, or is gone.
    settled: Condvar,
    /// Held through a change of several steps.
    changing: Mutex<()>,
}

struct State {
    settings: Settings,
    /// Sectors are written in part.
    modifies: bool,
    /// Those that claim ranges for themselves.
    movers: u32,
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
    pub(crate) layout: Arc<Layout>,
    pub(crate) suspended: bool,
    /// Requests take the sectors' lock.
    pub(crate) locks: bool,
}

impl Control {
    pub(crate) fn new(volume: Volume, layout: Layout, policy: Policy) -> Self {
        let (volume, layout) = (Some(Arc::new(volume)), Arc::new(layout));
        let locks = layout.spreads;
        let settings = Settings { version: 1, policy, volume, layout, suspended: false, locks };
        Self {
            version: AtomicU32::new(settings.version),
            size: AtomicU64::new(settings.layout.size),
            state: Mutex::new(State {
                settings,
                modifies: false,
                movers: 0,
                queues: Vec::new(),
                past: Stats::default(),
            }),
            settled: Condvar::new(),
            changing: Mutex::new(()),
        }
    }

    /// Sectors are written in part, or are not.
    pub(crate) fn set_modifies(&self, modifies: bool) {
        self.change(|state| state.modifies = modifies);
    }

    /// The version of what is set now.
    pub(crate) fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    /// The size that is set now.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
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
        self.settled.notify_all();
    }

    /// A queue has settled under this version.
    pub(crate) fn has_settled(&self, post: &Post, version: u32) {
        let state = self.state();
        post.set_quiet(version);
        drop(state);
        self.settled.notify_all();
    }

    pub(crate) fn set_policy(&self, policy: Policy) {
        let _changing = self.changing();
        self.change(|state| state.settings.policy = policy);
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
        let version = self.change(|state| state.settings.suspended = true);
        if !self.wait_until_settled(version, limit) {
            self.change(|state| state.settings.suspended = false);
            return Err(busy(limit));
        }
        Ok(true)
    }

    /// Waits until every queue has settled under this version, which must not change meanwhile. False: that takes longer
    /// than `limit`.
    fn wait_until_settled(&self, version: u32, limit: Duration) -> bool {
        let begun = Instant::now();
        let mut state = self.state();
        while state.queues.iter().any(|post| post.quiet_at() != version) {
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return false;
            }
            let waited = self.settled.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    pub(crate) fn resume(&self) -> Result<()> {
        let _changing = self.changing();
        if self.state().settings.volume.is_none() {
            return Err(no_key());
        }
        self.change(|state| state.settings.suspended = false);
        Ok(())
    }

    /// Lets requests go on, with a key or without.
    pub(crate) fn release(&self) {
        let _changing = self.changing();
        self.change(|state| state.settings.suspended = false);
    }

    /// Puts another volume, or none, in the place of a suspended one, and waits until no queue has the old one's key.
    ///
    /// What is set does not change between `check`, which gives the volume, and the change; so it is with all that follow.
    pub(crate) fn replace(&self, check: impl FnOnce() -> Result<Option<Arc<Volume>>>) -> Result<()> {
        let _changing = self.changing();
        let volume = check()?;
        if !self.state().settings.suspended {
            return Err(Error::new(ErrorKind::NotSuspended, "not suspended during key manipulation"));
        }
        let version = self.change(|state| state.settings.volume = volume);
        if !self.wait_until_settled(version, LET_GO) {
            let context =
                format!("a queue did not let go of the old key within {LET_GO:?}; it will when it is used");
            return Err(Error::new(ErrorKind::Busy, context));
        }
        Ok(())
    }

    /// Gives a volume that runs another size. One that shrinks: waits for the requests that may lie beyond its new end.
    ///
    /// # Errors
    /// `NoKey` while it has none; `Busy` when the requests do not end in time: it keeps its size then.
    pub(crate) fn resize(
        &self,
        check: impl FnOnce() -> Result<Layout>,
        volume: Arc<Volume>,
        limit: Duration,
    ) -> Result<()> {
        let _changing = self.changing();
        let layout = check()?;
        let Settings { volume: Some(old_volume), layout: old, .. } = self.settings() else {
            return Err(no_key());
        };
        let shrinks = layout.size < old.size;
        let version = self.put(Arc::new(layout), volume);
        if shrinks && !self.wait_until_settled(version, limit) {
            self.put(old, old_volume);
            return Err(busy(limit));
        }
        Ok(())
    }

    /// Puts another volume in the place of one that runs. Requests in flight end under the old one.
    ///
    /// # Errors
    /// `NoKey` while it has none.
    pub(crate) fn relay(&self, check: impl FnOnce() -> Result<Layout>, volume: Arc<Volume>) -> Result<()> {
        let _changing = self.changing();
        let layout = check()?;
        if self.state().settings.volume.is_none() {
            return Err(no_key());
        }
        self.put(Arc::new(layout), volume);
        Ok(())
    }

    fn put(&self, layout: Arc<Layout>, volume: Arc<Volume>) -> u32 {
        self.change(|state| (state.settings.layout, state.settings.volume) = (layout, Some(volume)))
    }

    /// Lets every request take the sectors' lock, and waits until those are over that began without.
    ///
    /// # Errors
    /// `Busy` when they do not end in time.
    pub(crate) fn mover_comes(&self, limit: Duration) -> Result<()> {
        let _changing = self.changing();
        let version = self.change(|state| state.movers += 1);
        if !self.wait_until_settled(version, limit) {
            self.change(|state| state.movers -= 1);
            return Err(busy(limit));
        }
        Ok(())
    }

    pub(crate) fn mover_goes(&self) {
        let _changing = self.changing();
        self.change(|state| state.movers -= 1);
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
    fn change(&self, change: impl FnOnce(&mut State)) -> u32 {
        let mut state = self.state();
        change(&mut state);
        let (modifies, movers) = (state.modifies, state.movers);
        let settings = &mut state.settings;
        settings.locks = settings.layout.spreads || modifies || movers > 0;
        settings.version = settings.version.wrapping_add(1);
        let version = settings.version;
        let size = settings.layout.size;
        self.version.store(version, Ordering::Release);
        // Who sees the size and then submits is not refused by a queue that does not know it.
        self.size.store(size, Ordering::Release);
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

fn busy(limit: Duration) -> Error {
    Error::new(ErrorKind::Busy, format!("requests in flight did not end within {limit:?}"))
}

fn no_key() -> Error {
    Error::new(ErrorKind::NoKey, "the key is wiped: set one first")
}
