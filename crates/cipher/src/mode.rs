//! Chain modes: one file each. A mode takes sectors and their IVs; [`ChainedSectors`] joins it to
//! an IV generator and makes a [`SectorCipher`](crate::SectorCipher) of the two.
//!
//! ```text
//!   block modes    ecb cbc pcbc cts ctr        any block cipher; xts: of 16-byte blocks; lrw
//!   wide modes     adiantum (nhpoly1305) hctr2 a sector is one block
//!   stream         chacha20 xchacha20 xchacha12 arc4
//!   requests       sectors (IVs for a run together), many_keys (a key for each sector)
//! ```

mod adiantum;
mod cbc;
mod ctr;
mod cts;
mod ecb;
mod hctr2;
mod lrw;
mod many_keys;
mod nhpoly1305;
mod null;
mod pcbc;
mod poly1305;
mod sectors;
mod stream;
mod xts;

pub(crate) use adiantum::Adiantum;
pub(crate) use cbc::{AesCbc, Cbc};
pub(crate) use ctr::Ctr;
pub(crate) use cts::Cts;
pub(crate) use ecb::Ecb;
pub(crate) use hctr2::{AesHctr2, Hctr2};
pub(crate) use lrw::Lrw;
pub(crate) use many_keys::{ManyKeys, RotatingModes};
pub(crate) use nhpoly1305::{NH_PASSES, NH_PIECE, NhKey};
pub(crate) use null::{Null, NullBlock, OneByteBlocks};
pub(crate) use pcbc::Pcbc;
pub(crate) use sectors::{ChainedSectors, SectorSplit, TreatedSectors};
pub(crate) use stream::{Arc4, ChaCha, ChaCha12Rounds, ChaCha20Rounds};
pub(crate) use xts::{AesXts, EncryptedTweaks, Xts};

use cipher::inout::InOutBuf;

use crate::kernel::AesKey;
use crate::{CpuPath, SharedDestination, SharedSource};

/// Blocks that go through a library's block cipher in one call.
pub(crate) const GROUP: usize = 64;

/// A chain mode with its keys; IVs are `W` bytes.
pub(crate) trait ChainCipher<const W: usize>: Send + Sync {
    /// Encrypts sectors of one size, as many as IVs and at least one. The mode may overwrite the
    /// IVs.
    fn encrypt(&self, ivs: &mut [[u8; W]], data: InOutBuf<'_, '_, u8>);

    /// Decrypts sectors of one size, as many as IVs and at least one. The mode may overwrite the
    /// IVs.
    fn decrypt(&self, ivs: &mut [[u8; W]], data: InOutBuf<'_, '_, u8>);

    /// As [`encrypt`](ChainCipher::encrypt), from memory that another process may change meanwhile:
    /// each byte is read once.
    ///
    /// # Panics
    /// When source and data are not as long as each other.
    fn encrypt_from(&self, ivs: &mut [[u8; W]], source: SharedSource<'_>, data: &mut [u8]) {
        source.copy_to(data);
        self.encrypt(ivs, data.into());
    }

    /// As [`decrypt`](ChainCipher::decrypt), into memory that another process may read and change
    /// meanwhile. The contents of `data` are unspecified afterwards.
    ///
    /// # Panics
    /// When data and destination are not as long as each other.
    fn decrypt_to(&self, ivs: &mut [[u8; W]], data: &mut [u8], destination: SharedDestination<'_>) {
        self.decrypt(ivs, (&mut *data).into());
        destination.copy_from(data);
    }

    /// As [`SectorCipher::is_local`](crate::SectorCipher::is_local).
    fn is_local(&self) -> bool {
        false
    }

    /// As [`SectorCipher::cpu_paths`](crate::SectorCipher::cpu_paths).
    fn cpu_paths(&self) -> Option<[CpuPath; 2]> {
        None
    }

    /// The key of a mode that is AES-CBC on the vector kernels.
    fn aes_cbc(&self) -> Option<&AesKey> {
        None
    }
}

/// Any chain mode.
pub(crate) type AnyMode<const W: usize> = Box<dyn ChainCipher<W>>;

impl<const W: usize> ChainCipher<W> for AnyMode<W> {
    fn encrypt(&self, ivs: &mut [[u8; W]], data: InOutBuf<'_, '_, u8>) {
        (**self).encrypt(ivs, data);
    }

    fn decrypt(&self, ivs: &mut [[u8; W]], data: InOutBuf<'_, '_, u8>) {
        (**self).decrypt(ivs, data);
    }

    fn encrypt_from(&self, ivs: &mut [[u8; W]], source: SharedSource<'_>, data: &mut [u8]) {
        (**self).encrypt_from(ivs, source, data);
    }

    fn decrypt_to(&self, ivs: &mut [[u8; W]], data: &mut [u8], destination: SharedDestination<'_>) {
        (**self).decrypt_to(ivs, data, destination);
    }

    fn is_local(&self) -> bool {
        (**self).is_local()
    }

    fn cpu_paths(&self) -> Option<[CpuPath; 2]> {
        (**self).cpu_paths()
    }

    fn aes_cbc(&self) -> Option<&AesKey> {
        (**self).aes_cbc()
    }
}
