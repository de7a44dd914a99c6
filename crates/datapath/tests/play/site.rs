//! A volume's reencryption: the process that does it, and the next process after a crash.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use underseal_cipher::SectorSize;
use underseal_datapath::{ErrorKind, Mapping, Pace, ServedVolume};
use underseal_device::Device;
use underseal_volume::reencrypt::state::{About, Keys, State, StateLedger};
use underseal_volume::reencrypt::{self, Alone, Claim, Foreground, Ledger, Options, Outcome, Plan, Progress};
use underseal_volume::{self as volume, LockTo, ReadAt, Segment, SegmentKind, Target, Volume};

use super::counted_device::CountedDevice;
use super::dice::Dice;
use super::forms::{self, Form};
use super::luks::Luks;
use super::round::Setup;

/// Longer than any request takes, also on a busy machine.
const LONG: Duration = Duration::from_secs(120);
/// PBKDF2 iterations, few, since the keys are never guessed.
const ITERATIONS: u32 = 1000;
/// Bytes of both copies of a state.
const COPIES: usize = 32 << 10;

pub(crate) struct Site {
    setup: Setup,
    data: Arc<dyn Device>,
    /// The device of the state.
    on: Arc<dyn Device>,
    /// True while the power is off.
    pub(crate) is_off: AtomicBool,
    /// True while a step is written that is not on stable storage.
    pub(crate) writes: Arc<AtomicBool>,
    kept: Mutex<Kept>,
}

/// The owner's knowledge: keys, and the operation in progress.
struct Kept {
    /// The state of a volume with a header, which has everything else.
    luks: Option<Luks>,
    form: Form,
    job: Option<Job>,
    /// The last finished reencryption: its state is invalid.
    over: Option<About>,
    dice: Dice,
    sums: Sums,
}

struct Job {
    new: Form,
    plan: Plan,
    /// The state is known to be on stable storage.
    is_begun: bool,
}

/// The counters of a round.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Sums {
    pub(crate) begun: u64,
    pub(crate) finished: u64,
    pub(crate) stopped: u64,
    pub(crate) failed: u64,
    /// Steps that were interrupted and recovered.
    pub(crate) recovered: u64,
}

impl Sums {
    pub(crate) fn add(&mut self, more: Self) {
        let Self { begun, finished, stopped, failed, recovered } = more;
        self.begun += begun;
        self.finished += finished;
        self.stopped += stopped;
        self.failed += failed;
        self.recovered += recovered;
    }
}

pub(crate) type Result<T> = volume::Result<T>;

impl Site {
    pub(crate) fn new(setup: &Setup, devices: &[Arc<dyn Device>]) -> Self {
        let mut dice = Dice::of(setup.seed, 20);
        let form = Form::first(setup, &mut dice);
        let [data, on] = devices else { panic!("two devices") };
        let (data, on) = (data.clone(), on.clone());
        let luks =
            setup.luks.then(|| Luks::format(setup, &mut dice, &CountedDevice::new(&on, Arc::default())));
        let kept = Kept { luks, form, job: None, over: None, dice, sums: Sums::default() };
        let (setup, kept) = (setup.clone(), Mutex::new(kept));
        Self { setup, data, on, is_off: AtomicBool::new(false), writes: Arc::default(), kept }
    }

    fn ways(&self) -> (CountedDevice, CountedDevice) {
        (CountedDevice::new(&self.data, self.writes.clone()), CountedDevice::new(&self.on, Arc::default()))
    }

    pub(crate) fn sums(&self) -> Sums {
        self.kept.lock().unwrap().sums
    }

    pub(crate) fn is_at_rest(&self) -> bool {
        let kept = self.kept.lock().unwrap();
        kept.job.is_none() && kept.luks.as_ref().is_none_or(|luks| !luks.is_under_way)
    }

    /// Continues or begins a reencryption, until the pace ends it.
    ///
    /// # Panics
    /// When it fails in a round without faults, or with anything but an I/O error.
    pub(crate) fn work(&self, mapping: &Arc<Mapping>, pace: &Arc<Pace>) {
        let (data, on) = self.ways();
        let sector = SectorSize::new(self.setup.sector).unwrap();
        let users = match ServedVolume::new(mapping.clone(), sector, pace.clone(), LONG) {
            Err(e) if e.kind() == ErrorKind::Busy => return,
            users => users.unwrap(),
        };
        let mut guard = self.kept.lock().unwrap();
        let kept = &mut *guard;
        if kept.job.is_none() && kept.luks.is_none() {
            let (new, plan) = forms::next(&self.setup, &mut kept.dice, &kept.form);
            kept.job = Some(Job { new, plan, is_begun: false });
        }
        let worked = match &mut kept.luks {
            Some(luks) => luks.carry_out((&self.setup, &mut kept.dice, &mut kept.sums), (&data, &on), &users),
            None => self.carry_out(kept, &data, &on, &users),
        };
        match worked {
            Ok(Outcome::Finished) => kept.sums.finished += u64::from(kept.luks.is_none()),
            Ok(Outcome::Stopped) => kept.sums.stopped += 1,
            Err(e) => {
                kept.sums.failed += 1;
                let stopped = pace.is_stopped() && e.kind() == volume::ErrorKind::Busy;
                let failed = self.setup.may_fail() && e.kind() == volume::ErrorKind::Io;
                assert!(stopped || failed, "{}: {}", said(&e), kept);
            }
        }
    }

    fn carry_out(
        &self,
        kept: &mut Kept,
        data: &CountedDevice,
        on: &CountedDevice,
        users: &ServedVolume,
    ) -> Result<Outcome> {
        let mut ledger = match &kept.job {
            Some(job) if job.is_begun => self.state(kept, on)?,
            _ => self.begin(kept, data, on, users)?,
        };
        let memory = kept.dice.pick(&[256 << 10, 64 << 20]);
        let options = Options { workers: 2, memory, keep_lost: false };
        kept.sums.recovered += u64::from(ledger.progress().hot.is_some());
        let outcome = reencrypt::run(data, &mut ledger, users, &options)?;
        if outcome == Outcome::Finished {
            let plan = ledger.plan();
            // A server does the same.
            let whole = users.claim(0..plan.size)?;
            whole.relay(plan.volume(Progress { done: plan.size, hot: None })?)?;
            kept.is_over(ledger.about());
        }
        Ok(outcome)
    }

    /// Opens the state that is known to be there.
    fn state<'w>(&self, kept: &Kept, on: &'w CountedDevice) -> Result<StateLedger<'w>> {
        let job = kept.job.as_ref().unwrap();
        let (old, new) = (kept.form.key(), job.new.key());
        let keys = Keys { old: old.as_ref(), new: new.as_ref() };
        State::read(on, LockTo::Change)?.unlock(keys, self.data.geometry().size)
    }

    /// Makes a state, and moves the moved segment first.
    fn begin<'w>(
        &self,
        kept: &mut Kept,
        data: &CountedDevice,
        on: &'w CountedDevice,
        users: &ServedVolume,
    ) -> Result<StateLedger<'w>> {
        let plan = kept.job.as_ref().unwrap().plan.clone();
        // The state of a finished reencryption is cleared.
        put(on, &[0; COPIES], 0)?;
        sync(on)?;
        let claim = plan.moved.map(|moved| users.claim(0..moved.len)).transpose()?;
        if let Some(moved) = plan.moved {
            let mut bytes = vec![0; usize::try_from(moved.len).unwrap()];
            data.read_exact_at(&mut bytes, plan.old.lower).map_err(io)?;
            put(data, &bytes, moved.lower)?;
            sync(data)?;
        }
        let (old, new) = (kept.form.key(), kept.job.as_ref().unwrap().new.key());
        let keys = Keys { old: old.as_ref(), new: new.as_ref() };
        let made = StateLedger::create(on, plan.clone(), keys, self.data.geometry().size, ITERATIONS);
        let failed = made.as_ref().err().map(said);
        drop(made);
        if !self.is_made(kept, on).inspect_err(|_| claim.iter().for_each(|claim| claim.give_up()))? {
            return Err(volume::Error::new(volume::ErrorKind::Io, format!("not begun: {failed:?}")));
        }
        kept.job.as_mut().unwrap().is_begun = true;
        kept.sums.begun += 1;
        if let Some(claim) = claim {
            claim.relay(plan.volume(Progress::default())?)?;
        }
        self.state(kept, on)
    }

    /// Whether a state was made. Returns `Io` when the power goes before that is known.
    fn is_made(&self, kept: &Kept, on: &CountedDevice) -> Result<bool> {
        loop {
            let known = match self.found(kept, on) {
                Ok(true) => sync(on).map(|()| true),
                Ok(false) => put(on, &[0; COPIES], 0).and_then(|()| sync(on)).map(|()| false),
                Err(e) => Err(e),
            };
            match known {
                Err(e) if self.is_off.load(SeqCst) || e.kind() != volume::ErrorKind::Io => return Err(e),
                Err(_) => thread::sleep(Duration::from_millis(1)),
                known => return known,
            }
        }
    }

    /// Whether the state of the current reencryption is there, not that of the last one.
    fn found(&self, kept: &Kept, on: &CountedDevice) -> Result<bool> {
        match State::read(on, LockTo::Read) {
            Ok(state) => {
                let about = state.about();
                Ok(kept.over.as_ref().is_none_or(|over| over.identity != about.identity))
            }
            Err(e) if matches!(e.kind(), volume::ErrorKind::NoHeader | volume::ErrorKind::BadHeader) => {
                Ok(false)
            }
            Err(e) => Err(e),
        }
    }

    /// Opens the volume as a new process does: an interrupted step is recovered first. Returns `Io`
    /// after a fault.
    ///
    /// # Panics
    /// When the state is gone, or cannot be resumed.
    pub(crate) fn open(&self) -> Result<Volume> {
        let mut guard = self.kept.lock().unwrap();
        let kept = &mut *guard;
        let opened = self.opened(kept);
        if let Err(e) = &opened {
            assert_eq!(e.kind(), volume::ErrorKind::Io, "{}: {kept}", said(e));
        }
        opened
    }

    fn opened(&self, kept: &mut Kept) -> Result<Volume> {
        let (data, on) = self.ways();
        if let Some(luks) = &mut kept.luks {
            return luks.open((&self.setup, &mut kept.sums), (&data, &on));
        }
        if kept.job.is_some() {
            let found = self.found(kept, &on)?;
            let job = kept.job.as_mut().unwrap();
            assert!(found || !job.is_begun, "the state is gone: {kept}");
            kept.sums.begun += u64::from(found && !job.is_begun);
            job.is_begun = found;
            if !found {
                kept.job = None;
            }
        }
        if kept.job.is_some() {
            let mut ledger = self.state(kept, &on)?;
            if ledger.progress().hot.is_some() {
                let options = Options { workers: 2, ..Options::default() };
                reencrypt::run(&data, &mut ledger, &NoStep, &options)?;
                kept.sums.recovered += 1;
            }
            // Clients write to the volume as it stands, so it must be the same after a crash.
            ledger.secure()?;
            let about = ledger.about();
            if !about.finished {
                return ledger.plan().volume(ledger.progress());
            }
            kept.is_over(about);
            kept.sums.finished += 1;
        }
        let kind = SegmentKind::Stored(kept.form.stored());
        Volume::new(vec![Segment { start: 0, len: self.setup.size, kind }])
    }
}

impl Kept {
    /// Notes that the whole volume has the new form.
    fn is_over(&mut self, about: About) {
        assert!(about.finished);
        self.form = self.job.take().unwrap().new;
        self.over = Some(about);
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Luks { is_under_way, .. }) = &self.luks {
            return write!(f, "by a header, under way {is_under_way}, {:?}", self.sums);
        }
        write!(f, "from {:?}", self.form)?;
        let Some(Job { new, plan, is_begun }) = &self.job else { return Ok(()) };
        let Plan { direction, moved, protection, hot_zone, alignment, area, .. } = plan;
        write!(f, " to {new:?} ({direction:?} {moved:?} {protection:?}, hot zone {hot_zone}, ")?;
        write!(f, "alignment {alignment}, area {area}, begun {is_begun}), {:?}", self.sums)
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kept.lock() {
            Ok(kept) => kept.fmt(f),
            Err(poisoned) => poisoned.into_inner().fmt(f),
        }
    }
}

/// A volume without clients whose reencryption makes no step.
pub(crate) struct NoStep;

impl Foreground for NoStep {
    fn claim(&self, _range: Range<u64>) -> Result<Box<dyn Claim + '_>> {
        Ok(Box::new(Alone))
    }

    fn claims_ahead(&self) -> bool {
        false
    }

    fn pace(&self, _done: u64, _left: u64) -> reencrypt::Pace {
        reencrypt::Pace::Stop
    }
}

/// An error with its causes.
fn said(e: &volume::Error) -> String {
    let sources = std::iter::successors(std::error::Error::source(e), |e| e.source());
    sources.fold(e.to_string(), |all, source| format!("{all}: {source}"))
}

fn io(e: std::io::Error) -> volume::Error {
    volume::Error::new(volume::ErrorKind::Io, "the lower device").with_source(e)
}

fn put(counted_device: &CountedDevice, bytes: &[u8], at: u64) -> Result<()> {
    counted_device.write_all_at(bytes, at).map_err(io)
}

fn sync(counted_device: &CountedDevice) -> Result<()> {
    counted_device.sync_all().map_err(io)
}
