//! Sector 0 of a BitLocker volume: which kind of volume it is, and where the three metadata blocks
//! lie.

use underseal_cipher::SectorSize;

use crate::fields::Fields;
use crate::{Error, ErrorKind, Result};

/// The mark of BitLocker, in sector 0 and in each metadata block.
pub(crate) const SIGNATURE: [u8; 8] = *b"-FVE-FS-";
/// The mark of a FAT volume. BitLocker To Go has it too, with a GUID of BitLocker's at byte 424.
const TO_GO: [u8; 8] = *b"MSWIN4.1";
const NTFS: [u8; 8] = *b"NTFS    ";

/// GUID of a volume that is encrypted whole, as its bytes lie on disk.
const NORMAL: [u8; 16] = *b"\x3b\xd6\x67\x49\x29\x2e\xd8\x4a\x83\x99\xf6\xa3\x39\xe3\xd0\x01";
/// GUID of a volume that is encrypted as it is written (used space only, while that runs).
const ENCRYPT_ON_WRITE: [u8; 16] = *b"\x3b\x4d\xa8\x92\x80\xdd\x0e\x4d\x9e\x4e\xb1\xe3\x28\x4e\xae\xd8";

/// The kinds of volumes, by the GUID in sector 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeType {
    /// The whole volume is encrypted, or is being encrypted from its beginning on.
    Normal,
    /// Sectors are encrypted when they are written; bitmaps say which ones are.
    EncryptOnWrite,
    /// An undocumented GUID.
    Unknown,
}

impl VolumeType {
    /// The name in cryptsetup's messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::EncryptOnWrite => "encrypt-on-write",
            Self::Unknown => "unknown",
        }
    }
}

/// The fields of sector 0.
#[derive(Debug, Clone)]
pub(crate) struct Boot {
    pub(crate) kind: VolumeType,
    pub(crate) to_go: bool,
    pub(crate) sector: SectorSize,
    /// Where the metadata blocks lie, in bytes.
    pub(crate) blocks: [u64; 3],
}

impl Boot {
    /// Whether the sector has BitLocker's mark, of any version.
    pub(crate) fn is_marked(sector: &[u8]) -> bool {
        let fields = Fields(sector);
        let known = |at| fields.array(at).is_ok_and(|guid| guid == NORMAL || guid == ENCRYPT_ON_WRITE);
        match fields.array(3) {
            Ok(SIGNATURE) => true,
            Ok(TO_GO) => known(424),
            _ => false,
        }
    }

    /// Reads sector 0.
    ///
    /// Returns `NoHeader` for anything but BitLocker, `Unsupported` for Vista's version, and
    /// `BadHeader` for a sector size that BitLocker does not have.
    pub(crate) fn parse(sector: &[u8]) -> Result<Self> {
        let fields = Fields(sector);
        let signature: [u8; 8] = fields.array(3)?;
        if !Self::is_marked(sector) {
            return Err(Error::new(
                ErrorKind::NoHeader,
                match signature {
                    NTFS => "a plain NTFS boot sector, no BitLocker volume",
                    TO_GO => "a plain FAT boot sector, no BitLocker To Go volume",
                    _ => "no BitLocker volume",
                },
            ));
        }
        match fields.array(0)? {
            [0xeb, 0x58, 0x90] => {}
            [0xeb, 0x52, 0x90] => {
                let context = "BitLocker version 1, of Windows Vista, is not supported";
                return Err(Error::new(ErrorKind::Unsupported, context));
            }
            code => {
                let context = format!("boot code {:02x?} of no known BitLocker version", code);
                return Err(Error::new(ErrorKind::BadHeader, context));
            }
        }
        let sector = match fields.le16(11)? {
            // exFAT volumes of Windows 10 1903.
            0 | 512 => SectorSize::S512,
            4096 => SectorSize::S4096,
            other => {
                let context = format!("sector size {other}, where BitLocker has 512 or 4096");
                return Err(Error::new(ErrorKind::BadHeader, context));
            }
        };
        let to_go = signature == TO_GO;
        let guid = if to_go { 424 } else { 160 };
        let kind = match fields.array(guid)? {
            NORMAL => VolumeType::Normal,
            ENCRYPT_ON_WRITE => VolumeType::EncryptOnWrite,
            _ => VolumeType::Unknown,
        };
        let block = |nth: usize| fields.le64(guid + 16 + 8 * nth);
        Ok(Self { kind, to_go, sector, blocks: [block(0)?, block(1)?, block(2)?] })
    }
}
