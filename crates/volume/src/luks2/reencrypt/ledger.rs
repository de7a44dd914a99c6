//! Plan and progress in the header: the regular segments record the progress.
//!
//! | step                    | here                                                        |
//! | ----------------------- | ----------------------------------------------------------- |
//! | what protects it        | `write_area`, `sync_area`: the keyslot's area               |
//! | it is under way         | `record`: the hot segments, one update of the header        |
//! | it is done              | `record`: the segments after it, one update of the header   |

use std::ops::Range;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::activate::{is_vouched_for, verified};
use super::encrypt::differ;
use super::shape::ShapeInput;
use super::slot::{HOT, Lay, Reencryption, bad};
use super::{Stage, shape};
use crate::lock::{LockTo, ReencryptionLock};
use crate::luks2::metadata::Metadata;
use crate::luks2::{Header, store};
use crate::reencrypt::{Mode, Part, Plan, Progress, Protection, Step, Which};
use crate::storage::kept_lock::KeptLock;
use crate::{Error, ErrorKind, KeyCheck, ReadAt as _, Result, Target, VolumeKey, storage};

/// The longest time for which users of a step's range wait for the header's lock. An update of a
/// header takes less time; a step that waits longer is repeated later.
const MOMENT: Duration = Duration::from_millis(200);

/// How a reencryption is resumed.
#[derive(Debug, Clone, Default)]
pub struct ResumeOptions {
    /// The header is detached.
    pub detached: bool,
    /// Accepts data that is not encrypted under the name of a cipher (`cipher_null`).
    pub allow_null: bool,
    /// The longest step in bytes. `None` takes the usual length.
    pub hot_zone: Option<u64>,
}

/// The [`crate::reencrypt::Ledger`] that is a LUKS2 header. As long as this value exists, no other
/// process reencrypts the volume.
pub struct Ledger<'d> {
    pub(super) header: Header,
    pub(super) on: KeptLock<'d>,
    pub(super) of: Reencryption,
    plan: Plan,
    progress: Progress,
    pub(super) given: ShapeInput,
    /// The keys confirm the plan.
    pub(super) vouched: bool,
    /// The last segment reaches to the end of the device, whatever its size.
    open: bool,
    /// The progress that a failed update would have recorded.
    unsure: Option<Progress>,
    /// The areas to be wiped, after the header has forgotten the reencryption.
    ended: Option<Vec<Range<u64>>>,
    _lock: Option<ReencryptionLock>,
}

impl<'d> Ledger<'d> {
    /// Resumes the reencryption of the header, after all checks that the keys allow. `on` is the
    /// header's device, `data_size` the size of the data device.
    ///
    /// # Errors
    /// `BadOption` when no reencryption is in progress; `Busy` when another process carries it out;
    /// `WrongPassphrase` when a key is missing; `Untrusted` when the metadata were written without
    /// the keys; `BadHeader`, `BadLayout`, `TooSmall`, `NullCipher`, `Unsupported` when it cannot
    /// be resumed; `Io`, `Memory`.
    pub fn resume(
        on: &'d (dyn Target + Sync),
        key: &VolumeKey,
        data_size: u64,
        options: &ResumeOptions,
    ) -> Result<Self> {
        // A header that was read before the lock may be out of date.
        let lock = ReencryptionLock::take(read(on)?.uuid(), LockTo::Change)?;
        let mut ledger = Self::resume_under(lock.as_ref(), on, key, data_size, options)?;
        ledger._lock = lock;
        Ok(ledger)
    }

    /// Like [`Self::resume`], for a caller that holds this volume's lock as long as this value
    /// exists, or that cannot take the lock.
    ///
    /// # Errors
    /// The kinds of [`Ledger::resume`]; `Busy` when the lock is another volume's.
    pub fn resume_under(
        lock: Option<&ReencryptionLock>,
        on: &'d (dyn Target + Sync),
        key: &VolumeKey,
        data_size: u64,
        options: &ResumeOptions,
    ) -> Result<Self> {
        let header = read(on)?;
        if lock.is_some_and(|lock| !lock.is_of(header.uuid())) {
            let context = "the lock belongs to another volume's reencryption; try again";
            return Err(Error::new(ErrorKind::Busy, context));
        }
        // The other copy may be older.
        header.stored.damage.as_ref().map_or(Ok(()), |damage| damage.may_be_overwritten())?;
        let metadata = header.metadata();
        let of = parse(&header)?;
        let ResumeOptions { detached, allow_null, hot_zone } = *options;
        let given = ShapeInput { data_size, hot_zone, allow_null, detached };
        let (vouched, (plan, progress)) = match shape::stage(metadata, &of) {
            // The old key may be gone.
            Stage::Final => {
                (is_vouched_for(metadata, &of, key)?, shape::read_final(metadata, &of, key, given)?)
            }
            Stage::Clean | Stage::Hot => (true, verified(metadata, &of, key, given)?),
        };
        let open = shape::is_open(metadata, &of, given, plan.size);
        Ok(Self {
            header,
            on: KeptLock::new(on),
            of,
            plan,
            progress,
            given,
            vouched,
            open,
            unsure: None,
            ended: None,
            _lock: None,
        })
    }

    /// Returns the present header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Takes the header from the disk after an update has failed: the old header, or the header
    /// with `attempt` recorded.
    fn settle(&mut self, attempt: Progress) -> Result<()> {
        let mut after = self.header.json().clone();
        write_segments(&mut after, &self.of, &self.plan.parts(attempt), self.open.then_some(self.plan.size))?;
        self.take_either(&after).map(drop)
    }

    /// Takes the header from the disk, after other programs may have changed parts that do not
    /// belong to the reencryption: cryptsetup removes keyslots meanwhile. Returns true when the
    /// header has changed.
    ///
    /// An older record of this run is replaced by the present one. Fails with `Busy` when the
    /// progress has changed otherwise.
    pub(super) fn refresh(&mut self) -> Result<bool> {
        let before = self.header.json().clone();
        self.take_either(&before)
    }

    fn take_either(&mut self, after: &Map<String, Value>) -> Result<bool> {
        let now = read(&self.on)?;
        let same = |json: &Map<String, Value>| own(now.json(), &self.of) == own(json, &self.of);
        let is_own = now.uuid() == self.header.uuid();
        if !is_own || !same(self.header.json()) && !same(after) {
            let is_older = is_own && !now.stored.may_be_older() && self.is_newer_than(&now);
            if !is_older {
                return Err(now.stored.unexpected());
            }
            self.take(now)?;
            return self.write_record(self.progress).and_then(|()| self.taken_over(None)).map(|()| true);
        }
        let is_other = now.json() != self.header.json();
        self.take(now)?;
        Ok(is_other)
    }

    /// Returns true when a header has an older record of this run: another program has read the
    /// header by another name of its disk, from memory, and written it back with a change of its
    /// own.
    fn is_newer_than(&self, other: &Header) -> bool {
        let Ok(of) = parse(other) else { return false };
        let Ok(progress) = shape::progress(other.metadata(), &of, &self.plan) else { return false };
        let is_older = progress.done < self.progress.done
            || progress.done == self.progress.done && progress.hot.is_none() && self.progress.hot.is_some();
        let mut with_progress = other.json().clone();
        let parts = self.plan.parts(self.progress);
        let open = self.open.then_some(self.plan.size);
        is_older
            && write_segments(&mut with_progress, &of, &parts, open).is_ok()
            && own(&with_progress, &of) == own(self.header.json(), &self.of)
    }

    /// Continues with another plan that the header holds now.
    pub(super) fn taken_over(&mut self, plan: Option<Plan>) -> Result<()> {
        self.of = parse(&self.header)?;
        self.plan = plan.unwrap_or_else(|| self.plan.clone());
        Ok(())
    }

    fn take(&mut self, header: Header) -> Result<()> {
        self.of = parse(&header)?;
        self.header = header;
        Ok(())
    }
}

fn read(on: &(dyn Target + Sync)) -> Result<Header> {
    match crate::Header::read(on)? {
        crate::Header::Luks2(header) => Ok(*header),
        crate::Header::Luks1(_) => Err(Error::new(ErrorKind::BadOption, "LUKS1 knows no reencryption")),
    }
}

fn parse(header: &Header) -> Result<Reencryption> {
    let none = || Error::new(ErrorKind::BadOption, "no reencryption of this volume is under way");
    Reencryption::parse(header.metadata())?.ok_or_else(none)
}

/// The parts of a document that belong to its reencryption, and that no other program changes
/// meanwhile.
fn own(document: &Map<String, Value>, of: &Reencryption) -> Value {
    let digest = |(number, digest): (&String, &Value)| {
        let mut digest = digest.clone();
        // Digests of keys come and go. A digest without segments does not belong to the
        // reencryption.
        if *number != of.digest.to_string() {
            digest.as_object_mut().map(|digest| digest.shift_remove("keyslots"));
        }
        let has_segments = digest["segments"].as_array().is_some_and(|list| !list.is_empty());
        (has_segments || *number == of.digest.to_string()).then(|| (number.clone(), digest))
    };
    let digests = document.get("digests").and_then(Value::as_object);
    let digests: Map<_, _> = digests.into_iter().flatten().filter_map(digest).collect();
    let get = |member: &str| document.get(member).unwrap_or(&Value::Null);
    json!({
        "keyslot": get("keyslots")[of.slot.to_string()],
        "segments": get("segments"),
        "digests": digests,
        "requirements": get("config")["requirements"],
    })
}

/// Writes the regular segments into the document, and the backups behind them. A last segment that
/// ends at byte `open` reaches to the end of the device.
pub(super) fn write_segments(
    document: &mut Map<String, Value>,
    of: &Reencryption,
    parts: &[Part],
    open: Option<u64>,
) -> Result<()> {
    let lost = || bad("segments: not as they were read");
    let old = document.get("segments").and_then(Value::as_object).ok_or_else(lost)?;
    let said = |lay: &Lay| old.get(&lay.number.to_string()).and_then(Value::as_object).ok_or_else(lost);
    let mut segments = Map::new();
    let mut of_key: Vec<(u32, Vec<String>)> =
        of.digests().into_iter().map(|digest| (digest, Vec::new())).collect();
    let mut add = |segment: Map<String, Value>, keys: &[Option<u32>]| {
        let number = segments.len().to_string();
        for (_, numbers) in of_key.iter_mut().filter(|(digest, _)| keys.contains(&Some(*digest))) {
            numbers.push(number.clone());
        }
        segments.insert(number, Value::Object(segment));
    };
    for Part { range, which, lower } in parts {
        let lay = if matches!(which, Which::New | Which::Hot) { &of.last } else { &of.previous };
        let mut segment = said(lay)?.clone();
        let len = range.end - range.start;
        let is_open = open == Some(range.end) && matches!(which, Which::Old | Which::New);
        segment.insert("offset".into(), lower.to_string().into());
        segment.insert("size".into(), if is_open { "dynamic".into() } else { len.to_string().into() });
        if lay.crypt().is_some() {
            segment.insert("iv_tweak".into(), (range.start >> 9).to_string().into());
        }
        segment.shift_remove("flags");
        if *which == Which::Hot {
            segment.insert("flags".into(), json!([HOT]));
        }
        let keys = if *which == Which::Hot && lay.crypt().is_some() {
            [of.previous.digest, of.last.digest]
        } else {
            [lay.digest, None]
        };
        add(segment, &keys);
    }
    for lay in of.backups() {
        add(said(lay)?.clone(), &[lay.digest]);
    }
    let digests = document.get_mut("digests").and_then(Value::as_object_mut);
    let digests = digests.ok_or_else(|| bad("digests: not as they were read"))?;
    for (digest, numbers) in of_key {
        let digest = digests.get_mut(&digest.to_string()).and_then(Value::as_object_mut);
        digest
            .ok_or_else(|| bad("digests: not as they were read"))?
            .insert("segments".into(), json!(numbers));
    }
    document.insert("segments".into(), Value::Object(segments));
    Ok(())
}

impl crate::reencrypt::Ledger for Ledger<'_> {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn progress(&self) -> Progress {
        self.progress
    }

    fn new_key_check(&self) -> Option<KeyCheck> {
        let digest = self.header.metadata().digests.get(&self.of.last.digest?)?;
        let check = digest.check.as_ref().ok()?;
        let whole = self.plan.volume(Progress { done: self.plan.size, hot: None }).ok()?;
        let len = whole.without_key().ok()?.cipher_parameters().key_size;
        Some(KeyCheck { kdf: check.kdf.clone(), digest: check.digest.clone(), len })
    }

    fn allows(&self, data: &dyn Target) -> Result<()> {
        if !self.given.detached {
            return Ok(());
        }
        match Header::read(data) {
            Ok(Some(there)) if there.is_same_volume(&self.header) => {
                Err(Error::new(ErrorKind::BadOption, differ(&there, &self.header)))
            }
            Err(e) if e.kind() == ErrorKind::Io => Err(e),
            _ => Ok(()),
        }
    }

    fn secure(&mut self) -> Result<()> {
        self.refresh()?;
        let _lock = self.on.lock(LockTo::Change)?;
        let now = store::unchanged(&self.on, &self.header.stored)?;
        store::secure(&self.on, &now)?;
        // The step in progress is repeated next. With its copy lost, an older one would call the
        // step's bytes old.
        store::mend(&self.on, &now)?;
        self.header.is_secured = true;
        Ok(())
    }

    fn write_area(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        if at == 0 {
            // Not every user can take the lock: another process's step may be protected by the
            // bytes there.
            self.lock()?;
            let refreshed = self.refresh();
            self.unlock();
            refreshed?;
        }
        storage::write(&self.on, self.in_area(at, bytes.len())?, bytes)
    }

    fn sync_area(&mut self) -> Result<()> {
        storage::sync(&self.on)
    }

    fn read_area(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        storage::read_into(&self.on, self.in_area(at, bytes.len())?, bytes)
    }

    fn lock(&mut self) -> Result<()> {
        self.on.keep(MOMENT)
    }

    fn unlock(&mut self) {
        self.on.release();
    }

    fn record(&mut self, progress: Progress) -> Result<()> {
        self.plan.check_progress(progress)?;
        if let Some(attempt) = self.unsure {
            self.settle(attempt)?;
            self.unsure = None;
        }
        let mut recorded = self.write_record(progress);
        // An update refuses a header that another program has changed, before writing.
        let was_changed = recorded.as_ref().err().is_some_and(|e| e.kind() == ErrorKind::Busy);
        if was_changed && self.refresh().unwrap_or(false) {
            recorded = self.write_record(progress);
        }
        if let Err(e) = recorded {
            if e.kind() == ErrorKind::Locked {
                return Err(e);
            }
            self.unsure = Some(progress);
            return Err(e);
        }
        if self.ended.is_none() {
            // The backups have other numbers now.
            self.of = parse(&self.header)?;
        }
        self.progress = progress;
        Ok(())
    }

    /// In a volume that moves, cryptsetup recovers the last step from the wrong place. The source
    /// of the move exists until the end.
    fn repeats(&self, step: &Step) -> bool {
        self.plan.mode == Mode::Reencrypt
            && step.protection == Protection::Source
            && self.plan.step(step.finished()).is_none()
    }

    fn finish(&mut self, data: &(dyn Target + Sync)) -> Result<()> {
        if let Some(areas) = self.ended.take() {
            return self.wipe_after(data, &areas);
        }
        self.refresh()?;
        self.end(data)
    }
}

impl Ledger<'_> {
    /// Returns true when the record of the last step is the end of the reencryption. cryptsetup
    /// takes a header that calls all of the data new for a reencryption that has not begun, repeats
    /// all of it, and destroys the data. An encryption that moves its data is an exception: the
    /// rest of the plaintext is wiped while the header has its place.
    fn ends_with(&self, progress: Progress) -> bool {
        self.plan.step(progress).is_none() && !self.moves()
    }

    /// Returns true when the data moves as it is encrypted.
    pub(super) fn moves(&self) -> bool {
        self.plan.mode == Mode::Encrypt && self.plan.protection == Protection::Source
    }

    fn write_record(&mut self, progress: Progress) -> Result<()> {
        if self.ends_with(progress) {
            self.ended = Some(self.forget_all()?);
            return Ok(());
        }
        let Self { header, on, of, plan, open, .. } = self;
        let parts = plan.parts(progress);
        let edit = |document: &mut Map<String, Value>, _: &Metadata| {
            write_segments(document, of, &parts, open.then_some(plan.size))
        };
        header.update(on, edit, |()| Ok(()))
    }

    fn in_area(&self, at: u64, len: usize) -> Result<u64> {
        let area = &self.of.area;
        let place = area
            .start
            .checked_add(at)
            .filter(|place| place.checked_add(len as u64).is_some_and(|end| end <= area.end));
        let beyond = || {
            Error::new(
                ErrorKind::TooSmall,
                format!("{len} bytes at byte {at} are beyond the area of the reencryption"),
            )
        };
        place.ok_or_else(beyond)
    }
}
