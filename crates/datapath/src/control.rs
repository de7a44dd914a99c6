//! Settings that can change while a volume runs: policy, key, size, layout, and whether the volume
//! is suspended.
//!
//! Every change has a version. A queue compares one number for each request; when it differs it
//! takes a copy of the settings. Nothing on a request's way takes a lock.
//!
//! A request ends under the settings that it began under. A change that older requests must not
//! meet waits until every queue has *settled*: the queue has seen the version, and none of its
//! requests is of an earlier one; on a suspended volume, none of its requests is in flight.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use underseal_volume::Volume;

use crate::inbox::{LowerRequest, QueueInbox};
use crate::layout::Layout;
use crate::mover::Turn;
use crate::{Error, ErrorKind, Policy, Result, Stats};

/// The time limit for queues to drop a key. They have no other work then.
const LET_GO: Duration = Duration::from_secs(10);

pub(crate) struct VolumeControl {
    version: AtomicU32,
    /// The layout's size, readable without the mutex.
    size: AtomicU64,
    state: Mutex<State>,
    /// Notified when a queue settles or closes, a range mover releases its range, or a setting
    /// changes.
    changed: Condvar,
    /// Held through a change of several steps.
    changing: Mutex<()>,
}

struct State {
    settings: VolumeSettings,
    /// Suspended by an operator, until the operator resumes the volume.
    stopped: bool,
    /// Snapshots in progress on the lower devices: requests wait until their number is zero.
    paused: u32,
    /// Sectors are written in part.
    modifies: bool,
    moving: ActiveMover,
    queues: Vec<Arc<QueueInbox>>,
    /// Counters of queues that are closed.
    past: Stats,
}

/// The range mover of a volume, and how many ranges it holds.
#[derive(Default)]
struct ActiveMover {
    /// A range mover exists.
    is_there: bool,
    /// Ranges that the mover holds.
    held: u32,
    /// Ranges that the mover waits for.
    waiting: Vec<Arc<Turn>>,
}

/// A queue's copy of the settings.
#[derive(Clone)]
pub(crate) struct VolumeSettings {
    pub(crate) version: u32,
    pub(crate) policy: Policy,
    /// `None`: the key is wiped.
    pub(crate) volume: Option<Arc<Volume>>,
    pub(crate) layout: Arc<Layout>,
    pub(crate) suspended: bool,
    /// Requests take the range lock.
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

    /// Sets whether sectors are written in part.
    pub(crate) fn set_modifies(&self, modifies: bool) {
        self.change(|state| state.modifies = modifies);
    }

    /// The current version of the settings.
    pub(crate) fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    /// The current size in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// True when an operator has suspended the volume; false when only a snapshot holds requests.
    pub(crate) fn is_stopped(&self) -> bool {
        self.state().stopped
    }

    pub(crate) fn settings(&self) -> VolumeSettings {
        self.state().settings.clone()
    }

    /// Adds a queue that opens.
    pub(crate) fn register(&self, inbox: Arc<QueueInbox>) -> VolumeSettings {
        let mut state = self.state();
        state.queues.push(inbox);
        state.settings.clone()
    }

    /// Removes a queue that closes.
    pub(crate) fn unregister(&self, inbox: &Arc<QueueInbox>) {
        let mut state = self.state();
        state.queues.retain(|other| !Arc::ptr_eq(other, inbox));
        inbox.stats.add_to(&mut state.past);
        drop(state);
        self.changed.notify_all();
    }

    /// Notes that a queue has settled under this version.
    pub(crate) fn has_settled(&self, inbox: &QueueInbox, version: u32) {
        let state = self.state();
        inbox.set_quiet(version);
        drop(state);
        self.changed.notify_all();
    }

    pub(crate) fn set_policy(&self, policy: Policy) {
        let _changing = self.changing();
        self.change(|state| state.settings.policy = policy);
    }

    /// Stops new requests and waits for those in flight. False: the volume was suspended already.
    pub(crate) fn suspend(&self, limit: Duration) -> Result<bool> {
        let _changing = self.changing();
        if self.state().stopped {
            return Ok(false);
        }
        self.hold(limit, |state, stopped| state.stopped = stopped).map(|()| true)
    }

    /// Suspends the volume for a snapshot, as [`suspend`](Self::suspend): until
    /// [`go_on`](Self::go_on) has been called as often as `pause`, unless an operator has suspended
    /// the volume meanwhile.
    pub(crate) fn pause(&self, limit: Duration) -> Result<()> {
        let _changing = self.changing();
        self.hold(limit, State::pause)
    }

    pub(crate) fn go_on(&self) {
        let _changing = self.changing();
        self.change(|state| state.pause(false));
    }

    /// Holds requests for a reason and waits for those in flight. On a timeout it takes the reason
    /// back.
    fn hold(&self, limit: Duration, reason: impl Fn(&mut State, bool)) -> Result<()> {
        let version = self.change(|state| {
            reason(state, true);
            // The mover finishes a range that it holds, and gets no other.
            state.moving.waiting.iter().for_each(|turn| turn.yields());
        });
        let settled = self.wait_until_settled(version, limit);
        if settled.is_err() {
            self.change(|state| reason(state, false));
        }
        settled
    }

    /// Waits until the mover holds no range and every queue has settled under this version or a
    /// later one: a mover may have [replaced the layout](Self::relay) of its range meanwhile.
    /// Returns `Busy` after `limit`.
    fn wait_until_settled(&self, version: u32, limit: Duration) -> Result<()> {
        let begun = Instant::now();
        let mut state = self.state();
        loop {
            let moves = state.moving.held > 0;
            let earlier = |at: u32| at.wrapping_sub(version) > u32::MAX / 2;
            if !moves && !state.queues.iter().any(|inbox| earlier(inbox.quiet_at())) {
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

    /// Resumes the volume, with a key or without.
    pub(crate) fn release(&self) {
        let _changing = self.changing();
        self.change(|state| state.stopped = false);
    }

    /// Replaces the volume of a suspended mapping, or removes it, and waits until no queue has the
    /// old key.
    ///
    /// No setting changes between `check`, which returns the volume, and the change; this holds for
    /// the functions below too.
    ///
    /// Returns `Busy` while a range mover exists: the mover has keys too, and would restore the old
    /// ones.
    pub(crate) fn replace(&self, check: impl FnOnce() -> Result<Option<Arc<Volume>>>) -> Result<()> {
        let _changing = self.changing();
        self.nobody_moves()?;
        let volume = check()?;
        if !self.state().stopped {
            return Err(Error::new(ErrorKind::NotSuspended, "not suspended during key manipulation"));
        }
        let version = self.change(|state| state.settings.volume = volume);
        self.wait_until_settled(version, LET_GO).map_err(|_| {
            busy(format!(
                "a queue still has the old key after {LET_GO:?}; it drops the key at its next request"
            ))
        })
    }

    /// Resizes a running volume to the volume and layout that `resized` returns, and returns the
    /// new size. A shrinking volume waits for requests beyond its new end.
    ///
    /// Returns `NoKey` while the key is wiped, and `Busy` while a range mover exists or when the
    /// requests do not end in time; the size is unchanged then.
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

    /// Replaces the volume of a running mapping, for its range mover. Requests in flight end under
    /// the old volume. The call does not wait, not even for a suspension that itself waits for the
    /// mover.
    ///
    /// Returns `NoKey` while the key is wiped, and the errors of `check`, which sees the layout and
    /// volume that are replaced.
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

    /// Makes every request take the range lock, and waits for the requests that began without it.
    ///
    /// Returns `Busy` when they do not end in time, while a range mover exists, and while the
    /// volume is suspended.
    pub(crate) fn mover_comes(&self, limit: Duration) -> Result<()> {
        let _changing = self.changing();
        self.nobody_moves()?;
        // A snapshot does not matter here: the mover waits for its end before the first range.
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

    /// Returns a mover's turn once the volume is not suspended; `None` at `end`.
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

    /// Ends the mover's waiting. If its turn `came`, the mover holds its range, unless the volume
    /// is being suspended. Returns whether it does.
    pub(crate) fn enters(&self, turn: &Arc<Turn>, came: bool) -> bool {
        let mut state = self.state();
        state.moving.waiting.retain(|other| !Arc::ptr_eq(other, turn));
        let enters = came && !state.settings.suspended;
        state.moving.held += u32::from(enters);
        enters
    }

    /// Notes that the mover has released a range.
    pub(crate) fn leaves(&self) {
        self.state().moving.held -= 1;
        self.changed.notify_all();
    }

    /// Wakes every queue's thread.
    pub(crate) fn rouse(&self) {
        self.state().queues.iter().for_each(|inbox| inbox.rouse());
    }

    pub(crate) fn stats(&self) -> Stats {
        let state = self.state();
        let mut sum = state.past.clone();
        for inbox in &state.queues {
            inbox.stats.add_to(&mut sum);
            inbox.stats.add_present(&mut sum);
        }
        sum
    }

    /// Returns the request that has been in a lower device for the longest time. A queue whose
    /// thread does not answer in time is left out.
    pub(crate) fn oldest_below(&self, limit: Duration) -> Option<LowerRequest> {
        let end = Instant::now() + limit;
        let mut state = self.state();
        let asked: Vec<_> = state.queues.iter().filter(|inbox| inbox.stats.is_busy()).cloned().collect();
        asked.iter().for_each(|inbox| inbox.ask());
        while asked.iter().any(|inbox| inbox.oldest().is_none() && state.has(inbox)) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        asked.iter().filter(|inbox| state.has(inbox)).filter_map(|inbox| inbox.oldest().flatten()).min()
    }

    /// Notes the oldest lower request of a queue that was asked for it.
    pub(crate) fn has_looked(&self, inbox: &QueueInbox, oldest: Option<LowerRequest>) {
        let state = self.state();
        inbox.has_looked(oldest);
        drop(state);
        self.changed.notify_all();
    }

    /// Changes the settings and tells every queue. Returns the version.
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
        // A client that sees the size and then submits meets no queue with an older size.
        self.size.store(size, Ordering::Release);
        state.queues.iter().for_each(|inbox| inbox.rouse());
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
    /// Counts a snapshot that begins or ends.
    fn pause(&mut self, more: bool) {
        self.paused = if more { self.paused.saturating_add(1) } else { self.paused.saturating_sub(1) };
    }

    /// True while a queue is registered.
    fn has(&self, inbox: &Arc<QueueInbox>) -> bool {
        self.queues.iter().any(|other| Arc::ptr_eq(other, inbox))
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
