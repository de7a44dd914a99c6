//! A reencryption beside the users of the volume that this process serves: a thread of its own, and
//! what its operator may tell it.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use underseal_cipher::Key;
use underseal_datapath::{Mapping, Pace, ServedVolume};
use underseal_export::control::status::{Going, Mode, Reencryption};
use underseal_export::control::{Rate, Reencrypter, Refusal, RefusalKind};
use underseal_volume::reencrypt::{self, Foreground, Ledger, Options, Outcome, Progress};
use underseal_volume::{ErrorKind, Header, KeyCheck, UnlockOptions};

use super::{Bytes, Kept, Keys, Place, Stood};
use crate::error::{Error, Result};
use crate::exit::Exit;

/// Requests that are in flight when it begins may take so long.
const BEGINNING: Duration = Duration::from_secs(60);
/// A step that is under way ends within this, or somebody else has to look.
const ENDING: Duration = Duration::from_secs(60);

/// Reencrypts a volume that is open, when it is told to.
pub(crate) struct Beside {
    mapping: Arc<Mapping>,
    place: Arc<Place>,
    /// How the volume stood when it was opened.
    stood: Option<Reencryption>,
    runs: Arc<Mutex<Runs>>,
    /// Held while one begins.
    beginning: Mutex<()>,
}

/// What was started.
#[derive(Default)]
struct Runs {
    last: Option<Arc<Run>>,
    /// The volume is being closed: no other one begins.
    closed: bool,
}

/// One time that it was started.
struct Run {
    mode: Mode,
    pace: Arc<Pace>,
    ended: Mutex<Option<Ended>>,
    has_ended: Condvar,
}

/// How it ended.
#[derive(Debug, Clone)]
enum Ended {
    /// All is new.
    Done,
    Stopped,
    Failed(String),
}

impl Beside {
    /// For a volume that lies at `place`, and stood so when it was opened.
    pub(crate) fn new(mapping: Arc<Mapping>, place: Place, stood: Option<Stood>) -> Self {
        let stood = stood.map(Reencryption::from);
        Self { mapping, place: Arc::new(place), stood, runs: Arc::default(), beginning: Mutex::default() }
    }

    /// Goes on with what the header says is under way, and returns once it does.
    ///
    /// # Errors
    /// Why it does not.
    pub(crate) fn begin(&self, keys: Keys, rate: Rate) -> Result<()> {
        let _turn = self.turn()?;
        self.begin_in_turn(keys, rate)
    }

    /// Waits for nothing: the right to begin, while none is under way and no other one begins.
    fn turn(&self) -> Result<MutexGuard<'_, ()>> {
        let turn = match self.beginning.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let error = Error::usage("the volume's reencryption begins just now");
                return Err(error.with_remedy("again, if it has not begun a moment later"));
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

    /// Ends it, if it goes on, for the volume is being closed: from now on none begins.
    pub(crate) fn end(&self) {
        let run = {
            let mut runs = lock(&self.runs);
            runs.closed = true;
            runs.last.clone()
        };
        if let Some(run) = run.filter(|run| run.ended().is_none()) {
            run.pace.stop();
            if run.wait(ENDING).is_none() {
                log::warn!("the reencryption's last step takes long: it is made good when it goes on");
            }
        }
    }

    fn last(&self) -> Option<Arc<Run>> {
        lock(&self.runs).last.clone()
    }

    /// The one that goes on.
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

    /// How it ended, if it does within `limit`.
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

impl Reencrypter for Beside {
    fn start(&self, old: &Key, new: &Key, rate: Rate) -> std::result::Result<(), Refusal> {
        let begin = || {
            // One that is under way keeps its header for itself.
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
            None => failed("the step that is under way takes long; it ends after it"),
        }
    }

    fn set_rate(&self, rate: Rate) -> std::result::Result<(), Refusal> {
        self.going().map(|run| run.pace.set_rate(rate.into()))
    }

    fn status(&self) -> Option<Reencryption> {
        self.last().map(|run| run.status()).or_else(|| self.stood.clone())
    }

    /// However the last one ended: the header may have forgotten the old key before something
    /// failed.
    fn key_check(&self) -> Option<KeyCheck> {
        self.last()?.ended()?;
        let (on, _) = self.place.bytes().ok()?;
        match self.place.kept {
            Kept::Header { .. } => Header::read(&*on).ok()?.data_key_check(),
            Kept::State(..) => None,
        }
    }
}

impl Beside {
    /// The keys that a client sent, if they are the header's.
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

/// Whom a beginning is told.
struct Begun<'b> {
    runs: &'b Mutex<Runs>,
    tell: &'b SyncSender<Result<()>>,
}

impl Begun<'_> {
    fn refused(&self, e: Error) {
        // Who waits for it reads it.
        let _ = self.tell.send(Err(e));
    }

    /// Takes it for the last one, unless the volume is being closed. Whether it goes on.
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

/// The body of the thread. Whoever started it is told when all is ready, or why it is not.
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
    let size = ledger.plan().size;
    let ended = match carry_out(&data, &mut *ledger, &users) {
        Ok(Outcome::Finished) => {
            pace.set_position(size, 0);
            place.is_done();
            log::info!("reencryption: done");
            Ended::Done
        }
        Ok(Outcome::Stopped) => Ended::Stopped,
        // What it waited for did not come before.
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
    // Who is told that it has ended finds nothing of it in the way.
    drop((ledger, users));
    *run.lock() = Some(ended);
    run.has_ended.notify_all();
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
    // From now on nobody gives it another one.
    if plan.size != mapping.size() {
        let what = format!("the header says {} bytes, the open volume has {}", plan.size, mapping.size());
        return Err(
            Error::usage(what).with_remedy("`underseal close` it, and open it again with --reencrypt")
        );
    }
    pace.set_position(progress.done, plan.size - progress.done);
    Ok((ledger, users))
}

/// All steps, and in the end the volume as if it had been opened then.
fn carry_out(
    data: &Bytes,
    ledger: &mut dyn Ledger,
    users: &ServedVolume,
) -> underseal_volume::Result<Outcome> {
    // Users want processors too.
    let workers = (Options::default().workers / 2).max(1);
    let (size, progress) = (ledger.plan().size, ledger.progress());
    if progress.hot.is_none() && users.miss_some() {
        // A step failed when it was done and recorded already.
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
