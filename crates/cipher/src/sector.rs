//! What a caller holds: a cipher over whole requests of sectors.

use cipher::inout::InOutBuf;

use crate::{Error, ErrorKind, Result};

/// The size of an encryption sector in bytes: a power of two from 512 to 65536.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SectorSize(u32);

impl SectorSize {
    /// The traditional sector, and the unit in which sector numbers are counted.
    pub const S512: Self = Self(512);
    /// One page: the best choice for new volumes, and the largest that LUKS takes.
    pub const S4096: Self = Self(4096);

    /// Checks a sector size in bytes.
    pub fn new(bytes: u32) -> Result<Self> {
        if bytes.is_power_of_two() && (512..=65536).contains(&bytes) {
            return Ok(Self(bytes));
        }
        Err(Error::new(
            ErrorKind::SectorSize,
            format!("sector size {bytes} is not a power of two from 512 to 65536"),
        ))
    }

    /// The size in bytes.
    pub fn bytes(self) -> usize {
        self.0 as usize
    }

    /// How many 512-byte units one sector spans: 1 to 128.
    pub fn units(self) -> u64 {
        u64::from(self.0 >> 9)
    }
}

/// Consecutive sectors, as IV generators number them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    /// dm-crypt's cc of the first sector.
    first: u64,
    units: u64,
    shift: u32,
}

impl Run {
    /// A run from the sector number `first` on. With `large`, IVs count sectors of this size and not of 512 bytes.
    pub(crate) fn new(first: u64, size: SectorSize, large: bool) -> Self {
        let units = size.units();
        Self { first, units, shift: if large { units.trailing_zeros() } else { 0 } }
    }

    /// dm-crypt's cc of the run's sector `nth`.
    pub(crate) fn place(self, nth: usize) -> u64 {
        self.first.wrapping_add(self.units.wrapping_mul(nth as u64))
    }

    /// S of the run's sector `nth`.
    #[inline]
    pub(crate) fn number(self, nth: usize) -> u64 {
        self.place(nth) >> self.shift
    }

    /// The numbers of `count` sectors as S(i) = start + (i << shift) mod 2^64, where they are that: not where sector
    /// numbers wrap below a shift.
    pub(crate) fn progression(self, count: usize) -> Option<(u64, u32)> {
        if self.shift == 0 {
            return Some((self.first, self.units.trailing_zeros()));
        }
        self.first.checked_add(self.units.checked_mul(count as u64)?)?;
        Some((self.first >> self.shift, 0))
    }

    /// The run from its sector `nth` on.
    pub(crate) fn skip(self, nth: usize) -> Self {
        Self { first: self.first.wrapping_add(self.units.wrapping_mul(nth as u64)), ..self }
    }
}

/// A cipher with its key, mode and IV generator: encrypts and decrypts whole requests.
///
/// `first` is dm-crypt's sector number of the first sector: 512-byte units, IV offset included, arithmetic
/// modulo 2^64. The data is a run of consecutive sectors.
///
/// Authenticated modes keep a tag for each sector, [`SectorCipher::tag_size`] bytes that lie elsewhere on the device. They
/// travel beside the data, all tags of a run in one slice, through [`SectorCipher::seal`] and [`SectorCipher::open`], which
/// may fail; for every other mode those are `encrypt` and `decrypt`. A layer above has a place for tags, or refuses ciphers
/// whose tag size is not 0.
///
/// # Panics
/// `encrypt` and `decrypt` panic when the data is not a whole number of sectors, or where tags are needed: the layer above has
/// checked it.
pub trait SectorCipher: Send + Sync {
    /// The size of one sector.
    fn sector_size(&self) -> SectorSize;

    /// Encrypts a run of sectors, in place or from one buffer to another.
    fn encrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>);

    /// Decrypts a run of sectors, in place or from one buffer to another.
    fn decrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>);

    /// True when ciphertext equals plaintext, so zeros below read as zeros above.
    fn is_null(&self) -> bool {
        false
    }

    /// True when 16 bytes of a sector that begin at a multiple of 16 are decrypted from the same 16 bytes of ciphertext and
    /// nothing else: a sector of which a part is older than the rest reads as that. In other modes it reads as noise.
    fn is_local(&self) -> bool {
        false
    }

    /// Bytes of tag beside each sector: 0 where the mode authenticates nothing.
    fn tag_size(&self) -> usize {
        0
    }

    /// Encrypts a run of sectors and writes their tags.
    ///
    /// # Errors
    /// The first sector that cannot be sealed; also where the data is no whole number of sectors, or `tags` has not
    /// [`SectorCipher::tag_size`] bytes for each.
    fn seal(
        &self,
        first: u64,
        data: InOutBuf<'_, '_, u8>,
        tags: &mut [u8],
    ) -> std::result::Result<(), BadSector> {
        whole(self.sector_size(), data.len(), tags)?;
        self.encrypt(first, data);
        Ok(())
    }

    /// Checks a run of sectors against their tags and decrypts them. Of a sector that fails nothing is decrypted; when one
    /// fails, the others may be as they were, or decrypted, or wiped.
    ///
    /// # Errors
    /// The first sector that fails its check; also as [`SectorCipher::seal`].
    fn open(
        &self,
        first: u64,
        data: InOutBuf<'_, '_, u8>,
        tags: &[u8],
    ) -> std::result::Result<(), BadSector> {
        whole(self.sector_size(), data.len(), tags)?;
        self.decrypt(first, data);
        Ok(())
    }
}

/// A sector that a cipher refuses: its position in the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadSector(pub usize);

/// What a mode without tags asks for.
#[inline]
fn whole(size: SectorSize, len: usize, tags: &[u8]) -> std::result::Result<(), BadSector> {
    // A power of two.
    let rest = len & (size.bytes() - 1);
    if rest == 0 && tags.is_empty() { Ok(()) } else { Err(BadSector(len / size.bytes())) }
}
