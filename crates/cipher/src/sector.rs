//! The interface of a cipher: whole requests of sectors.

use cipher::inout::InOutBuf;

use crate::{CpuPath, Error, ErrorKind, Result, SharedDestination, SharedSource};

/// The size of an encryption sector in bytes: a power of two from 512 to 65536.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SectorSize(u32);

impl SectorSize {
    /// The traditional sector, and the unit in which sector numbers are counted.
    pub const S512: Self = Self(512);
    /// The size of a page: the best choice for new volumes, and the largest one of LUKS.
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
    /// A run from the sector number `first` on. With `large`, IVs count sectors of this size and
    /// not of 512 bytes.
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

    /// The numbers of `count` sectors as S(i) = start + (i << shift) mod 2^64; `None` where sector
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
/// `first` is dm-crypt's sector number of the first sector: 512-byte units, IV offset included,
/// arithmetic modulo 2^64. The data is a run of consecutive sectors.
///
/// Authenticated modes have a tag for each sector, [`SectorCipher::tag_size`] bytes that lie
/// elsewhere on the device. Tags travel beside the data, all tags of a run in one slice, through
/// [`SectorCipher::seal`] and [`SectorCipher::open`], which may fail; for other modes these are
/// `encrypt` and `decrypt`. A layer above stores tags, or refuses ciphers whose tag size is not 0.
///
/// # Panics
/// `encrypt` and `decrypt` panic when the data is not a whole number of sectors, and for ciphers
/// with tags: the layer above has checked both.
pub trait SectorCipher: Send + Sync {
    /// The size of one sector.
    fn sector_size(&self) -> SectorSize;

    /// Encrypts a run of sectors, in place or from one buffer to another.
    fn encrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>);

    /// Decrypts a run of sectors, in place or from one buffer to another.
    fn decrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>);

    /// True when ciphertext equals plaintext, so zeros on the lower device read as zeros.
    fn is_null(&self) -> bool {
        false
    }

    /// True when 16 bytes of a sector that begin at a multiple of 16 are decrypted from the same 16
    /// bytes of ciphertext alone: a sector with an older part then reads as old and new bytes. In
    /// other modes it reads as noise.
    fn is_local(&self) -> bool {
        false
    }

    /// The CPU paths for encryption and decryption, where mode and direction choose them.
    fn cpu_paths(&self) -> Option<[CpuPath; 2]> {
        None
    }

    /// Bytes of the tag of each sector: 0 without authentication.
    fn tag_size(&self) -> usize {
        0
    }

    /// Encrypts a run of sectors and writes their tags.
    ///
    /// # Errors
    /// The first sector that cannot be sealed; also where the data is no whole number of sectors,
    /// or `tags` does not have [`SectorCipher::tag_size`] bytes for each.
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

    /// Checks a run of sectors against their tags and decrypts them. A sector that fails is not
    /// decrypted; the others may then be unchanged, decrypted, or wiped.
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

    /// Encrypts a run of sectors from memory that another process may change meanwhile, and writes
    /// their tags. Each byte is read once. By default the sectors are copied, and encrypted while
    /// they are in the cache.
    ///
    /// # Errors
    /// As [`SectorCipher::seal`].
    ///
    /// # Panics
    /// When source and data differ in length.
    fn seal_from(
        &self,
        first: u64,
        source: SharedSource<'_>,
        data: &mut [u8],
        tags: &mut [u8],
    ) -> std::result::Result<(), BadSector> {
        assert_eq!(source.len(), data.len(), "source and data differ in length");
        let pieces = SharedPieces::new(self.sector_size(), data.len(), tags.len(), self.tag_size())?;
        let mut rest = source;
        for (nth, (range, tuples)) in pieces.enumerate() {
            let (piece, place) = (rest.split_at(range.len()), first.wrapping_add(range.start as u64 >> 9));
            rest = piece.1;
            let bytes = &mut data[range];
            piece.0.copy_to(bytes);
            self.seal(place, bytes.into(), &mut tags[tuples]).map_err(|bad| pieces.bad(nth, bad))?;
        }
        Ok(())
    }

    /// Checks a run of sectors against their tags and decrypts them into memory that another
    /// process may read and change meanwhile. The contents of `data` are unspecified afterwards. No
    /// byte of a sector that fails its check reaches the other process.
    ///
    /// # Errors
    /// As [`SectorCipher::open`].
    ///
    /// # Panics
    /// When data and destination differ in length.
    fn open_to(
        &self,
        first: u64,
        data: &mut [u8],
        destination: SharedDestination<'_>,
        tags: &[u8],
    ) -> std::result::Result<(), BadSector> {
        assert_eq!(destination.len(), data.len(), "data and destination differ in length");
        let pieces = SharedPieces::new(self.sector_size(), data.len(), tags.len(), self.tag_size())?;
        let mut rest = destination;
        for (nth, (range, tuples)) in pieces.enumerate() {
            let (piece, place) = (rest.split_at(range.len()), first.wrapping_add(range.start as u64 >> 9));
            rest = piece.1;
            let bytes = &mut data[range];
            self.open(place, bytes.into(), &tags[tuples]).map_err(|bad| pieces.bad(nth, bad))?;
            piece.0.copy_from(bytes);
        }
        Ok(())
    }
}

/// Pieces of a run that is copied before its encryption, or after its decryption: the ranges of
/// their bytes and of their tags.
#[derive(Clone, Copy)]
struct SharedPieces {
    /// Bytes of a piece, which has whole sectors.
    most: usize,
    sector: usize,
    tag: usize,
    at: usize,
    len: usize,
}

impl SharedPieces {
    /// Enough sectors for the kernels that take the most at once, and far less than a second-level
    /// cache.
    const MOST: usize = 128 << 10;

    /// The pieces of `len` bytes, with `tags` bytes of tags, `tag` for each sector. Refuses bytes
    /// that are no whole sectors, and another number of tags.
    fn new(size: SectorSize, len: usize, tags: usize, tag: usize) -> std::result::Result<Self, BadSector> {
        let sector = size.bytes();
        let count = len / sector;
        if !len.is_multiple_of(sector) || count.checked_mul(tag) != Some(tags) {
            return Err(BadSector(count));
        }
        Ok(Self { most: Self::MOST, sector, tag, at: 0, len })
    }

    /// The sector of the run that is `bad` in the piece `nth`.
    fn bad(&self, nth: usize, bad: BadSector) -> BadSector {
        BadSector(nth * (self.most / self.sector) + bad.0)
    }
}

impl Iterator for SharedPieces {
    type Item = (std::ops::Range<usize>, std::ops::Range<usize>);

    fn next(&mut self) -> Option<Self::Item> {
        let range = self.at..self.len.min(self.at + self.most);
        self.at = range.end;
        let tag = |at: usize| at / self.sector * self.tag;
        (!range.is_empty()).then(|| (range.clone(), tag(range.start)..tag(range.end)))
    }
}

/// A sector that a cipher refuses, by its position in the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadSector(pub usize);

/// Checks the shapes for a mode without tags.
#[inline]
pub(crate) fn whole(size: SectorSize, len: usize, tags: &[u8]) -> std::result::Result<(), BadSector> {
    // The sector size is a power of two.
    let rest = len & (size.bytes() - 1);
    if rest == 0 && tags.is_empty() { Ok(()) } else { Err(BadSector(len / size.bytes())) }
}
