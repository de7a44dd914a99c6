//! The offline reencryption of a closed volume by this process.

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use underseal_datapath::{Histogram, Pace, Rate};
use underseal_device::OpenOptions;
use underseal_volume::reencrypt::{self, Alone, Claim, Foreground, Mode, Options, Outcome};
use underseal_volume::{ErrorKind, Header, HeaderLock, LockTo, ReadAt, Target};

use super::args::ReencryptArgs;
use super::{begin, keys};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lower::{Lower, open_header};
use crate::output::print;
use crate::progress::Progress;
use crate::reencryption::{self, Kept, Keys, Place, Where};
use crate::signals;

pub(super) fn run(args: &ReencryptArgs, quiet: bool) -> Result<()> {
    let path = args.image.as_path();
    let options = OpenOptions::default();
    // An open volume's server keeps the image locked.
    let lower = Lower::open(path, options)?;
    begin::refuse_looped(path)?;
    let mut place = Place::new(lower.again(), Kept::Header { apart: None, allow_null: false });
    if args.encrypt && !resumes_encryption(args, &place)? {
        let key = begin::encrypt(args, &mut place)?;
        return go_on(args, &place, &Keys::Luks(key), quiet);
    }
    if let Some(key) = begin::takes_header_away(args, &mut place)? {
        return go_on(args, &place, &Keys::Luks(key), quiet);
    }
    begin::refuse_unfinished(args, &place)?;
    let apart = args.header.as_ref().map(|path| Where::open(path, false)).transpose()?;
    let detached = apart.is_some();
    place.kept = Kept::Header { apart, allow_null: false };
    let (on, data) = place.bytes()?;
    let name = args.header.as_deref().unwrap_or(path);
    let header = Header::read(&*on).map_err(|e| e.in_file(name))?;
    header.hold_to(&args.trust.pinned()).map_err(|e| e.in_file(name))?;
    let under_way = reencryption::status_of(&header).map_err(|e| e.within(name.display()))?;
    begin::fits(args, under_way.map(|status| status.mode), name)?;
    let key = match under_way {
        Some(_) => {
            let key = keys::unlock(args, &header, &*on, name)?.0;
            if under_way.is_some_and(|status| status.mode == Mode::Reencrypt) {
                begin::refuse_datashift(args)?;
            }
            if args.resilience.is_some() {
                begin::losing::Losses::default().unprotected(args, name).sure(args)?;
                let protection = begin::protection(args, path, &begin::forms(&header.info().segments)?)?;
                let changed = place.protect_with((&on, &data), &key, protection);
                changed.map_err(|e| e.within(name.display()))?;
            }
            key
        }
        None => begin::begin(
            args,
            header,
            &begin::Place { on: &*on, name, data: &*data, image: path, detached, size: None },
        )?,
    };
    go_on(args, &place, &Keys::Luks(key), quiet)
}

/// Returns true when an earlier run of the same command began an encryption, which is then resumed.
/// A header that cannot be read is refused later, by the start.
fn resumes_encryption(args: &ReencryptArgs, place: &Place) -> Result<bool> {
    let header = match &args.header {
        Some(path) if !path.exists() => return Ok(false),
        Some(path) => Header::read(&*open_header(path, true)?),
        None => Header::read(&*place.data.bytes()?),
    };
    let status = header.ok().and_then(|header| reencryption::status_of(&header).ok().flatten());
    Ok(status.is_some_and(|status| status.mode == Mode::Encrypt))
}

/// Runs all remaining steps, unless only the start was requested.
pub(super) fn go_on(args: &ReencryptArgs, place: &Place, keys: &Keys, quiet: bool) -> Result<()> {
    if args.init_only {
        return say(args, quiet, "all is ready; --resume-only continues");
    }
    let (on, data) = place.bytes()?;
    let name = args.header.as_deref().or(args.state.as_deref()).unwrap_or(&args.image);
    let size = reencryption::size(&data)?;
    let ledger = place.ledger(&*on, keys, size, args.hotzone_size);
    let mut ledger = ledger.map_err(|e| e.in_file(name))?;
    let watched = Watched::start(args, ledger.plan().size, quiet)?;
    let options = Options { keep_lost: args.keep_lost, ..Options::default() };
    let data = WatchedData { on: &*data, failed: AtomicBool::new(false) };
    let outcome = reencrypt::run(&data, &mut *ledger, &watched, &options);
    // With a detached header the volume has two names: the error names the file that failed.
    let name = if data.failed.load(Ordering::Relaxed) { &args.image } else { name };
    let (done, total) = (ledger.progress().done, ledger.plan().size);
    drop(watched);
    let again = format!("the same with --resume-only, such as {}", resuming(args));
    match outcome {
        Ok(Outcome::Finished) => say(args, quiet, "done"),
        Ok(Outcome::Stopped) => {
            let percent = u128::from(done) * 100 / u128::from(total.max(1));
            let what = format!("{}: stopped at {percent}%", args.image.display());
            Err(Error::new(Exit::Failed, what).with_remedy(again))
        }
        Err(e) if e.kind() == ErrorKind::Io => {
            let is_over = Header::read(&*on)
                .is_ok_and(|header| reencryption::status_of(&header).is_ok_and(|status| status.is_none()));
            let wiped = "all data are done: what failed is the wipe of the bytes that the last step kept";
            let remedy = match () {
                () if is_over => wiped.into(),
                () if place.has_lost_image() => {
                    "--resume-only on a copy of the image as it was just now: the progress is of no other one"
                        .into()
                }
                () => again,
            };
            Err(Error::from(e.in_file(name)).with_remedy(remedy))
        }
        Err(e) => Err(e.in_file(name).into()),
    }
}

/// The command that goes on, with the files that say where.
fn resuming(args: &ReencryptArgs) -> String {
    let files = [
        ("header", &args.header),
        ("state", &args.state),
        ("old-table", &args.old_table),
        ("new-table", &args.new_table),
    ];
    let option =
        |(name, file): (&str, &Option<PathBuf>)| Some(format!(" --{name} {}", file.as_ref()?.display()));
    let options: String = files.into_iter().filter_map(option).collect();
    format!("underseal reencrypt {} --resume-only{options}", args.image.display())
}

fn say(args: &ReencryptArgs, quiet: bool, what: &str) -> Result<()> {
    if quiet { Ok(()) } else { print(&format!("{}: {what}\n", args.image.display())) }
}

/// The device of the volume's data, which notes that one of its calls failed.
struct WatchedData<'a> {
    on: &'a (dyn Target + Sync),
    failed: AtomicBool,
}

impl WatchedData<'_> {
    fn noting<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.inspect_err(|_| self.failed.store(true, Ordering::Relaxed))
    }
}

impl ReadAt for WatchedData<'_> {
    fn size(&self) -> io::Result<u64> {
        self.noting(self.on.size())
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.noting(self.on.read_exact_at(buf, offset))
    }

    fn forget_cached(&self, range: Range<u64>) {
        self.on.forget_cached(range);
    }

    fn lock(&self, to: LockTo) -> underseal_volume::Result<Option<HeaderLock<'_>>> {
        self.on.lock(to)
    }
}

impl Target for WatchedData<'_> {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.noting(self.on.write_all_at(bytes, offset))
    }

    fn sync_all(&self) -> io::Result<()> {
        self.noting(self.on.sync_all())
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        self.noting(self.on.set_len(size))
    }
}

/// The progress and the stop of an offline reencryption.
struct Watched {
    pace: Arc<Pace>,
    shown: Mutex<Shown>,
    longest: AtomicU64,
}

struct Shown {
    progress: Progress,
    done: Option<u64>,
}

impl Watched {
    /// From now on a first signal ends the reencryption after the current step, a second one at
    /// once.
    fn start(args: &ReencryptArgs, total: u64, quiet: bool) -> Result<Self> {
        let rate = args.rate.map_or(Rate::Full, |rate| rate.0.into());
        let pace = Arc::new(Pace::new(rate));
        let failed = |e: std::io::Error| Error::new(Exit::Failed, "cannot wait for signals").because(&e);
        let taken = signals::take(signals::ENDING).map_err(failed)?;
        let theirs = pace.clone();
        let listen = move || {
            let mut last = false;
            while let Ok(signals::Woken::Signal(_)) = taken.wait(None) {
                if std::mem::replace(&mut last, true) {
                    log::error!("stopped in the middle of a step: the resume will recover it");
                    std::process::exit(Exit::Failed as i32);
                }
                theirs.stop();
            }
        };
        thread::Builder::new().name("signals".into()).spawn(listen).map_err(failed)?;
        signals::leave_to_others(signals::ENDING).map_err(failed)?;
        let progress = Progress::new("reencrypting", Some(total), quiet);
        let longest = AtomicU64::new(u64::MAX);
        Ok(Self { pace, shown: Mutex::new(Shown { progress, done: None }), longest })
    }
}

impl Foreground for Watched {
    fn claim(&self, range: Range<u64>) -> underseal_volume::Result<Box<dyn Claim + '_>> {
        Alone.claim(range).map(|_| Box::new(Alone) as Box<dyn Claim>)
    }

    fn claims_ahead(&self) -> bool {
        self.pace.rate() == Rate::Full
    }

    fn writes(&self) -> bool {
        false
    }

    fn waits_for_lock(&self) {
        log::warn!("reencryption: another program holds the header's lock: waiting for it");
    }

    fn is_stopped(&self) -> bool {
        self.pace.is_stopped()
    }

    fn longest(&self) -> u64 {
        self.longest.load(Ordering::Relaxed)
    }

    fn pace(&self, done: u64, left: u64) -> reencrypt::Pace {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let before = shown.done.replace(done).unwrap_or(0);
        shown.progress.advance(done.saturating_sub(before));
        drop(shown);
        match self.pace.next(done, left, Histogram::default) {
            Some(most) => {
                let most = if let Rate::Limit(_) = self.pace.rate() { most } else { u64::MAX };
                self.longest.store(most, Ordering::Relaxed);
                reencrypt::Pace::Go
            }
            None => reencrypt::Pace::Stop,
        }
    }
}
