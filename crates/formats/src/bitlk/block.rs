//! The metadata block of a BitLocker volume, of which three copies lie on the disk.
//!
//! The first copy whose signature, version, sizes and CRC-32 are right is used, as Windows does.
//! Its place on the disk must be the one that it states. The CRC does not prevent forging: the
//! SHA-256 of the block that is sealed with the VMK does, and is checked at unlocking.

use underseal_cipher::Key;
use underseal_volume::ReadAt;

use super::boot::{Boot, SIGNATURE};
use super::entries::{Entries, Entry};
use crate::fields::{self, Fields};
use crate::{Error, ErrorKind, Result};

/// Bytes that each copy takes on the disk, regardless of the copy's length.
pub(crate) const AREA: u64 = 65536;
/// Bytes before the entries.
const HEAD: usize = 112;
/// The offset of the metadata header, whose size includes the metadata's entries.
const METADATA: usize = 64;

/// A state of encryption, present or wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Decrypted, with BitLocker's metadata still there.
    Decrypted,
    /// Encryption or decryption runs.
    Switching,
    /// Sectors are encrypted when they are written.
    EncryptOnWrite,
    /// Encrypted.
    Encrypted,
    /// Encryption or decryption is paused.
    Paused,
    /// An undocumented number.
    Unknown(u16),
}

impl State {
    fn new(number: u16) -> Self {
        match number {
            1 => Self::Decrypted,
            2 => Self::Switching,
            3 => Self::EncryptOnWrite,
            4 => Self::Encrypted,
            5 => Self::Paused,
            other => Self::Unknown(other),
        }
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Decrypted => f.write_str("decrypted"),
            Self::Switching => f.write_str("being encrypted or decrypted"),
            Self::EncryptOnWrite => f.write_str("encrypted as it is written"),
            Self::Encrypted => f.write_str("encrypted"),
            Self::Paused => f.write_str("encryption or decryption paused"),
            Self::Unknown(number) => write!(f, "unknown state {number}"),
        }
    }
}

/// A copy that passed its checks. It may hold a clear key, so its bytes are in locked memory.
pub(crate) struct Block {
    /// The whole area.
    area: Key,
    /// Bytes of it that the CRC and the seal are over.
    len: usize,
    /// Where the validation ends.
    end: usize,
    /// Which copy it is.
    pub(crate) copy: usize,
    pub(crate) state: State,
    pub(crate) target: State,
    /// Encrypted bytes, from the volume's beginning.
    pub(crate) encrypted: u64,
    /// Sectors of the moved header.
    pub(crate) header_sectors: u32,
    /// Where the three copies lie.
    pub(crate) offsets: [u64; 3],
    /// Where the moved header lies.
    pub(crate) header: u64,
    pub(crate) guid: [u8; 16],
    pub(crate) method: u16,
    pub(crate) created: u64,
}

impl Block {
    /// Reads the first valid copy.
    ///
    /// Returns `BadHeader` when no copy is valid, or the first valid one states another place than
    /// its own, and `Io` or `Memory`.
    pub(crate) fn read(image: &(impl ReadAt + ?Sized), boot: &Boot) -> Result<Self> {
        let size = fields::size(image)?;
        let mut failures = Vec::new();
        for (copy, &at) in boot.blocks.iter().enumerate() {
            let read = fields::range("metadata block", at, AREA, size).and_then(|_| {
                let mut area = Key::zeroed(usize::try_from(AREA).unwrap_or(0))?;
                fields::read(image, at, area.as_mut_bytes())?;
                Self::parse(area, copy)
            });
            match read {
                Ok(block) if block.offsets[copy] != at => {
                    let says = block.offsets[copy];
                    let context = format!("metadata block {copy} lies at byte {at}, and says byte {says}");
                    return Err(Error::new(ErrorKind::BadHeader, context));
                }
                Ok(block) => return Ok(block),
                Err(e) if matches!(e.kind(), ErrorKind::Io | ErrorKind::Memory) => return Err(e),
                Err(e) => failures.push(format!("{copy}: {e}")),
            }
        }
        let context = format!("none of the three metadata blocks is valid ({})", failures.join("; "));
        Err(Error::new(ErrorKind::BadHeader, context))
    }

    /// Checks an area, and reads the block's fields.
    fn parse(area: Key, copy: usize) -> Result<Self> {
        let bad = |why: String| Error::new(ErrorKind::BadHeader, why);
        let bytes = area.as_bytes();
        let fields = Fields(bytes);
        if fields.array(0)? != SIGNATURE {
            return Err(bad("no signature".into()));
        }
        let version = fields.le16(10)?;
        if version != 2 {
            return Err(bad(format!("version {version}")));
        }
        let len = usize::from(fields.le16(8)?) * 16;
        let (sealed, validation) = bytes.split_at_checked(len).unwrap_or((bytes, &[]));
        let check = Fields(validation);
        let (size, version, crc) = match (check.le16(0), check.le16(2), check.le32(4)) {
            (Ok(size), Ok(version), Ok(crc)) => (usize::from(size), version, crc),
            _ => return Err(bad(format!("a length of {len} bytes"))),
        };
        if size < 8 || size > validation.len() || version > 2 {
            return Err(bad(format!("a validation of {size} bytes, version {version}")));
        }
        if crc32fast::hash(sealed) != crc {
            return Err(bad("wrong CRC-32".into()));
        }
        let inside = Fields(sealed);
        let metadata = usize::try_from(inside.le32(METADATA)?).unwrap_or(usize::MAX);
        let end = METADATA.saturating_add(metadata);
        if end < HEAD || end > len || inside.le32(METADATA + 8)? != 48 {
            return Err(bad(format!("metadata of {metadata} bytes in a block of {len}")));
        }
        let offset = |nth: usize| inside.le64(32 + 8 * nth);
        let block = Self {
            len,
            end: len + size,
            copy,
            state: State::new(inside.le16(12)?),
            target: State::new(inside.le16(14)?),
            encrypted: inside.le64(16)?,
            header_sectors: inside.le32(28)?,
            offsets: [offset(0)?, offset(1)?, offset(2)?],
            header: inside.le64(56)?,
            guid: inside.array(80)?,
            method: inside.le16(100)?,
            created: inside.le64(104)?,
            area,
        };
        Ok(block)
    }

    /// The bytes that the seal is over.
    pub(crate) fn sealed(&self) -> &[u8] {
        &self.area.as_bytes()[..self.len]
    }

    /// The entries on the first level.
    pub(crate) fn entries(&self) -> Entries<'_> {
        let fields = Fields(self.sealed());
        let size = fields.le32(METADATA).ok().and_then(|size| usize::try_from(size).ok()).unwrap_or(0);
        let end = METADATA.saturating_add(size);
        Entries(self.sealed().get(HEAD..end).unwrap_or(&[]))
    }

    /// The one entry of a type and value type, or `None`.
    ///
    /// Returns `BadHeader` when two entries differ, or the list is damaged.
    pub(crate) fn entry(&self, kind: u16, value: u16, what: &str) -> Result<Option<Entry<'_>>> {
        let mut found: Option<Entry<'_>> = None;
        for entry in self.entries() {
            let entry = entry?;
            if (entry.kind, entry.value) != (kind, value) {
                continue;
            }
            if found.is_some_and(|found| found.data != entry.data) {
                return Err(Error::new(ErrorKind::BadHeader, format!("two entries that differ: {what}")));
            }
            found = Some(entry);
        }
        Ok(found)
    }

    /// The wrapped SHA-256 of the block: nonce, tag, data.
    ///
    /// Returns `BadHeader` when the entry is missing.
    pub(crate) fn seal(&self) -> Result<&[u8]> {
        let bytes = &self.area.as_bytes()[self.len + 8..self.end];
        match Entries(bytes).next() {
            Some(Ok(Entry { kind: 0, value: super::entries::value::CCM, data })) if data.len() == 72 => {
                Ok(data)
            }
            _ => Err(Error::new(ErrorKind::BadHeader, "the metadata block is not sealed")),
        }
    }
}
