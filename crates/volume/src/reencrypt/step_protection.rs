//! The protection of the steps, by how the disk is written and what the caller asks for.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileTypeExt;

use underseal_cipher::{CipherSpec, SectorSize};

use super::{Protection, checksums_mend};
use crate::info::SegmentInfo;
use crate::{Error, ErrorKind, Hash, Result};

/// How a disk is written.
#[derive(Debug, Clone, Copy)]
pub struct DiskBlocks {
    /// The bytes that reach the disk whole or not at all, whatever happens.
    written_whole: u64,
    is_file: bool,
}

impl DiskBlocks {
    /// A file, or a device that cannot be asked: sectors of 512 bytes are written whole.
    pub const OF_FILES: Self = Self { written_whole: 512, is_file: true };

    /// The blocks of a file or block device.
    ///
    /// # Errors
    /// `NotFound` and the like, as the system says, when the file cannot be asked.
    pub fn of(file: &File) -> io::Result<Self> {
        if !file.metadata()?.file_type().is_block_device() {
            return Ok(Self::OF_FILES);
        }
        Ok(Self { written_whole: rustix::fs::ioctl_blksszget(file)?.into(), is_file: false })
    }

    /// The bytes that are hashed at once: of a file, a page of the page cache.
    fn hashed(self) -> u64 {
        const PAGE: u64 = 4096;
        if self.is_file { PAGE } else { self.written_whole }
    }
}

/// The cipher and the sectors of data.
pub type SectorForm = (CipherSpec, SectorSize);

/// The forms of a volume's segments, as its header describes them; data that is not encrypted has
/// the null cipher.
///
/// # Errors
/// `Unsupported` for ciphers that this build does not know.
pub fn forms(segments: &[SegmentInfo]) -> Result<Vec<SectorForm>> {
    let unknown = |e: underseal_cipher::Error| {
        Error::new(ErrorKind::Unsupported, "a segment of the header").with_source(e)
    };
    let form = |segment: &SegmentInfo| {
        let cipher = segment.cipher.as_deref().unwrap_or("cipher_null-ecb");
        let sectors = u32::try_from(segment.sector_size.unwrap_or(512)).unwrap_or(u32::MAX);
        Ok((cipher.parse().map_err(unknown)?, SectorSize::new(sectors).map_err(unknown)?))
    };
    segments.iter().map(form).collect()
}

/// The protection that a caller asks for, of steps that are written over their own source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WantedProtection {
    /// Checksums where they are enough, else the journal.
    #[default]
    Enough,
    /// Checksums.
    Checksum,
    /// The journal.
    Journal,
    /// No protection: a crash loses data.
    None,
}

impl WantedProtection {
    /// The protection of data on a disk that has, or gets, these ciphers and sectors.
    ///
    /// # Errors
    /// `Unsupported` for ciphers that this build does not know; `Memory`, `Io`.
    pub fn on(self, disk: DiskBlocks, hash: Option<Hash>, forms: &[SectorForm]) -> Result<Protection> {
        let block = forms.iter().map(|(_, sectors)| sectors.bytes() as u64).fold(disk.hashed(), u64::max);
        let checksum = Protection::Checksum { hash: hash.unwrap_or(Hash::Sha256), block };
        match self {
            Self::Enough if block <= disk.written_whole => Ok(checksum),
            Self::Enough => {
                let mend = |(cipher, sectors): &SectorForm| checksums_mend(block, cipher, *sectors);
                let mend = forms.iter().map(mend).collect::<Result<Vec<_>>>()?;
                Ok(if mend.into_iter().all(|mends| mends) { checksum } else { Protection::Journal })
            }
            Self::Checksum => Ok(checksum),
            Self::Journal => Ok(Protection::Journal),
            Self::None => Ok(Protection::None),
        }
    }
}
