//! Reencryption by this process, offline, or online with a volume that it serves.

pub(crate) mod marker;
mod no_step;
pub(crate) mod online;
mod recovery;
mod watched;

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use underseal_cipher::{Key, SectorSize};
use underseal_device::{Device, ExpectedBytes, FileDevice, OpenOptions, open_again};
use underseal_export::control::{Rate, status};
use underseal_volume::luks2::{self, Ledger, ResumeOptions, Status};
use underseal_volume::reencrypt::state::{self, State};
use underseal_volume::{
    ErrorKind, Header, LockTo, NamedFile, ReencryptionLock, Target, VolumeKey, reencrypt,
};

use self::marker::Marker;
pub(crate) use self::recovery::{is_not_all_decrypted, is_to_be_mended, mend, mended};
use self::watched::Watched;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lower::{DeviceBytes, FileBytes, Lower, is_remote};

/// The files of a volume, opened once for the whole process.
pub(crate) struct Place {
    pub(crate) data: Where,
    pub(crate) kept: Kept,
    /// The kind of lock: to change the progress, or to read it.
    to: LockTo,
    /// True when clients read and write the volume meanwhile.
    is_open: bool,
    /// Set when a sync failed: earlier writes may be in memory only, and be read back as if they
    /// were on disk.
    sync_failed: Arc<AtomicBool>,
    /// The lock that excludes other programs from reencrypting an open LUKS2 volume as if it were
    /// closed.
    open: OnceLock<ReencryptionLock>,
    /// The lock that excludes other programs from resuming the reencryption, from its start or its
    /// discovery until it is done.
    lock: Mutex<Option<ReencryptionLock>>,
}

/// The ledger's place.
pub(crate) enum Kept {
    /// In a LUKS2 header.
    Header {
        /// The file or device of a detached header.
        apart: Option<Where>,
        /// Accepts unencrypted data under a cipher's name.
        allow_null: bool,
    },
    /// A state file, and the marker beside the image that points to it.
    State(Where, Option<Marker>),
}

/// The keys of a volume that is reencrypted.
pub(crate) enum Keys {
    /// Keys that a header has confirmed.
    Luks(VolumeKey),
    /// The old and the new key; `None` for data without encryption.
    Forms(Option<Key>, Option<Key>),
}

/// A file or device.
pub(crate) enum Where {
    /// The file or block device of an open image.
    Image(Arc<FileDevice>),
    /// Another file or block device, which must keep its name if it has one.
    File(NamedFile),
    /// A device of any other kind.
    Device(Arc<dyn Device>),
}

/// Bytes that a reencryption reads and writes.
pub(crate) type Bytes = Arc<dyn Target + Send + Sync>;

impl Where {
    /// Opens the file or device of this name, without a lock. Fails with `Failed`, or the device's
    /// error.
    pub(crate) fn open(path: &Path, read_only: bool) -> Result<Self> {
        if is_remote(path) {
            let options = OpenOptions { read_only, unlocked: true, ..OpenOptions::default() };
            return Ok(Self::Device(Lower::open(path, options)?.into_device()));
        }
        let file = File::options().read(true).write(!read_only).open(path);
        Ok(Self::File(NamedFile::opened(file.map_err(|e| Error::io(path, "cannot open", e))?)))
    }

    /// Returns the bytes through a separate open file: no other user of the file can drop a lock
    /// that is taken here. Fails with `Failed` when a file cannot be opened any more, or the system
    /// has no descriptor or ring left.
    pub(crate) fn bytes(&self) -> Result<Bytes> {
        match self {
            Self::Image(image) => Ok(Arc::new(FileBytes::new(image)?)),
            Self::File(file) => {
                match open_again(file.file(), 0) {
                    Ok(again) => Ok(Arc::new(file.opened_again(again))),
                    Err(e) => Err(Error::new(Exit::Failed, "cannot open the header again, by /proc/self/fd")
                        .because(&e)),
                }
            }
            Self::Device(device) => Ok(Arc::new(DeviceBytes::new(&**device)?)),
        }
    }

    /// Returns the bytes for a caller that is the only user.
    pub(crate) fn into_bytes(self) -> Result<Bytes> {
        match self {
            Self::File(file) => Ok(Arc::new(file)),
            other => other.bytes(),
        }
    }
}

impl Place {
    /// The files of a closed volume.
    pub(crate) fn new(data: Where, kept: Kept) -> Self {
        Self {
            data,
            kept,
            to: LockTo::Change,
            is_open: false,
            sync_failed: Arc::default(),
            open: OnceLock::new(),
            lock: Mutex::default(),
        }
    }

    /// The files of a volume that this process opens for clients.
    pub(crate) fn open(data: Where, kept: Kept, read_only: bool) -> Self {
        let to = if read_only { LockTo::Read } else { LockTo::Change };
        Self { to, is_open: true, ..Self::new(data, kept) }
    }

    /// Returns the locks that exclude other programs from reencrypting the open volume.
    pub(crate) fn into_locks(self) -> Vec<ReencryptionLock> {
        let lock = self.lock.into_inner().unwrap_or_else(PoisonError::into_inner);
        lock.into_iter().chain(self.open.into_inner()).collect()
    }

    /// Records that the whole volume is reencrypted.
    pub(crate) fn is_done(&self) {
        *self.lock() = None;
        if let Kept::State(_, Some(marker)) = &self.kept {
            marker::end(marker);
        }
    }

    /// Lets other programs change the reencryption of the header, which is not the open volume's.
    fn release(&self) {
        *self.lock() = None;
    }

    /// Records a failure: if the header no longer has the reencryption, other programs may begin
    /// one.
    pub(crate) fn has_failed(&self) {
        let is_over = || {
            let (on, _) = self.bytes().ok()?;
            Some(status_of(&Header::read(&*on).ok()?).ok()?.is_none())
        };
        if matches!(self.kept, Kept::Header { .. }) && is_over() == Some(true) {
            *self.lock() = None;
        }
    }

    /// Excludes other programs from reencrypting an open LUKS2 volume as if it were closed, from
    /// now on. If a program moves data over the header before it takes the lock, the volume's
    /// flushes fail. Fails with `Busy` while another program reencrypts the volume.
    pub(crate) fn keep_open(&self, header: &Header) -> underseal_volume::Result<()> {
        if self.is_open
            && self.open.get().is_none()
            && let Header::Luks2(_) = header
            && let Some(lock) = ReencryptionLock::take(header.uuid(), LockTo::Read)?
        {
            // Only one thread opens a volume.
            let _ = self.open.set(lock);
        }
        if self.is_open
            && let Header::Luks2(luks2) = header
            && let (Kept::Header { apart, .. }, Where::Image(image)) = (&self.kept, &self.data)
        {
            match apart {
                None => expect_header(image, luks2, 0, None)?,
                Some(Where::File(file)) => expect_header(image, luks2, 0, Some(file))?,
                Some(Where::Image(_) | Where::Device(_)) => {}
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Option<ReencryptionLock>> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn resume<'d>(
        &self,
        on: &'d (dyn Target + Sync),
        key: &VolumeKey,
        data_size: u64,
        hot_zone: Option<u64>,
    ) -> underseal_volume::Result<Ledger<'d>> {
        let lock = self.hold(&Header::read(on)?)?;
        Ledger::resume_under(lock.as_ref(), on, key, data_size, &self.options(hot_zone))
    }

    /// Excludes other programs from resuming the reencryption, until it is done.
    fn hold(&self, header: &Header) -> underseal_volume::Result<MutexGuard<'_, Option<ReencryptionLock>>> {
        let mut lock = self.lock();
        if lock.is_none() {
            let take = if self.is_open { ReencryptionLock::take_turn } else { ReencryptionLock::take };
            *lock = take(header.uuid(), self.to)?;
        }
        Ok(lock)
    }

    /// Returns the bytes of the ledger and of the data. A failed sync of either is noted. If both
    /// are in one file, they share an open file: the kernel reports a write-back error once to each
    /// open file, and a step that is undone after the error would get it again.
    pub(crate) fn bytes(&self) -> Result<(Bytes, Bytes)> {
        let data = self.watched(&self.data)?;
        let on = match (&self.kept, &self.data) {
            (Kept::Header { apart: Some(on), .. } | Kept::State(on, _), _) => self.watched(on)?,
            // The requests of two threads go through one ring, one after the other.
            (Kept::Header { apart: None, .. }, Where::Device(_)) => self.watched(&self.data)?,
            (Kept::Header { apart: None, .. }, _) => data.clone(),
        };
        Ok((on, data))
    }

    fn watched(&self, of: &Where) -> Result<Bytes> {
        Ok(Arc::new(Watched::new(of.bytes()?, self.sync_failed.clone())))
    }

    /// Refuses to continue after a failed sync, of the data or of the ledger: the next sync may
    /// succeed without the bytes that the failed one was to keep. The same holds after a failed
    /// write-back of clients' writes. Fails with `Failed`.
    pub(crate) fn keeps_what_it_syncs(&self) -> Result<()> {
        let is_lossless = if let Where::Image(image) = &self.data { image.check().is_ok() } else { true };
        if is_lossless && !self.sync_failed.load(Ordering::SeqCst) {
            return Ok(());
        }
        let what = "a sync of the image failed: what the volume's users wrote before may be in memory only";
        let remedy = "`underseal close` it, look at the image's disk, and open it again with --reencrypt";
        Err(Error::new(Exit::Failed, what).with_remedy(remedy))
    }

    /// Returns true once another program has removed, replaced or cut the image.
    pub(crate) fn has_lost_image(&self) -> bool {
        matches!(&self.data, Where::Image(image) if image.may_change_to(u64::MAX).is_err())
    }

    /// Sets another resilience for the remaining steps of a LUKS2 reencryption; an interrupted step
    /// is recovered first. Fails when this resilience is not possible, or with the header's errors.
    pub(crate) fn protect_with(
        &self,
        (on, data): (&Bytes, &Bytes),
        key: &VolumeKey,
        protection: reencrypt::Protection,
    ) -> Result<()> {
        let mut ledger = self.resume(&**on, key, size(data)?, None)?;
        mend(data, &mut ledger)?;
        Ok(ledger.protect_with(protection, key)?)
    }

    /// Writes the digest over reencryption metadata that lack one, over `data_size` bytes of data.
    /// Fails when the reencryption cannot be resumed, or with the header's errors.
    pub(crate) fn sign(
        &self,
        header: &mut luks2::Header,
        (on, data_size): (&(dyn Target + Sync), u64),
        key: &VolumeKey,
    ) -> underseal_volume::Result<()> {
        header.sign_reencryption(on, key, data_size, &self.options(None))
    }

    fn options(&self, hot_zone: Option<u64>) -> ResumeOptions {
        let (detached, allow_null) = match &self.kept {
            Kept::Header { apart, allow_null } => (apart.is_some(), *allow_null),
            Kept::State(..) => (false, false),
        };
        ResumeOptions { detached, allow_null, hot_zone }
    }

    /// Resumes the ledger over `data_size` bytes of data, with steps of at most `hot_zone` bytes.
    /// Fails when the reencryption cannot be resumed.
    pub(crate) fn ledger<'d>(
        &self,
        on: &'d (dyn Target + Sync),
        keys: &Keys,
        data_size: u64,
        hot_zone: Option<u64>,
    ) -> underseal_volume::Result<Box<dyn reencrypt::Ledger + 'd>> {
        match (&self.kept, keys) {
            (Kept::Header { .. }, Keys::Luks(key)) => {
                Ok(Box::new(self.resume(on, key, data_size, hot_zone)?))
            }
            (Kept::State(..), Keys::Forms(old, new)) => {
                let keys = state::Keys { old: old.as_ref(), new: new.as_ref() };
                Ok(Box::new(State::read(on, LockTo::Change)?.unlock(keys, data_size)?))
            }
            (Kept::Header { .. }, Keys::Forms(..)) | (Kept::State(..), Keys::Luks(_)) => {
                let what = "these are not the keys of such a volume";
                Err(underseal_volume::Error::new(ErrorKind::WrongKey, what))
            }
        }
    }
}

/// Makes the image's flushes fail once another program has moved data over the header of a volume
/// that begins at byte `start`, or changed its UUID. cryptsetup takes the lock that excludes an
/// open volume only after the move, and by the new UUID. `apart` is the file of a detached header.
/// Fails when the header's file cannot be opened once more.
pub(crate) fn expect_header(
    image: &FileDevice,
    header: &luks2::Header,
    start: u64,
    apart: Option<&NamedFile>,
) -> underseal_volume::Result<()> {
    let cannot =
        |e| underseal_volume::Error::new(ErrorKind::Io, "the header cannot be watched").with_source(e);
    let mut copies = header.copies();
    copies.iter_mut().flatten().for_each(|(offset, _)| *offset += start);
    let apart = apart.map(NamedFile::try_clone).transpose().map_err(cannot)?;
    let bytes = ExpectedBytes::of_header(copies, apart, underseal_volume::is_header_locked);
    image.expect(bytes).map_err(|e| {
        underseal_volume::Error::new(ErrorKind::Io, "the header cannot be watched").with_source(e)
    })
}

/// Returns the mode in the form of `status`.
pub(crate) fn mode(mode: reencrypt::Mode) -> status::Mode {
    match mode {
        reencrypt::Mode::Reencrypt => status::Mode::Reencrypt,
        reencrypt::Mode::Encrypt => status::Mode::Encrypt,
        reencrypt::Mode::Decrypt => status::Mode::Decrypt,
    }
}

/// The progress of an unfinished reencryption.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stood {
    mode: reencrypt::Mode,
    done: u64,
    total: u64,
    /// The largest sectors of the old and the new form.
    sectors: SectorSize,
}

impl From<Stood> for status::Reencryption {
    fn from(stood: Stood) -> Self {
        let Stood { mode, done, total, .. } = stood;
        Self {
            mode: self::mode(mode),
            state: status::Going::Stopped,
            done,
            total,
            bytes_per_second: 0,
            left_ns: None,
            rate: Rate::default(),
            error: None,
        }
    }
}

/// Returns the progress of a volume's reencryption, if one is unfinished.
pub(crate) fn stood(
    header: &Header,
    on: &(dyn Target + Sync),
    key: &VolumeKey,
    (place, data_size): (&Place, u64),
) -> Result<Option<Stood>> {
    if status_of(header)?.is_none() {
        return Ok(None);
    }
    let mut ledger = place.resume(on, key, data_size, None)?;
    reencrypt::Ledger::allows(&ledger, &*place.data.bytes()?)?;
    if place.to == LockTo::Change {
        // Clients write to the volume in its present layout, so the layout must survive a crash.
        reencrypt::Ledger::secure(&mut ledger)?;
    }
    Ok(Some(Stood::of(&ledger)))
}

impl Stood {
    pub(crate) fn of(ledger: &dyn reencrypt::Ledger) -> Self {
        let plan = ledger.plan();
        let sectors = plan.old.cipher.sector_size().max(plan.new.cipher.sector_size());
        Self { mode: plan.mode, done: ledger.progress().done, total: plan.size, sectors }
    }

    /// Returns the largest sectors that the volume has or will have.
    pub(crate) fn sectors(&self) -> SectorSize {
        self.sectors
    }
}

/// Reads again a header that was read some time ago. From now on no other program reencrypts the
/// open volume as if it were closed, or resumes its unfinished reencryption; until now another
/// program may have done so. `key` is the one that the older header was unlocked with. Fails with
/// `InUse` when another program reencrypts the volume, or has begun or ended a reencryption.
pub(crate) fn held(
    header: Header,
    on: &(dyn Target + Sync),
    key: &VolumeKey,
    place: &Place,
) -> Result<Header> {
    if !matches!(header, Header::Luks2(_)) {
        return Ok(header);
    }
    place.keep_open(&header)?;
    let under_way = status_of(&header)?.is_some();
    if under_way {
        drop(place.hold(&header)?);
    }
    let now = Header::read(on)?;
    let is_other = now.uuid() != header.uuid() || status_of(&now)?.is_some() != under_way;
    // Each change has a sequence number; the old key's number may stand for another key by now.
    let is_its_key = now.info().epoch == header.info().epoch
        || under_way
        || now.key_check(key).and_then(|check| check.confirm(key.key())).is_ok();
    if is_other || !is_its_key {
        let what = "another program has begun or ended a reencryption of the volume just now";
        return Err(Error::new(Exit::InUse, what).with_remedy("try again"));
    }
    Ok(now)
}

/// Returns the reencryption that a header records as unfinished.
pub(crate) fn status_of(header: &Header) -> Result<Option<Status>> {
    match header {
        Header::Luks2(header) => Ok(header.reencryption()?),
        _ => Ok(None),
    }
}

/// Returns the size of the data's file or device.
pub(crate) fn size(data: &Bytes) -> Result<u64> {
    data.size().map_err(|e| Error::new(Exit::Failed, "cannot find out the image's size").because(&e))
}

#[cfg(test)]
mod tests;
