//! `cipher_null`: ciphertext = plaintext. For measuring the path without crypto; it protects
//! nothing.
//!
//! As a block cipher it has blocks of one byte. A chain mode over it still chains: with `cbc`, C_j
//! = P_j ^ C_(j-1) with the first byte of the IV before it. A bare `cipher_null` means
//! `cipher_null-cbc-plain`.

use cipher::inout::InOutBuf;

use super::{AnyMode, ChainCipher};
use crate::block::BlockCipher;
use crate::sector::whole;
use crate::{BadSector, SectorCipher, SectorSize, SharedDestination, SharedSource};

pub(crate) struct Null {
    pub(crate) sector_size: SectorSize,
}

impl SectorCipher for Null {
    fn sector_size(&self) -> SectorSize {
        self.sector_size
    }

    fn encrypt(&self, _first: u64, data: InOutBuf<'_, '_, u8>) {
        let bytes = self.sector_size.bytes();
        assert!(data.len().is_multiple_of(bytes), "{} bytes are no whole sectors", data.len());
        let _ = data.into_out_with_copied_in();
    }

    fn decrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>) {
        self.encrypt(first, data);
    }

    fn is_null(&self) -> bool {
        true
    }

    fn is_local(&self) -> bool {
        true
    }

    fn seal_from(
        &self,
        _first: u64,
        source: SharedSource<'_>,
        data: &mut [u8],
        tags: &mut [u8],
    ) -> Result<(), BadSector> {
        whole(self.sector_size, data.len(), tags)?;
        source.copy_to(data);
        Ok(())
    }

    fn open_to(
        &self,
        _first: u64,
        data: &mut [u8],
        destination: SharedDestination<'_>,
        tags: &[u8],
    ) -> Result<(), BadSector> {
        whole(self.sector_size, data.len(), tags)?;
        destination.copy_from(data);
        Ok(())
    }
}

/// The identity, as a block cipher.
pub(crate) struct NullBlock;

impl BlockCipher<1> for NullBlock {
    fn encrypt(&self, _blocks: &mut [[u8; 1]]) {}

    fn decrypt(&self, _blocks: &mut [[u8; 1]]) {}
}

/// A mode over blocks of one byte, whose IV is the first of dm-crypt's 8 bytes, the least that it
/// makes.
pub(crate) struct OneByteBlocks(pub(crate) AnyMode<1>);

impl ChainCipher<8> for OneByteBlocks {
    fn encrypt(&self, ivs: &mut [[u8; 8]], data: InOutBuf<'_, '_, u8>) {
        self.0.encrypt(&mut firsts(ivs), data);
    }

    fn decrypt(&self, ivs: &mut [[u8; 8]], data: InOutBuf<'_, '_, u8>) {
        self.0.decrypt(&mut firsts(ivs), data);
    }
}

fn firsts(ivs: &[[u8; 8]]) -> Vec<[u8; 1]> {
    ivs.iter().map(|iv| [iv[0]]).collect()
}
