//! The online reencryption of a volume that this process serves: a thread, and the operator's
//! commands to it.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use underseal_cipher::Key;
use underseal_datapath::{Mapping, Pace, ServedVolume};
use underseal_export::control::status::{Going, Mode, Reencryption};
use underseal_export::control::{Rate, Reencrypter, Refusal, RefusalKind};
use underseal_volume::reencrypt::{self, Foreground, Ledger, Options, Outcome, Plan, Progress};
use underseal_volume::{ErrorKind, Header, KeyCheck, UnlockOptions};

use super::{Bytes, Kept, Keys, Place, Stood};
use crate::error::{Error, Result};
use crate::exit::Exit;

/// How long requests in flight may take when the reencryption begins.
const BEGINNING: Duration = Duration::from_secs(60);
/// How long the current step may take when the reencryption is to end.
const ENDING: Duration = Duration::from_secs(60);

/// The online reencryption of an open volume.
pub(crate) struct OnlineReencryption {
    mapping: Arc<Mapping>,
    place: Arc<Place>,
    /// The volume's progress when it was opened.
    stood: Option<Reencryption>,
    runs: Arc<Mutex<Runs>>,
    /// Locked while a reencryption begins.
    beginning: Mutex<()>,
}

/// The runs of the reencryption.
#[derive(Default)]
struct Runs {
    last: Option<Arc<Run>>,
    /// True when the volume is being closed: no further run begins.
    closed: bool,
    /// The digest of the volume's key since a run has changed the key. The header may be another
    /// one's by then.
    key: Option<KeyCheck>,
}

/// A run of the reencryption, from a start to its end.
struct Run {
    mode: Mode,
    pace: Arc<Pace>,
    ended: Mutex<Option<Ended>>,
    has_ended: Condvar,
}

/// The end of a run.
#[derive(Debug, Clone)]
enum Ended {
    /// The whole volume is reencrypted.
    Done,
    Stopped,
    Failed(String),
}

impl OnlineReencryption {
    /// For a volume in `place`, with the progress `stood` when it was opened.
    pub(crate) fn new(mapping: Arc<Mapping>, place: Place, stood: Option<Stood>) -> Self {
        let stood = stood.map(Reencryption::from);
        Self { mapping, place: Arc::new(place), stood, runs: Arc::default(), beginning: Mutex::default() }
    }

    /// Resumes the reencryption that the header records as unfinished, and returns once it runs.
    pub(crate) fn begin(&self, keys: Keys, rate: Rate) -> Result<()> {
        let _turn = self.turn()?;
        self.begin_in_turn(keys, rate)
    }

    /// Returns the right to begin without waiting, unless a run is in progress or another one
    /// begins.
    fn turn(&self) -> Result<MutexGuard<'_, ()>> {
        let turn = match self.beginning.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let error = Error::usage("the volume's reencryption begins just now");
                return Err(error.with_remedy("retry if it has not begun a moment later"));
            }
        };
        if self.going().is_ok() {
            return Err(Error::usage("the volume is being reencrypted already"));
        }
        Ok(turn)
    }

    fn begin_in_turn(&self, keys: Keys, rate: Rate) -> Result<()> {
        self.place.keeps_what_it_syncs()?;
        let pace = Arc::new(Pace::new(rate.into()));
        let (tell, begun) = sync_channel(1);
        let (mapping, place, runs) = (self.mapping.clone(), self.place.clone(), self.runs.clone());
        let body = move || drive(&mapping, &place, &keys, &pace, &Begun { runs: &runs, tell: &tell });
        let spawned = thread::Builder::new().name("reencrypt".into()).spawn(body);
        spawned.map_err(|e| Error::new(Exit::Failed, "no thread to reencrypt with").because(&e))?;
        let lost = |_| Err(Error::new(Exit::Failed, "the thread that reencrypts has ended"));
        begun.recv().unwrap_or_else(lost)
    }

    /// Ends the run in progress, since the volume is being closed: from now on none begins.
    pub(crate) fn end(&self) {
        let run = {
            let mut runs = lock(&self.runs);
            runs.closed = true;
            runs.last.clone()
        };
        if let Some(run) = run.filter(|run| run.ended().is_none()) {
            run.pace.stop();
            if run.wait(ENDING).is_none() {
                log::warn!("the reencryption's last step takes long: the resume will recover it");
            }
        }
    }

    fn last(&self) -> Option<Arc<Run>> {
        lock(&self.runs).last.clone()
    }

    /// Returns the run in progress.
    fn going(&self) -> std::result::Result<Arc<Run>, Refusal> {
        let going = self.last().filter(|run| run.ended().is_none());
        going.ok_or_else(|| {
            let remedy = "`underseal reencrypt` starts it";
            Refusal::new(RefusalKind::State, "the volume is not being reencrypted", remedy)
        })
    }
}

impl Run {
    fn lock(&self) -> MutexGuard<'_, Option<Ended>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self) -> Option<Ended> {
        self.lock().clone()
    }

    /// Returns how the run ended, if it ends within `limit`.
    fn wait(&self, limit: Duration) -> Option<Ended> {
        let until = Instant::now() + limit;
        let mut ended = self.lock();
        while ended.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            ended = self.has_ended.wait_timeout(ended, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        ended.clone()
    }

    fn status(&self) -> Reencryption {
        let advance = self.pace.advance();
        let (state, error) = match self.ended() {
            None if self.pace.is_paused() => (Going::Paused, None),
            None => (Going::Running, None),
            Some(Ended::Stopped) => (Going::Stopped, None),
            Some(Ended::Done) => (Going::Done, None),
            Some(Ended::Failed(why)) => (Going::Failed, Some(why)),
        };
        let running = state == Going::Running;
        let nanos = |left: Duration| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
        Reencryption {
            mode: self.mode,
            state,
            done: advance.done,
            total: advance.total,
            bytes_per_second: if running { advance.rate } else { 0 },
            left_ns: advance.left.filter(|_| running).map(nanos),
            rate: self.pace.rate().into(),
            error,
        }
    }
}

impl Reencrypter for OnlineReencryption {
    fn start(&self, old: &Key, new: &Key, rate: Rate) -> std::result::Result<(), Refusal> {
        let begin = || {
            // A run in progress keeps the header locked.
            let _turn = self.turn()?;
            self.begin_in_turn(self.keys(old, new)?, rate)
        };
        begin().map_err(|e| {
            let kind = match e.exit() {
                Exit::Usage => RefusalKind::State,
                Exit::NoKey => RefusalKind::WrongKey,
                Exit::Unsupported => RefusalKind::Unsupported,
                Exit::InUse => RefusalKind::Busy,
                _ => RefusalKind::Failed,
            };
            Refusal::new(kind, e.what(), e.remedy().unwrap_or_default())
        })
    }

    fn pause(&self) -> std::result::Result<(), Refusal> {
        self.going().map(|run| run.pace.pause())
    }

    fn go_on(&self) -> std::result::Result<(), Refusal> {
        self.going().map(|run| run.pace.go_on())
    }

    fn stop(&self) -> std::result::Result<(), Refusal> {
        let run = self.going()?;
        run.pace.stop();
        let failed = |why: &str| Err(Refusal::new(RefusalKind::Failed, why, ""));
        match run.wait(ENDING) {
            Some(Ended::Stopped | Ended::Done) => Ok(()),
            Some(Ended::Failed(why)) => failed(&why),
            None => failed("the current step takes long; the reencryption ends after it"),
        }
    }

    fn set_rate(&self, rate: Rate) -> std::result::Result<(), Refusal> {
        self.going().map(|run| run.pace.set_rate(rate.into()))
    }

    fn status(&self) -> Option<Reencryption> {
        self.last().map(|run| run.status()).or_else(|| self.stood.clone())
    }

    fn key_check(&self) -> Option<KeyCheck> {
        lock(&self.runs).key.clone()
    }
}

impl OnlineReencryption {
    /// Returns the keys that a client sent, if the header confirms them.
    fn keys(&self, old: &Key, new: &Key) -> Result<Keys> {
        if let Kept::State(..) = self.place.kept {
            let some =
                |key: &Key| Some(key).filter(|key| !key.is_empty()).map(|key| Key::new(key.as_bytes()));
            return Ok(Keys::Forms(some(old).transpose()?, some(new).transpose()?));
        }
        let (on, _) = self.place.bytes()?;
        let header = Header::read(&*on)?;
        let mut keys = None;
        for key in [old, new].into_iter().filter(|key| !key.is_empty()) {
            let key = header.volume_key(Key::new(key.as_bytes())?, &UnlockOptions::default())?;
            keys = Some(match keys {
                Some(known) => key.with(known),
                None => key,
            });
        }
        keys.map(Keys::Luks).ok_or_else(|| Error::new(Exit::NoKey, "there are no keys"))
    }
}

/// The receiver of the result of a start.
struct Begun<'b> {
    runs: &'b Mutex<Runs>,
    tell: &'b SyncSender<Result<()>>,
}

impl Begun<'_> {
    fn refused(&self, e: Error) {
        // The starting thread reads the error.
        let _ = self.tell.send(Err(e));
    }

    /// Makes the run the last one, unless the volume is being closed. Returns true when it may
    /// continue.
    fn goes_on(&self, run: &Arc<Run>) -> bool {
        let mut runs = lock(self.runs);
        if runs.closed {
            drop(runs);
            self.refused(Error::new(Exit::InUse, "the volume is being closed"));
            return false;
        }
        runs.last = Some(run.clone());
        drop(runs);
        let _ = self.tell.send(Ok(()));
        true
    }
}

fn lock(runs: &Mutex<Runs>) -> MutexGuard<'_, Runs> {
    runs.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The body of the thread. The starting thread gets the result when everything is ready.
fn drive(mapping: &Arc<Mapping>, place: &Place, keys: &Keys, pace: &Arc<Pace>, begun: &Begun<'_>) {
    let (on, data) = match place.bytes() {
        Ok(bytes) => bytes,
        Err(e) => return begun.refused(e),
    };
    let prepared = prepare(mapping, place, keys, pace, (&on, &data));
    let (mut ledger, users) = match prepared {
        Ok(prepared) => prepared,
        Err(e) => return begun.refused(e),
    };
    let mode = super::mode(ledger.plan().mode);
    let run = Run { mode, pace: pace.clone(), ended: Mutex::default(), has_ended: Condvar::new() };
    let run = Arc::new(run);
    if !begun.goes_on(&run) {
        return;
    }
    log::info!("reencryption: goes on at byte {}", ledger.progress().done);
    let new_key = ledger.new_key_check();
    let size = ledger.plan().size;
    let ended = match carry_out(&data, &mut *ledger, &users) {
        Ok(Outcome::Finished) => {
            pace.set_position(size, 0);
            place.is_done();
            log::info!("reencryption: done");
            Ended::Done
        }
        Ok(Outcome::Stopped) => Ended::Stopped,
        // The lock or range that it waited for was not free before the stop.
        Err(e) if pace.is_stopped() && matches!(e.kind(), ErrorKind::Busy | ErrorKind::Locked) => {
            Ended::Stopped
        }
        Err(e) => {
            let e = Error::from(e);
            log::error!("reencryption: failed: {}", e.what());
            place.has_failed();
            Ended::Failed(e.what())
        }
    };
    if let Ended::Stopped = ended {
        log::info!("reencryption: stopped at byte {}", ledger.progress().done);
    }
    if has_new_key_only(mapping, ledger.plan()) {
        lock(begun.runs).key = new_key;
    }
    // A thread that is notified of the end must find no trace of the run.
    drop((ledger, users));
    *run.lock() = Some(ended);
    run.has_ended.notify_all();
}

/// Returns true when clients have the volume as it is after the last step, however the run ended.
fn has_new_key_only(mapping: &Mapping, plan: &Plan) -> bool {
    let whole = plan.volume(Progress { done: plan.size, hot: None });
    mapping.volume().zip(whole.ok()).is_some_and(|(served, whole)| served.is_stored_as(&whole))
}

fn prepare<'d>(
    mapping: &Arc<Mapping>,
    place: &Place,
    keys: &Keys,
    pace: &Arc<Pace>,
    (on, data): (&'d Bytes, &Bytes),
) -> Result<(Box<dyn Ledger + 'd>, ServedVolume)> {
    let ledger = place.ledger(&**on, keys, super::size(data)?, None)?;
    let (plan, progress) = (ledger.plan(), ledger.progress());
    let sectors = plan.old.cipher.sector_size().max(plan.new.cipher.sector_size());
    let users = ServedVolume::new(mapping.clone(), sectors, pace.clone(), BEGINNING);
    let users = users.map_err(|e| {
        let remedy = "`underseal close` it, and open it again with --reencrypt";
        Error::from(e).with_remedy(remedy)
    })?;
    // From now on no other thread changes the size.
    if plan.size != mapping.size() {
        let what = format!("the header says {} bytes, the open volume has {}", plan.size, mapping.size());
        return Err(
            Error::usage(what).with_remedy("`underseal close` it, and open it again with --reencrypt")
        );
    }
    // The layouts differ after a step that is recorded, and that clients do not see yet:
    // `carry_out` shows it to them first.
    let is_behind = users.miss_some();
    let served = mapping.volume().filter(|_| !is_behind);
    let planned = plan.volume(progress)?;
    if served.is_some_and(|served| !served.is_stored_as(&planned)) {
        // The right header can be restored now.
        place.release();
        let what = "the header has another key, cipher or place of the data than the open volume: another header was \
                    restored since";
        let remedy =
            "restore the open volume's own header, or `underseal close` it and look at what the header opens";
        return Err(Error::usage(what).with_remedy(remedy));
    }
    pace.set_position(progress.done, plan.size - progress.done);
    Ok((ledger, users))
}

/// Runs all steps, and finally gives the volume the layout of a new open.
fn carry_out(
    data: &Bytes,
    ledger: &mut dyn Ledger,
    users: &ServedVolume,
) -> underseal_volume::Result<Outcome> {
    // Half of the workers: clients need processors, too.
    let workers = (Options::default().workers / 2).max(1);
    let (size, progress) = (ledger.plan().size, ledger.progress());
    if progress.hot.is_none() && users.miss_some() {
        // A step failed that was done and recorded already.
        users.claim(0..size)?.relay(ledger.plan().volume(progress)?)?;
    }
    let outcome = reencrypt::run(&**data, ledger, users, &Options { workers, ..Options::default() })?;
    if outcome == Outcome::Finished {
        let plan = ledger.plan();
        let whole = users.claim(0..plan.size)?;
        whole.relay(plan.volume(Progress { done: plan.size, hot: None })?)?;
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests;
