//! BitLocker: volumes of Windows 7 and later, and BitLocker To Go.
//!
//! ```text
//!   sector 0 --boot--> three places --block--> a valid copy of the metadata
//!                                                |
//!                       entries, protector: VMKs, each wrapped for one secret
//!                                                |
//!   secret --unlock (stretch, recovery, startup, ccm)--> VMK --> seal checked, volume key
//!                                                |
//!                                   layout: segments, zero ranges, guards
//! ```
//! Byte order is little-endian. Known from cryptsetup's, dislocker's and libbde's notes, and
//! checked against their images.
//!
//! BitLocker writes go to finished volumes only, and never to the metadata: a change of the
//! metadata needs the VMK's seal in three copies.

mod block;
mod boot;
mod ccm;
mod entries;
mod facts;
mod guid;
mod layout;
mod method;
mod protector;
mod recovery;
mod startup;
mod stretch;
mod unlock;

use underseal_cipher::{Key, SectorSize};
use underseal_volume::{KdfLimits, ReadAt};

use block::Block;
use boot::Boot;
use entries::{kind, value};
use layout::Layout;

use crate::fields::{self, Fields};
use crate::{Error, ErrorKind, Format, OpenedFormat, Result};

pub use block::State;
pub use boot::VolumeType;
pub use guid::{FileTime, Guid};
pub use method::Method;
pub use protector::{Protector, ProtectorKind};
pub use startup::MOST as MOST_STARTUP_KEY;
pub use unlock::{Secret, Unlocked};

/// Bytes of sector 0 that are read.
const SECTOR: usize = 512;

/// A BitLocker volume that is locked: its metadata, as one valid copy says them.
pub struct Bitlk {
    boot: Boot,
    block: Block,
    protectors: Vec<Protector>,
    method: Method,
    description: String,
    /// The moved header's place and length.
    header: (u64, u64),
    /// The size of the image in bytes.
    device: u64,
}

impl Bitlk {
    /// Whether the image has BitLocker's mark, of any version.
    ///
    /// # Errors
    /// `Io`; an image that is too small has no mark.
    pub fn is_marked(image: &(impl ReadAt + ?Sized)) -> Result<bool> {
        let mut sector = [0; SECTOR];
        match fields::read(image, 0, &mut sector) {
            Ok(()) => Ok(Boot::is_marked(&sector)),
            Err(e) if e.kind() == ErrorKind::TooSmall => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Reads sector 0 and the first valid copy of the metadata.
    ///
    /// # Errors
    /// `NoHeader` for anything else, `Unsupported` for Vista's version or an unknown method,
    /// `BadHeader` for damaged or forged metadata, `TooSmall`, `Io`, `Memory`.
    pub fn read(image: &(impl ReadAt + ?Sized)) -> Result<Self> {
        let mut sector = [0; SECTOR];
        fields::read(image, 0, &mut sector)?;
        let boot = Boot::parse(&sector)?;
        let block = Block::read(image, &boot)?;
        let protectors = Protector::all(&block)?;
        let method = Method::new(block.method)?;
        // Sector 0 is not sealed, and its size of a sector decides about every IV; the length of
        // the moved header is, in sectors and in bytes.
        let unit = boot.sector.bytes() as u64;
        let header = match block.entry(kind::MOVED_HEADER, value::PLACE, "moved volume header")? {
            Some(entry) => (Fields(entry.data).le64(0)?, Fields(entry.data).le64(8)?),
            // Windows 10 has volumes without the entry.
            None => (block.header, u64::from(block.header_sectors) * unit),
        };
        if block.header_sectors != 0 && u64::from(block.header_sectors) * unit != header.1 {
            let context = format!(
                "sector 0 says sectors of {unit} bytes, but {} sectors of the metadata are {} bytes",
                block.header_sectors, header.1
            );
            return Err(Error::new(ErrorKind::BadHeader, context));
        }
        let description = block.entry(kind::DESCRIPTION, value::TEXT, "description")?;
        let description = description.map(|entry| entries::text(entry.data)).unwrap_or_default();
        let device = fields::size(image)?;
        Ok(Self { boot, block, protectors, method, description, header, device })
    }

    /// The protectors, in the metadata's order.
    pub fn protectors(&self) -> &[Protector] {
        &self.protectors
    }

    /// Whether the volume opens without a secret, by a clear key.
    pub fn has_clear_key(&self) -> bool {
        self.protectors.iter().any(|protector| protector.kind == ProtectorKind::ClearKey)
    }

    /// Whether a password or a recovery password may open it.
    pub fn takes_passphrase(&self) -> bool {
        let takes = |kind| matches!(kind, ProtectorKind::Password | ProtectorKind::RecoveryPassword);
        self.protectors.iter().any(|protector| takes(protector.kind))
    }

    /// The kind of volume.
    pub fn volume_type(&self) -> VolumeType {
        self.boot.kind
    }

    /// Whether it is a volume of BitLocker To Go.
    pub fn is_to_go(&self) -> bool {
        self.boot.to_go
    }

    /// Bytes of the wrapped volume key, without nonce and tag.
    ///
    /// # Errors
    /// `BadHeader` when it is missing, or there are two.
    pub fn wrapped_key_len(&self) -> Result<usize> {
        let entry = self.block.entry(kind::FVEK, value::CCM, "volume key")?;
        let entry =
            entry.ok_or_else(|| Error::new(ErrorKind::BadHeader, "the metadata hold no volume key"))?;
        Ok(entry.data.len().saturating_sub(ccm::HEAD))
    }

    /// The cipher of the data.
    pub fn method(&self) -> Method {
        self.method
    }

    /// The size of its sectors.
    pub fn sector_size(&self) -> SectorSize {
        self.boot.sector
    }

    /// The state of the volume, and the state that Windows is changing it to.
    pub fn states(&self) -> (State, State) {
        (self.block.state, self.block.target)
    }

    /// The volume's GUID.
    pub fn guid(&self) -> Guid {
        Guid(self.block.guid)
    }

    /// When it was made.
    pub fn created(&self) -> FileTime {
        FileTime(self.block.created)
    }

    /// The volume's description: usually the computer's name, the volume's and a date.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Bytes that are encrypted, from the volume's beginning, by its metadata: all of a finished
    /// volume.
    pub fn encrypted_bytes(&self) -> u64 {
        self.block.encrypted
    }

    /// Where the three metadata blocks lie, in bytes; each takes 65536.
    pub fn metadata(&self) -> [u64; 3] {
        self.block.offsets
    }

    /// Which of the three was read, counted from 0: the first valid one.
    pub fn metadata_copy(&self) -> usize {
        self.block.copy
    }

    /// Where the moved volume header lies, and its length, in bytes.
    pub fn moved_header(&self) -> (u64, u64) {
        self.header
    }

    /// Finds the volume key.
    ///
    /// # Errors
    /// `WrongPassphrase` when the secret opens no protector, `NoProtector` when no protector takes
    /// secrets of its kind, `BadHeader` when the metadata differ from the sealed ones, `BadOption`
    /// for a malformed startup key file or a volume key of another length, `TooCostly`, `Memory`.
    pub fn unlock(&self, secret: &Secret<'_>, limits: &KdfLimits) -> Result<Unlocked> {
        unlock::unlock(self, secret, limits)
    }

    /// Puts the volume together.
    ///
    /// # Errors
    /// `Unsupported` for a volume in a state or of a kind that does not show which sectors are
    /// encrypted, `BadHeader` for places that contradict each other, `TooSmall`, `Memory`.
    pub fn activate(&self, key: Key) -> Result<OpenedFormat> {
        let read_only = self.check_state()?;
        let layout = Layout::new(self.device, self.boot.sector, self.block.offsets, self.header)?;
        // Of a finished volume the number is the size that it was made with, and says nothing of an
        // image that was cut.
        let encrypted = if read_only.is_some() { self.block.encrypted } else { u64::MAX << 12 };
        let volume = layout.volume(self.method, &key, encrypted)?;
        let mut facts = self.facts();
        for zeros in layout.zeros() {
            facts.add("zero range", format_args!("{}, {} bytes", zeros.start, zeros.end - zeros.start));
        }
        let guards = layout.guards();
        Ok(OpenedFormat { format: Format::Bitlk, volume, read_only, guards, volume_key: key, facts })
    }

    /// Why the volume may only be read, if so.
    fn check_state(&self) -> Result<Option<&'static str>> {
        let refuse = |why: String| Err(Error::new(ErrorKind::Unsupported, why));
        match self.boot.kind {
            VolumeType::Normal => {}
            VolumeType::EncryptOnWrite => {
                return refuse(
                    "an encrypt-on-write volume: which sectors are encrypted is in bitmaps that are not documented; \
                     let Windows encrypt it whole"
                        .into(),
                );
            }
            VolumeType::Unknown => return refuse("a BitLocker volume of an unknown kind".into()),
        }
        match (self.block.state, self.block.target) {
            (State::Encrypted, State::Encrypted) => Ok(None),
            (State::Paused, State::Encrypted | State::Decrypted) => Ok(Some(
                "its encryption or decryption is paused, and Windows would not know of a write when it resumes",
            )),
            (State::Switching, _) => {
                refuse("encryption or decryption runs; let Windows finish or pause it".into())
            }
            (state, target) => refuse(format!("its state is: {state}, on the way to: {target}")),
        }
    }
}

impl std::fmt::Debug for Bitlk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bitlk")
            .field("guid", &self.guid())
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}
