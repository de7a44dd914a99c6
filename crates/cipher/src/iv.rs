//! IV generators: one file each, its formula in its documentation.
//!
//! ```text
//!   IvGenerator   plain plain64 plain64be null benbi eboiv encrypted(essiv)     IVs from S
//!                 extents                                                      from extents
//!   Treatment     lmk tcw elephant                                             change the data
//! ```
//!
//! In the formulas cc is dm-crypt's sector number, and S the number that a generator uses: cc
//! itself, or with `iv_large_sectors` cc >> log2(sector size / 512) ([`Run::number`]). All
//! little-endian values are zero-padded.

mod benbi;
mod eboiv;
mod elephant;
mod encrypted;
mod extents;
mod lmk;
mod null;
mod plain;
mod plain64;
mod plain64be;
mod tcw;

pub(crate) use benbi::Benbi;
pub(crate) use eboiv::Eboiv;
pub(crate) use elephant::Elephant;
pub(crate) use encrypted::{EncryptedIv, EncryptedNumbers};
pub(crate) use extents::ExtentIv;
pub(crate) use lmk::Lmk;
pub(crate) use null::NullIv;
pub(crate) use plain::Plain;
pub(crate) use plain64::Plain64;
pub(crate) use plain64be::Plain64Be;
pub(crate) use tcw::Tcw;

use cipher::inout::InOutBuf;

use crate::mode::{ChainCipher, RotatingModes};
use crate::sector::Run;

/// Makes IVs of `W` bytes, all those of a run of sectors in one call.
pub(crate) trait IvGenerator<const W: usize>: Send + Sync {
    /// Overwrites `ivs` with the IVs of the run's first `ivs.len()` sectors.
    fn fill(&self, run: Run, ivs: &mut [[u8; W]]);
}

impl<const W: usize> IvGenerator<W> for Box<dyn IvGenerator<W>> {
    fn fill(&self, run: Run, ivs: &mut [[u8; W]]) {
        (**self).fill(run, ivs);
    }
}

/// An IV generator of dm-crypt that also changes the data: it runs the mode.
///
/// `ivs` has room for an IV for each sector of `data`, and their number is the number of sectors.
pub(crate) trait Treatment<const W: usize>: Send + Sync {
    fn encrypt(&self, run: Run, ivs: &mut [[u8; W]], mode: &dyn ChainCipher<W>, data: InOutBuf<'_, '_, u8>);

    fn decrypt(&self, run: Run, ivs: &mut [[u8; W]], mode: &dyn ChainCipher<W>, data: InOutBuf<'_, '_, u8>);

    /// Encrypts the beginning of a request, as far as that is faster together than in runs, and
    /// returns the rest.
    fn encrypt_together<'i, 'o>(
        &self,
        _modes: &RotatingModes<'_, W>,
        data: InOutBuf<'i, 'o, u8>,
    ) -> InOutBuf<'i, 'o, u8> {
        data
    }

    /// Decrypts the beginning of a request, as [`encrypt_together`](Self::encrypt_together).
    fn decrypt_together<'i, 'o>(
        &self,
        _modes: &RotatingModes<'_, W>,
        data: InOutBuf<'i, 'o, u8>,
    ) -> InOutBuf<'i, 'o, u8> {
        data
    }
}

fn sectors(data: &mut [u8], bytes: usize) -> impl Iterator<Item = &mut [u8]> {
    data.chunks_exact_mut(bytes)
}
