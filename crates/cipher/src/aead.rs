//! Authenticated modes, which detect changed sectors.
//!
//! ```text
//!   sealed     requests: IVs made or stored, tuples laid out, runs of sectors to the mode
//!     |
//!     +-- aes_gcm   AES-GCM on the vector kernels
//!     +-- each      a sector a call: gcm over any cipher, chacha, aws_lc; and their nonces
//!     +-- ccm       CBC-MAC of many sectors side by side; ccm and gcm share counter mode (counter)
//!     +-- aegis     AEGIS-128: many sectors, one in each lane
//!     +-- authenc   a chain mode, then a MAC over its ciphertext
//!   stored     sectors without authentication, with stored IVs or empty tuples
//! ```
//!
//! The authenticated bytes of each sector are le64(cc - IV offset) || IV, where cc counts 512 bytes
//! whatever the sector's size.

mod aegis;
mod aes_gcm;
mod authenc;
#[cfg(target_arch = "x86_64")]
mod aws_lc;
mod ccm;
mod chacha;
mod counter;
mod each;
mod gcm;
mod sealed;
mod stored;

pub(crate) use aegis::Aegis;
pub(crate) use aes_gcm::AesGcm;
pub(crate) use authenc::Authenc;
#[cfg(target_arch = "x86_64")]
pub(crate) use aws_lc::AwsLc;
pub(crate) use ccm::Ccm;
pub(crate) use chacha::ChaChaPoly;
pub(crate) use each::{EachSector, Nonces, SectorAead};
pub(crate) use gcm::Gcm;
pub(crate) use sealed::{TupleCipher, TupleLayout};
pub(crate) use stored::{StoredIv, UnusedTuples};

use cipher::inout::InOutBuf;
use subtle::ConstantTimeEq;
use zeroize::Zeroize;

use crate::sector::Run;
use crate::{BadSector, SectorSize};

/// The most sectors in one call of a mode.
pub(crate) const MANY: usize = 32;

/// An authenticated mode with its keys; IVs are `W` bytes.
///
/// Sectors have one size and are as many as there are IVs: at least one, at most [`MANY`]. The run
/// numbers them as they are authenticated. The mode may overwrite the IVs.
pub(crate) trait Aead<const W: usize>: Send + Sync {
    /// Encrypts sectors and writes their tags.
    fn seal(&self, run: Run, ivs: &mut [[u8; W]], data: InOutBuf<'_, '_, u8>, tags: &mut TagsMut<'_>);

    /// Checks sectors against their tags and decrypts them. A sector that fails does not stay
    /// decrypted.
    fn open(
        &self,
        run: Run,
        ivs: &mut [[u8; W]],
        data: InOutBuf<'_, '_, u8>,
        tags: Tags<'_>,
    ) -> Result<(), BadSector>;
}

/// Any authenticated mode.
pub(crate) type AnyAead<const W: usize> = Box<dyn Aead<W>>;

/// The tags of a run, each at the start of its sector's tuple.
#[derive(Clone, Copy)]
pub(crate) struct Tags<'a> {
    tuples: &'a [u8],
    tuple: usize,
    tag: usize,
}

impl<'a> Tags<'a> {
    fn get(self, nth: usize) -> &'a [u8] {
        &self.tuples[nth * self.tuple..][..self.tag]
    }

    /// True when the sector's tag is the start of `sum`; the time does not depend on their
    /// contents.
    fn agrees(self, nth: usize, sum: &[u8]) -> bool {
        self.get(nth).ct_eq(&sum[..self.tag]).into()
    }
}

/// [`Tags`] for writing.
pub(crate) struct TagsMut<'a> {
    tuples: &'a mut [u8],
    tuple: usize,
    tag: usize,
}

impl TagsMut<'_> {
    fn get(&mut self, nth: usize) -> &mut [u8] {
        &mut self.tuples[nth * self.tuple..][..self.tag]
    }

    /// Writes the tags of the first sectors: each is the start of its sum.
    fn set<const N: usize>(&mut self, sums: &[[u8; N]]) {
        let tag = self.tag;
        for (nth, sum) in sums.iter().enumerate() {
            self.get(nth).copy_from_slice(&sum[..tag]);
        }
    }
}

/// The most authenticated bytes of a sector: its number and the widest IV.
pub(crate) const MOST_ASSOCIATED: usize = 8 + 32;

/// The authenticated bytes of a sector.
#[derive(Clone, Copy)]
pub(crate) struct Associated([u8; MOST_ASSOCIATED]);

impl Associated {
    pub(crate) const EMPTY: Self = Self([0; MOST_ASSOCIATED]);

    /// The authenticated bytes of the run's sector `nth`.
    #[inline]
    fn of<const W: usize>(run: Run, nth: usize, iv: &[u8; W]) -> Self {
        let mut bytes = [0; MOST_ASSOCIATED];
        bytes[..8].copy_from_slice(&run.number(nth).to_le_bytes());
        bytes[8..8 + W].copy_from_slice(iv);
        Self(bytes)
    }

    /// The authenticated bytes of a salt of at most 16 bytes and a sector's number.
    pub(crate) fn salted(salt: &[u8], number: u64) -> Self {
        let mut bytes = [0; MOST_ASSOCIATED];
        bytes[..salt.len()].copy_from_slice(salt);
        bytes[salt.len()..salt.len() + 8].copy_from_slice(&number.to_le_bytes());
        Self(bytes)
    }

    #[cfg(test)]
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        let mut all = Self::EMPTY;
        all.0[..bytes.len()].copy_from_slice(bytes);
        all
    }

    /// The first `len` bytes; the bytes behind them are zero.
    pub(crate) fn first(&self, len: usize) -> &[u8] {
        &self.0[..len]
    }
}

/// The sectors of a run, one by one.
fn sectors<'i, 'o>(data: InOutBuf<'i, 'o, u8>, count: usize) -> impl Iterator<Item = InOutBuf<'i, 'o, u8>> {
    let bytes = data.len() / count;
    let mut rest = Some(data);
    (0..count).filter_map(move |_| {
        let (sector, behind) = rest.take()?.split_at(bytes);
        rest = Some(behind);
        Some(sector)
    })
}

/// Wipes the sectors whose tags are not the starts of their sums, and names the first. For modes
/// that decrypt before the check.
fn wipe_wrong(out: &mut [u8], tags: Tags<'_>, sums: &[[u8; 16]]) -> Result<(), BadSector> {
    let (bytes, mut opened) = (out.len() / sums.len(), Ok(()));
    for (nth, (sector, sum)) in out.chunks_exact_mut(bytes).zip(sums).enumerate() {
        if !tags.agrees(nth, sum) {
            sector.zeroize();
            opened = opened.and(Err(BadSector(nth)));
        }
    }
    opened
}

/// The number of sectors of a request, by its bytes and those of its tuples. Refuses a length that
/// is no whole number of sectors, or another number of tuples.
fn count(size: SectorSize, tuple: usize, data: usize, tuples: usize) -> Result<usize, BadSector> {
    let count = data / size.bytes();
    let fits = data.is_multiple_of(size.bytes()) && count.checked_mul(tuple) == Some(tuples);
    if fits { Ok(count) } else { Err(BadSector(count.min(tuples / tuple))) }
}
