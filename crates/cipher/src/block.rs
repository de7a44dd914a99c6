//! Block ciphers, from libraries, behind the one trait that the chain modes use.

use cipher::consts::U16;
use cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt};

/// One 16-byte block.
pub(crate) type Block = Array<u8, U16>;

/// A keyed 128-bit block cipher that takes many blocks a call.
pub(crate) trait BlockCipher:
    BlockCipherEncrypt<BlockSize = U16> + BlockCipherDecrypt<BlockSize = U16> + Send + Sync + 'static
{
}

impl<C> BlockCipher for C where
    C: BlockCipherEncrypt<BlockSize = U16> + BlockCipherDecrypt<BlockSize = U16> + Send + Sync + 'static
{
}
