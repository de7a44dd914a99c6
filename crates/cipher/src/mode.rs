//! Chain modes: one file each. A mode takes sectors and their IVs; [`Sectors`] joins it to an IV generator and makes
//! a [`SectorCipher`](crate::SectorCipher) of the two.

mod cbc;
mod null;
mod sectors;
mod xts;

pub(crate) use cbc::{AesCbc, Cbc};
pub(crate) use null::Null;
pub(crate) use sectors::Sectors;
pub(crate) use xts::{AesXts, Xts};

use cipher::inout::InOutBuf;

/// Blocks that go through a library's block cipher in one call.
const GROUP: usize = 64;

/// A chain mode with its keys; IVs are `W` bytes.
pub(crate) trait Mode<const W: usize>: Send + Sync {
    /// Encrypts sectors of one size, as many as there are IVs. The IVs are the mode's to spoil.
    fn encrypt(&self, ivs: &mut [[u8; W]], data: InOutBuf<'_, '_, u8>);

    /// Decrypts sectors of one size, as many as there are IVs. The IVs are the mode's to spoil.
    fn decrypt(&self, ivs: &mut [[u8; W]], data: InOutBuf<'_, '_, u8>);
}
