//! A reencryption that this process carries out: alone, or beside the users of the volume that it serves.

pub(crate) mod beside;

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use underseal_device::{Device, OpenOptions};
use underseal_export::control::{Rate, status};
use underseal_volume::luks2::{Ledger, ResumeOptions};
use underseal_volume::luks2::{Stage, Status};
use underseal_volume::reencrypt::{Claim, Foreground, Ledger as _, Options, Pace};
use underseal_volume::{Header, Target, VolumeKey, reencrypt};

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lower::{DeviceBytes, Lower, is_remote};

/// Where a volume lies, opened as long as anything can be opened.
pub(crate) struct Place {
    pub(crate) data: Where,
    /// Its header, where that is in another file.
    pub(crate) header: Option<Where>,
    /// Accepts data that is not encrypted under the name of a cipher.
    pub(crate) allow_null: bool,
}

/// What holds bytes.
pub(crate) enum Where {
    /// A file or block device.
    File(File),
    /// A device of any other kind.
    Device(Arc<dyn Device>),
}

/// Bytes that a reencryption reads and writes.
pub(crate) type Bytes = Box<dyn Target + Send + Sync>;

impl Where {
    /// What is there by this name. It is not locked.
    ///
    /// # Errors
    /// `Failed`; the device's.
    pub(crate) fn open(path: &Path, read_only: bool) -> Result<Self> {
        if is_remote(path) {
            let options = OpenOptions { read_only, ..OpenOptions::default() };
            return Ok(Self::Device(Lower::open(path, options)?.into_device()));
        }
        let file = File::options().read(true).write(!read_only).open(path);
        Ok(Self::File(file.map_err(|e| Error::io(path, "cannot open", e))?))
    }

    /// # Errors
    /// `Failed` when the system has no descriptor or ring for it.
    pub(crate) fn bytes(&self) -> Result<Bytes> {
        match self {
            Self::File(file) => match file.try_clone() {
                Ok(file) => Ok(Box::new(file)),
                Err(e) => Err(Error::new(Exit::Failed, "the image cannot be used twice").because(&e)),
            },
            Self::Device(device) => Ok(Box::new(DeviceBytes::new(&**device)?)),
        }
    }
}

impl Place {
    /// The bytes that hold the header, and those that hold the data.
    pub(crate) fn bytes(&self) -> Result<(Bytes, Bytes)> {
        let data = self.data.bytes()?;
        Ok((self.header.as_ref().unwrap_or(&self.data).bytes()?, data))
    }

    /// How its reencryption goes on, with steps of so many bytes at most.
    pub(crate) fn options(&self, hot_zone: Option<u64>) -> ResumeOptions {
        ResumeOptions { detached: self.header.is_some(), allow_null: self.allow_null, hot_zone }
    }
}

/// As `status` tells it.
pub(crate) fn mode(mode: reencrypt::Mode) -> status::Mode {
    match mode {
        reencrypt::Mode::Reencrypt => status::Mode::Reencrypt,
        reencrypt::Mode::Encrypt => status::Mode::Encrypt,
        reencrypt::Mode::Decrypt => status::Mode::Decrypt,
    }
}

/// How far a reencryption was that did not go on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stood {
    mode: reencrypt::Mode,
    done: u64,
    total: u64,
}

impl From<Stood> for status::Reencryption {
    fn from(stood: Stood) -> Self {
        let Stood { mode, done, total } = stood;
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

/// How far the reencryption of a volume is, where it is in one.
///
/// # Errors
/// The header's.
pub(crate) fn stood(
    header: &Header,
    on: &(dyn Target + Sync),
    key: &VolumeKey,
    (place, data_size): (&Place, u64),
) -> Result<Option<Stood>> {
    if status_of(header)?.is_none() {
        return Ok(None);
    }
    let ledger = Ledger::resume(on, key, data_size, &place.options(None))?;
    let (mode, total) = (ledger.plan().mode, ledger.plan().size);
    Ok(Some(Stood { mode, done: ledger.progress().done, total }))
}

/// Makes a step good that was cut off in the middle, before the volume is used. The header as it is then.
///
/// # Errors
/// Why it cannot be made good; the volume is as it was then.
pub(crate) fn mended(
    header: Header,
    on: &(dyn Target + Sync),
    key: &VolumeKey,
    (place, data): (&Place, &Bytes),
) -> Result<Header> {
    if status_of(&header)?.is_none_or(|status| status.stage != Stage::Hot) {
        return Ok(header);
    }
    log::warn!("a reencryption was cut off in the middle of a step, which is made good first");
    let mut ledger = Ledger::resume(on, key, size(data)?, &place.options(None))?;
    reencrypt::run(&**data, &mut ledger, &NoStep, &Options::default())?;
    drop(ledger);
    Ok(Header::read(on)?)
}

/// The reencryption that a header says is under way.
///
/// # Errors
/// The header's.
pub(crate) fn status_of(header: &Header) -> Result<Option<Status>> {
    match header {
        Header::Luks2(header) => Ok(header.reencryption()?),
        _ => Ok(None),
    }
}

/// Nobody uses the volume, and no step is begun.
struct NoStep;

impl Foreground for NoStep {
    fn claim(&self, range: Range<u64>) -> underseal_volume::Result<Box<dyn Claim + '_>> {
        reencrypt::Alone.claim(range).map(|_| Box::new(reencrypt::Alone) as Box<dyn Claim>)
    }

    fn claims_ahead(&self) -> bool {
        false
    }

    fn pace(&self, _done: u64, _left: u64) -> Pace {
        Pace::Stop
    }
}

/// The size of what holds the data.
pub(crate) fn size(data: &Bytes) -> Result<u64> {
    data.size().map_err(|e| Error::new(Exit::Failed, "cannot find out the image's size").because(&e))
}
