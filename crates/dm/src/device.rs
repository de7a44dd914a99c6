//! A device: its two tables, whether it is suspended, its events.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use underseal_cipher::Key;

use crate::host::{Host, Messaged, Names, Node, Served, Table, TableLoad};
use crate::records::Line;
use crate::{DeviceNumber, Error, GrantedKeys, Result, Room};

/// How long a table that could not be live is waited for.
const ENDING: Duration = Duration::from_secs(10);

/// A device.
pub(crate) struct Device {
    node: Box<dyn Node>,
    /// The number that it was made with, by which its maker may still call it.
    first_number: DeviceNumber,
    /// Held by each command that changes the device, for the command's whole time.
    turn: Mutex<()>,
    /// Held while the device is renamed, and while it is removed under its name. Taken before
    /// `turn`.
    naming: Mutex<()>,
    /// Held while a deferred removal is requested or cancelled. Taken before `state`.
    deferral: Mutex<()>,
    /// Held for short times only.
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    live: Option<Arc<Loaded>>,
    inactive: Option<Arc<Loaded>>,
    /// An inactive table was lost with the server that was killed: the caller that loaded it must
    /// not take its resume for done.
    lost_inactive: bool,
    suspended: bool,
    deferred: bool,
    /// A thread waits for the device's last user.
    waited_for: bool,
    /// A removal has begun: the removal can no longer be cancelled.
    ending: bool,
    removed: bool,
    event: u32,
}

/// A device's table.
pub(crate) struct Loaded {
    lines: RwLock<Vec<Line>>,
    pub(crate) deps: Vec<DeviceNumber>,
    pub(crate) beneath: Vec<DeviceNumber>,
    pub(crate) room: Room,
    pub(crate) read_only: bool,
    pub(crate) served: Arc<dyn Served>,
}

impl Loaded {
    fn new(table: Table, read_only: bool) -> Self {
        let Table { lines, deps, beneath, room, served } = table;
        Self { lines: lines.into(), deps, beneath, room, read_only, served }
    }

    /// Calls a function with the lines.
    pub(crate) fn lines<T>(&self, of: impl FnOnce(&[Line]) -> T) -> T {
        of(&self.lines.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set_params(&self, number: usize, params: Key) {
        let mut lines = self.lines.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = lines.get_mut(number) {
            line.params = params;
        }
    }
}

/// The state of a device at one moment.
pub(crate) struct Snapshot {
    pub(crate) live: Option<Arc<Loaded>>,
    pub(crate) inactive: Option<Arc<Loaded>>,
    pub(crate) suspended: bool,
    pub(crate) deferred: bool,
    pub(crate) event: u32,
}

impl Device {
    pub(crate) fn new(node: Box<dyn Node>) -> Self {
        Self {
            first_number: node.number(),
            node,
            turn: Mutex::default(),
            naming: Mutex::default(),
            deferral: Mutex::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Locks the device's name.
    pub(crate) fn naming(&self) -> MutexGuard<'_, ()> {
        self.naming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, unless another thread has it.
    pub(crate) fn try_naming(&self) -> Option<MutexGuard<'_, ()>> {
        self.naming.try_lock().ok()
    }

    /// A device that is there already, with a live table.
    pub(crate) fn adopted(
        node: Box<dyn Node>,
        table: Table,
        read_only: bool,
        suspended: bool,
        lost_inactive: bool,
    ) -> Self {
        let live = Some(Arc::new(Loaded::new(table, read_only)));
        let state = State { live, suspended, lost_inactive, ..State::default() };
        Self { state: Mutex::new(state), ..Self::new(node) }
    }

    pub(crate) fn number(&self) -> DeviceNumber {
        self.node.number()
    }

    /// Returns the number that the device was made with. It never changes, and no other device has
    /// it.
    pub(crate) fn first_number(&self) -> DeviceNumber {
        self.first_number
    }

    pub(crate) fn node(&self) -> &dyn Node {
        &*self.node
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let State { live, inactive, suspended, deferred, event, .. } = &*self.state();
        let (live, inactive) = (live.clone(), inactive.clone());
        Snapshot { live, inactive, suspended: *suspended, deferred: *deferred, event: *event }
    }

    /// Loads a table, which becomes the inactive table while the guard of `admit` lives.
    pub(crate) fn load<'l>(
        &self,
        host: &dyn Host,
        lines: Vec<Line>,
        read_only: bool,
        below: &dyn Fn(DeviceNumber) -> Option<Vec<Line>>,
        keys: &GrantedKeys,
        admit: &dyn Fn(&Table) -> Result<MutexGuard<'l, ()>>,
    ) -> Result<()> {
        let _turn = self.turn()?;
        let live = self.state().live.clone();
        let number = self.number();
        let load =
            |live: Option<&[Line]>| host.load(TableLoad { number, lines, read_only, live, below, keys });
        let loaded = match &live {
            Some(live) => live.lines(|lines| load(Some(lines))),
            None => load(None),
        };
        let loaded = loaded?;
        let admitted = admit(&loaded).inspect_err(|_| {
            end_unused(&number.to_string(), loaded.served.clone());
        })?;
        if live.is_some() {
            self.node.keep_loaded(true).inspect_err(|_| {
                end_unused(&number.to_string(), loaded.served.clone());
            })?;
        }
        let before = {
            let mut state = self.state();
            state.lost_inactive = false;
            state.inactive.replace(Arc::new(Loaded::new(loaded, read_only)))
        };
        drop(admitted);
        before.map_or(Ok(()), |before| before.served.end())
    }

    /// Drops the inactive table.
    pub(crate) fn clear(&self) -> Result<()> {
        let _turn = self.turn()?;
        let before = {
            let mut state = self.state();
            state.lost_inactive = false;
            state.inactive.take()
        };
        self.unmark_loaded();
        before.map_or(Ok(()), |before| before.served.end())
    }

    /// Removes the mark of an inactive table that there is no more.
    fn unmark_loaded(&self) {
        if let Err(e) = self.node.keep_loaded(false) {
            log::warn!("{}: {e}", self.number());
        }
    }

    /// Suspends the device.
    pub(crate) fn suspend(&self) -> Result<()> {
        let _turn = self.turn()?;
        if self.state().suspended {
            return Ok(());
        }
        let live = self.state().live.clone();
        if let Some(live) = live {
            live.served.delay(false);
            let suspended = self.node.sync().and_then(|()| live.served.suspend());
            suspended.inspect_err(|_| live.served.delay(true))?;
        }
        self.state().suspended = true;
        Ok(())
    }

    /// Makes the inactive table, if any, the live table, and resumes requests.
    pub(crate) fn resume(&self, names: Names<'_>) -> Result<()> {
        let name = names.name;
        let _turn = self.turn()?;
        let (live, inactive) = {
            let mut state = self.state();
            if state.lost_inactive {
                let why =
                    "its inactive table was lost with a back end that was killed: load it again, or clear it";
                return Err(Error::new(Errno::NXIO, why).within(name));
            }
            (state.live.clone(), state.inactive.take())
        };
        match (live, inactive) {
            (live, Some(inactive)) => {
                let bound = match &live {
                    None => self.begin(&inactive, names),
                    Some(live) => self.swap(live, &inactive),
                };
                self.unmark_loaded();
                if let Err(e) = bound {
                    // As in the kernel, a table that cannot be live is gone.
                    end_unused(name, inactive.served.clone());
                    return Err(e.within(name));
                }
                let mut state = self.state();
                (state.live, state.suspended) = (Some(inactive), false);
            }
            (Some(live), None) if self.state().suspended => {
                live.served.resume()?;
                self.state().suspended = false;
            }
            (None, None) if self.state().suspended => {
                return Err(Error::new(Errno::INVAL, format!("{name}: there is no table to resume")));
            }
            _ => {}
        }
        Ok(())
    }

    /// Shows the first table.
    fn begin(&self, table: &Loaded, names: Names<'_>) -> Result<()> {
        // From here on, a later server knows which parts may exist.
        self.node.remember(names)?;
        self.node.show(&*table.served, table.room, table.read_only)?;
        self.node.name(names, None).or_else(|e| self.node.detach(&*table.served).and(Err(e)))?;
        table.served.delay(true);
        Ok(())
    }

    /// Replaces a table by another, between two requests.
    fn swap(&self, old: &Loaded, new: &Loaded) -> Result<()> {
        self.node.accepts(new.room)?;
        let given = if self.state().suspended {
            old.served.give()?
        } else {
            old.served.delay(false);
            let given = self.node.sync().and_then(|()| old.served.give());
            given.inspect_err(|_| old.served.delay(true))?
        };
        if let Err(e) = new.served.take(given) {
            if let Err(worse) = old.served.keep() {
                log::error!("the live table cannot continue: {worse}");
            }
            return Err(e);
        }
        old.served.leave();
        if old.room != new.room
            && let Err(e) = self.node.follow(new.room)
        {
            log::error!("{}: the block device does not have the table's size: {e}", self.number());
        }
        Ok(())
    }

    /// Sends a message to the target at a sector.
    pub(crate) fn message(&self, sector: u64, words: &str, keys: &GrantedKeys) -> Result<Option<String>> {
        let _turn = self.turn()?;
        let no = |why: &str| Error::new(Errno::INVAL, why);
        let Snapshot { live, suspended, .. } = self.snapshot();
        let live = live.ok_or_else(|| no("there is no live table"))?;
        let target = live.lines(|lines| -> Result<_> {
            let within = |line: &Line| sector.checked_sub(line.start).is_some_and(|at| at < line.len);
            let number = lines.iter().position(within);
            let number = number.ok_or_else(|| no("Target message sector outside device."))?;
            Ok((number, lines[number].copy()?))
        });
        let (number, line) = target?;
        let is_key =
            words.split_ascii_whitespace().next().is_some_and(|word| word.eq_ignore_ascii_case("key"));
        if line.target == "crypt" && is_key && !suspended {
            return Err(no("not suspended during key manipulation."));
        }
        let Messaged { text, params, failed } = live.served.message(&line, words, keys)?;
        if let Some(params) = params {
            live.set_params(number, params);
        }
        failed.map_or(Ok(text), Err)
    }

    /// Removes a device that is not open. Both tables end. With `only_deferred`, the removal fails
    /// with `EBUSY` after it was cancelled.
    pub(crate) fn remove(&self, names: Names<'_>, only_deferred: bool) -> Result<()> {
        let _turn = self.turn()?;
        {
            let mut state = self.state();
            if only_deferred && !state.deferred {
                let why = format!("{}: the removal was cancelled", names.name);
                return Err(Error::new(Errno::BUSY, why));
            }
            state.ending = true;
        }
        let removed = self.end(names);
        if removed.is_err() {
            self.state().ending = false;
        }
        removed
    }

    fn end(&self, names: Names<'_>) -> Result<()> {
        let name = names.name;
        let live = self.state().live.clone();
        if let Some(live) = &live {
            if self.state().suspended {
                // Requests that wait in the kernel are written, or fail with a wiped key, before
                // the device is removed.
                live.served.release();
            } else {
                live.served.delay(false);
            }
            let suspended = self.state().suspended;
            if let Err(e) = self.node.sync().and_then(|()| self.node.detach(&*live.served)) {
                if suspended {
                    live.served.suspend()?;
                } else {
                    live.served.delay(true);
                }
                return Err(e.within(name));
            }
        }
        self.node.unname(names);
        let (live, inactive) = {
            let mut state = self.state();
            state.removed = true;
            if state.live.is_some() {
                // As in the kernel, the removal of a live table is its last event.
                state.event = state.event.wrapping_add(1);
            }
            (state.live.take(), state.inactive.take())
        };
        self.changed.notify_all();
        for table in live.into_iter().chain(inactive) {
            if let Err(e) = table.served.end() {
                log::error!("{name}: {e}");
            }
        }
        Ok(())
    }

    /// Requests the removal after the last close, also by a later server. Returns true when no
    /// thread waits for the last user yet: the caller starts one.
    pub(crate) fn defer(&self) -> Result<bool> {
        let _deferral = self.deferral();
        self.node.keep_deferred(true)?;
        let mut state = self.state();
        state.deferred = true;
        Ok(!std::mem::replace(&mut state.waited_for, true))
    }

    /// Cancels a removal after the last close. Fails with `EBUSY` while the device is removed.
    pub(crate) fn cancel_deferred(&self) -> Result<()> {
        let _deferral = self.deferral();
        // The state is changed last: until then the device is removed at any time.
        self.node.keep_deferred(false)?;
        let was_deferred = {
            let mut state = self.state();
            if !state.ending {
                state.deferred = false;
                return Ok(());
            }
            state.deferred
        };
        if was_deferred && let Err(e) = self.node.keep_deferred(true) {
            log::debug!("{}: {e}", self.number());
        }
        Err(Error::new(Errno::BUSY, "the device is being removed"))
    }

    /// Returns true while the removal is deferred. After `false`, no thread waits for the last
    /// user.
    pub(crate) fn is_waited_for(&self) -> bool {
        let mut state = self.state();
        state.waited_for = state.deferred && !state.removed;
        state.waited_for
    }

    /// Forgets a deferred removal that no thread can wait for.
    pub(crate) fn drop_deferred(&self) {
        let _deferral = self.deferral();
        let mut state = self.state();
        (state.deferred, state.waited_for) = (false, false);
        drop(state);
        if let Err(e) = self.node.keep_deferred(false) {
            log::warn!("{}: {e}", self.number());
        }
    }

    /// Counts an event, and wakes the callers that wait for it.
    pub(crate) fn happens(&self) {
        let mut state = self.state();
        state.event = state.event.wrapping_add(1);
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until the last event differs from `known`, at most for `limit`.
    pub(crate) fn wait(&self, known: u32, limit: Duration) -> Result<bool> {
        let until = Instant::now() + limit;
        let mut state = self.state();
        while state.event == known && !state.removed {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        // The kernel answers a caller whose event was the removal.
        if state.event == known { Err(gone()) } else { Ok(true) }
    }

    fn deferral(&self) -> MutexGuard<'_, ()> {
        self.deferral.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self) -> Result<MutexGuard<'_, ()>> {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if self.state().removed { Err(gone()) } else { Ok(turn) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a table that could not be loaded or live. The caller waits for the table's server for 10 s
/// at most: a server that hangs ends later, or never.
fn end_unused(name: &str, served: Arc<dyn Served>) {
    let (name, (ended, ends)) = (name.to_owned(), mpsc::channel());
    let end = move || {
        if let Err(e) = served.end() {
            log::error!("{name}: the table that is not used: {e}");
        }
        let _ = ended.send(());
    };
    match thread::Builder::new().name("ends".into()).spawn(end) {
        Ok(_) => drop(ends.recv_timeout(ENDING)),
        Err(e) => log::error!("no thread to end a table: {e}"),
    }
}

fn gone() -> Error {
    Error::new(Errno::NXIO, "there is no such device")
}
