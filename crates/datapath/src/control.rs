//! What can be changed while a volume runs: its policy, its key, its size and layout, whether it
//! runs at all.
//!
//! Every change has a version. A queue compares one number for each request; when it differs it
//! takes a copy of the settings. Nothing on a request's way takes a lock.
//!
//! Requests end under the settings that they began under. Who must not meet those waits until every
//! queue has *settled*: it has seen the version, and nothing of an earlier one is in flight there;
//! where the volume is suspended, nothing at all.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use underseal_volume::Volume;

use crate::layout::Layout;
use crate::mover::Turn;
use crate::post::{LowerRequest, QueueInbox};
use crate::{Error, ErrorKind, Policy, Result, Stats};

/// Queues have nothing else to do when they are to let go of a key.
const LET_GO: Duration = Duration::from_secs(10);

pub(crate) struct VolumeControl {
    version: AtomicU32,
    /// That of the layout, to be looked at without the lock.
    size: AtomicU64,
    state: Mutex<State>,
    /// A queue has settled or is gone, a mover has given its range back, something was set.
    changed: Condvar,
    /// Held through a change of several steps.
    changing: Mutex<()>,
}

struct State {
    settings: VolumeSettings,
    /// Suspended by who said so, until he says otherwise.
    stopped: bool,
    /// Suspended for a moment, as long as snapshots are made: so many, of one device or another.
    paused: u32,
    /// Sectors are written in part.
    modifies: bool,
    moving: ActiveMover,
    queues: Vec<Arc<QueueInbox>>,
    /// What queues counted that are gone.
    past: Stats,
}

/// Who claims ranges for itself, and how far that is.
#[derive(Default)]
struct ActiveMover {
    /// A mover is there.
    is_there: bool,
    /// Ranges that it has.
    held: u32,
    /// It waits for these.
    waiting: Vec<Arc<Turn>>,
}

/// A queue's copy of what is set.
#[derive(Clone)]
pub(crate) struct VolumeSettings {
    pub(crate) version: u32,
    pub(crate) policy: Policy,
    /// None: its key is wiped.
    pub(crate) volume: Option<Arc<Volume>>,
    pub(crate) layout: Arc<Layout>,
    pub(crate) suspended: bool,
    /// Requests take the sectors' lock.
    pub(crate) locks: bool,
}

impl VolumeControl {
    pub(crate) fn new(volume: Volume, layout: Layout, policy: Policy) -> Self {
        let (volume, layout) = (Some(Arc::new(volume)), Arc::new(layout));
        let locks = layout.spreads;
        let settings = VolumeSettings { version: 1, policy, volume, layout, suspended: false, locks };
        Self {
            version: AtomicU32::new(settings.version),
            size: AtomicU64::new(settings.layout.size),
            state: Mutex::new(State {
                settings,
                stopped: false,
                paused: 0,
                modifies: false,
                moving: ActiveMover::default(),
                queues: Vec::new(),
                past: Stats::default(),
            }),
            changed: Condvar::new(),
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

    /// Suspended by who said so, and not for a snapshot's moment alone.
    pub(crate) fn is_stopped(&self) -> bool {
        self.state().stopped
    }

    pub(crate) fn settings(&self) -> VolumeSettings {
        self.state().settings.clone()
    }

    /// A queue begins.
    pub(crate) fn register(&self, post: Arc<QueueInbox>) -> VolumeSettings {
        let mut state = self.state();
        state.queues.push(post);
        state.settings.clone()
    }

    /// A queue ends.
    pub(crate) fn unregister(&self, post: &Arc<QueueInbox>) {
        let mut state = self.state();
        state.queues.retain(|other| !Arc::ptr_eq(other, post));
        post.stats.add_to(&mut state.past);
        drop(state);
        self.changed.notify_all();
    }

    /// A queue has settled under this version.
    pub(crate) fn has_settled(&self, post: &QueueInbox, version: u32) {
        let state = self.state();
        post.set_quiet(version);
        drop(state);
        self.changed.notify_all();
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
        if self.state().stopped {
            return Ok(false);
        }
        self.hold(limit, |state, stopped| state.stopped = stopped).map(|()| true)
    }

    /// As [`suspend`](Self::suspend), for a moment: until as many [have gone on](Self::go_on), if
    /// it is not suspended by then.
    ///
    /// # Errors
    /// `Busy`, as there.
    pub(crate) fn pause(&self, limit: Duration) -> Result<()> {
        let _changing = self.changing();
        self.hold(limit, State::pause)
    }

    pub(crate) fn go_on(&self) {
        let _changing = self.changing();
        self.change(|state| state.pause(false));
    }

    /// Holds requests back for a reason, and waits for those in flight; or takes the reason back.
    fn hold(&self, limit: Duration, reason: impl Fn(&mut State, bool)) -> Result<()> {
        let version = self.change(|state| {
            reason(state, true);
            // A range that is the mover's already it brings to an end; it takes no other.
            state.moving.waiting.iter().for_each(|turn| turn.yields());
        });
        let settled = self.wait_until_settled(version, limit);
        if settled.is_err() {
            self.change(|state| reason(state, false));
        }
        settled
    }

    /// Waits until no range is a mover's and every queue has settled under this version, or one
    /// that came after it: a mover may have [relaid](Self::relay) its range meanwhile.
    ///
    /// # Errors
    /// `Busy` when that takes longer than `limit`.
    fn wait_until_settled(&self, version: u32, limit: Duration) -> Result<()> {
        let begun = Instant::now();
        let mut state = self.state();
        loop {
            let moves = state.moving.held > 0;
            let earlier = |at: u32| at.wrapping_sub(version) > u32::MAX / 2;
            if !moves && !state.queues.iter().any(|post| earlier(post.quiet_at())) {
                return Ok(());
            }
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                let who =
                    if moves { "a range that is being rewritten was" } else { "requests in flight were" };
                return Err(busy(format!("{who} not finished within {limit:?}")));
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(crate) fn resume(&self) -> Result<()> {
        let _changing = self.changing();
        if self.state().settings.volume.is_none() {
            return Err(no_key());
        }
        self.change(|state| state.stopped = false);
        Ok(())
    }

    /// Lets requests go on, with a key or without.
    pub(crate) fn release(&self) {
        let _changing = self.changing();
        self.change(|state| state.stopped = false);
    }

    /// Puts another volume, or none, in the place of a suspended one, and waits until no queue has
    /// the old one's key.
    ///
    /// What is set does not change between `check`, which gives the volume, and the change; so it
    /// is with all that follow.
    ///
    /// # Errors
    /// `Busy` while there is a mover: it has keys of its own, and would bring the old ones back.
    pub(crate) fn replace(&self, check: impl FnOnce() -> Result<Option<Arc<Volume>>>) -> Result<()> {
        let _changing = self.changing();
        self.nobody_moves()?;
        let volume = check()?;
        if !self.state().stopped {
            return Err(Error::new(ErrorKind::NotSuspended, "not suspended during key manipulation"));
        }
        let version = self.change(|state| state.settings.volume = volume);
        self.wait_until_settled(version, LET_GO).map_err(|_| {
            busy(format!("a queue did not let go of the old key within {LET_GO:?}; it will when it is used"))
        })
    }

    /// Gives a volume that runs another size: what `resized` makes of it. One that shrinks waits
    /// for the requests that may lie beyond its new end. The size that it has then.
    ///
    /// # Errors
    /// `NoKey` while it has none; `Busy` while there is a mover, or when the requests do not end in
    /// time: it keeps its size then.
    pub(crate) fn resize(
        &self,
        resized: impl FnOnce(&Volume) -> Result<(Volume, Layout)>,
        limit: Duration,
    ) -> Result<u64> {
        let _changing = self.changing();
        self.nobody_moves()?;
        let VolumeSettings { volume: Some(old_volume), layout: old, .. } = self.settings() else {
            return Err(no_key());
        };
        let (volume, layout) = resized(&old_volume)?;
        let (size, shrinks) = (layout.size, layout.size < old.size);
        if size == old.size {
            return Ok(size);
        }
        let put = |layout: Arc<Layout>, volume: Arc<Volume>| self.change(|state| state.put(layout, volume));
        let version = put(Arc::new(layout), Arc::new(volume));
        if shrinks && let Err(busy) = self.wait_until_settled(version, limit) {
            put(old, old_volume);
            return Err(busy);
        }
        Ok(size)
    }

    /// Puts another volume in the place of one that runs, for its mover. Requests in flight end
    /// under the old one. It waits for nobody, also not for who suspends the volume and waits for
    /// the mover.
    ///
    /// # Errors
    /// `NoKey` while it has none; those of `check`, which sees what it takes the place of.
    pub(crate) fn relay(
        &self,
        volume: Arc<Volume>,
        check: impl FnOnce(&Layout, &Volume) -> Result<Layout>,
    ) -> Result<()> {
        let mut state = self.state();
        let now = state.settings.volume.as_ref().ok_or_else(no_key)?;
        let layout = Arc::new(check(&state.settings.layout, now)?);
        state.put(layout, volume);
        self.make_known(&mut state);
        Ok(())
    }

    /// Lets every request take the sectors' lock, and waits until those are over that began
    /// without.
    ///
    /// # Errors
    /// `Busy` when they do not end in time, while there is another mover, and while the volume is
    /// suspended.
    pub(crate) fn mover_comes(&self, limit: Duration) -> Result<()> {
        let _changing = self.changing();
        self.nobody_moves()?;
        // A snapshot's moment it sits out when it wants its first range.
        if self.state().stopped {
            return Err(busy("the volume is suspended"));
        }
        let version = self.change(|state| state.moving.is_there = true);
        self.wait_until_settled(version, limit).inspect_err(|_| self.mover_goes())
    }

    pub(crate) fn mover_goes(&self) {
        self.change(|state| state.moving.is_there = false);
    }

    fn nobody_moves(&self) -> Result<()> {
        match self.state().moving.is_there {
            true => Err(busy("the volume is being rewritten; that has to end first")),
            false => Ok(()),
        }
    }

    /// A mover's place in the line, once the volume is not suspended. None at the end of its time.
    pub(crate) fn line_up(&self, end: Instant) -> Option<Arc<Turn>> {
        let mut state = self.state();
        while state.settings.suspended {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let turn = Arc::<Turn>::default();
        state.moving.waiting.push(turn.clone());
        Some(turn)
    }

    /// The mover waits no more; if its turn `came`, it has its range, unless somebody suspends the
    /// volume. Whether it has.
    pub(crate) fn enters(&self, turn: &Arc<Turn>, came: bool) -> bool {
        let mut state = self.state();
        state.moving.waiting.retain(|other| !Arc::ptr_eq(other, turn));
        let enters = came && !state.settings.suspended;
        state.moving.held += u32::from(enters);
        enters
    }

    /// The mover has done what it wanted with a range.
    pub(crate) fn leaves(&self) {
        self.state().moving.held -= 1;
        self.changed.notify_all();
    }

    /// Makes every queue's thread come round.
    pub(crate) fn rouse(&self) {
        self.state().queues.iter().for_each(|post| post.rouse());
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

    /// The request that a lower device has had longest. A queue whose thread does not come to look
    /// in time is left out.
    pub(crate) fn oldest_below(&self, limit: Duration) -> Option<LowerRequest> {
        let end = Instant::now() + limit;
        let mut state = self.state();
        let asked: Vec<_> = state.queues.iter().filter(|post| post.stats.is_busy()).cloned().collect();
        asked.iter().for_each(|post| post.ask());
        while asked.iter().any(|post| post.oldest().is_none() && state.has(post)) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        asked.iter().filter(|post| state.has(post)).filter_map(|post| post.oldest().flatten()).min()
    }

    /// A queue has looked what it waits for.
    pub(crate) fn has_looked(&self, post: &QueueInbox, oldest: Option<LowerRequest>) {
        let state = self.state();
        post.has_looked(oldest);
        drop(state);
        self.changed.notify_all();
    }

    /// Makes a change known to every queue. Its version.
    fn change(&self, change: impl FnOnce(&mut State)) -> u32 {
        let mut state = self.state();
        change(&mut state);
        self.make_known(&mut state)
    }

    fn make_known(&self, state: &mut State) -> u32 {
        let (modifies, moves) = (state.modifies, state.moving.is_there);
        let suspended = state.stopped || state.paused > 0;
        let settings = &mut state.settings;
        settings.suspended = suspended;
        settings.locks = settings.layout.spreads || modifies || moves;
        settings.version = settings.version.wrapping_add(1);
        let version = settings.version;
        let size = settings.layout.size;
        self.version.store(version, Ordering::Release);
        // Who sees the size and then submits is not refused by a queue that does not know it.
        self.size.store(size, Ordering::Release);
        state.queues.iter().for_each(|post| post.rouse());
        self.changed.notify_all();
        version
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// One more snapshot is made, or one less.
    fn pause(&mut self, more: bool) {
        self.paused = if more { self.paused.saturating_add(1) } else { self.paused.saturating_sub(1) };
    }

    /// That queue is still there.
    fn has(&self, post: &Arc<QueueInbox>) -> bool {
        self.queues.iter().any(|other| Arc::ptr_eq(other, post))
    }

    fn put(&mut self, layout: Arc<Layout>, volume: Arc<Volume>) {
        (self.settings.layout, self.settings.volume) = (layout, Some(volume));
    }
}

fn busy(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Busy, why)
}

pub(crate) fn no_key() -> Error {
    Error::new(ErrorKind::NoKey, "the key is wiped: set one first")
}
