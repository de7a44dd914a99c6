//! Block ciphers behind the one trait that the chain modes use.

use cipher::array::{Array, ArraySize, AssocArraySize};
use cipher::inout::InOutBuf;
use cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};

use crate::kernel::{self, AesKey, Cast6Key, SerpentKey, Sliced, TwofishKey};
use crate::{Error, ErrorKind, Locked, Result};

/// A keyed cipher of `B`-byte blocks, which encrypts many independent blocks in a call.
pub(crate) trait BlockCipher<const B: usize>: Send + Sync {
    /// Encrypts each block.
    fn encrypt(&self, blocks: &mut [[u8; B]]);

    /// Encrypts each block; the caller wipes the stack.
    fn encrypt_untidied(&self, blocks: &mut [[u8; B]]) {
        self.encrypt(blocks);
    }

    /// Decrypts each block.
    fn decrypt(&self, blocks: &mut [[u8; B]]);
}

/// Any block cipher, its key on locked pages.
pub(crate) type AnyCipher<const B: usize> = Box<dyn BlockCipher<B>>;

impl<const B: usize> BlockCipher<B> for AnyCipher<B> {
    fn encrypt(&self, blocks: &mut [[u8; B]]) {
        (**self).encrypt(blocks);
    }

    fn encrypt_untidied(&self, blocks: &mut [[u8; B]]) {
        (**self).encrypt_untidied(blocks);
    }

    fn decrypt(&self, blocks: &mut [[u8; B]]) {
        (**self).decrypt(blocks);
    }
}

impl BlockCipher<16> for AesKey {
    fn encrypt(&self, blocks: &mut [[u8; 16]]) {
        self.encrypt_blocks(blocks);
    }

    fn encrypt_untidied(&self, blocks: &mut [[u8; 16]]) {
        self.encrypt_blocks_untidied(blocks);
    }

    fn decrypt(&self, blocks: &mut [[u8; 16]]) {
        self.decrypt_blocks(blocks);
    }
}

impl BlockCipher<16> for SerpentKey {
    fn encrypt(&self, blocks: &mut [[u8; 16]]) {
        self.encrypt_blocks(blocks);
    }

    fn decrypt(&self, blocks: &mut [[u8; 16]]) {
        self.decrypt_blocks(blocks);
    }
}

impl BlockCipher<16> for TwofishKey {
    fn encrypt(&self, blocks: &mut [[u8; 16]]) {
        self.encrypt_blocks(blocks);
    }

    fn decrypt(&self, blocks: &mut [[u8; 16]]) {
        self.decrypt_blocks(blocks);
    }
}

impl BlockCipher<16> for Cast6Key {
    fn encrypt(&self, blocks: &mut [[u8; 16]]) {
        self.encrypt_blocks(blocks);
    }

    fn decrypt(&self, blocks: &mut [[u8; 16]]) {
        self.decrypt_blocks(blocks);
    }
}

impl<C: kernel::SlicedCipher> BlockCipher<16> for Sliced<C> {
    fn encrypt(&self, blocks: &mut [[u8; 16]]) {
        self.encrypt_blocks(blocks);
    }

    fn decrypt(&self, blocks: &mut [[u8; 16]]) {
        self.decrypt_blocks(blocks);
    }
}

/// A cipher whose kernel takes large groups of blocks only, with a library for the rest.
pub(crate) struct WideFirst<C: kernel::SlicedCipher> {
    pub(crate) wide: Sliced<C>,
    pub(crate) narrow: AnyCipher<16>,
}

impl<C: kernel::SlicedCipher> BlockCipher<16> for WideFirst<C> {
    fn encrypt(&self, blocks: &mut [[u8; 16]]) {
        let (groups, left) = blocks.split_at_mut(blocks.len() / Sliced::<C>::WIDEST * Sliced::<C>::WIDEST);
        self.wide.encrypt_blocks(groups);
        self.narrow.encrypt(left);
    }

    fn decrypt(&self, blocks: &mut [[u8; 16]]) {
        let (groups, left) = blocks.split_at_mut(blocks.len() / Sliced::<C>::WIDEST * Sliced::<C>::WIDEST);
        self.wide.decrypt_blocks(groups);
        self.narrow.decrypt(left);
    }
}

/// A block cipher of a library.
struct Library<C>(Locked<C>);

/// Keys a cipher of a library.
///
/// Returns `KeySize` when the key does not fit; `Memory` when its round keys cannot be placed on
/// locked pages.
pub(crate) fn library<C, const B: usize>(key: &[u8]) -> Result<AnyCipher<B>>
where
    C: KeyInit + BlockCipherEncrypt + BlockCipherDecrypt + Send + Sync + 'static,
    [u8; B]: AssocArraySize<Size = C::BlockSize>,
    C::BlockSize: ArraySize<ArrayType<u8> = [u8; B]>,
{
    let cipher = C::new_from_slice(key)
        .map_err(|e| Error::new(ErrorKind::KeySize, format!("{} bytes of key", key.len())).with_source(e))?;
    Ok(Box::new(Library(Locked::new(cipher)?)))
}

impl<C, const B: usize> BlockCipher<B> for Library<C>
where
    C: BlockCipherEncrypt + BlockCipherDecrypt + Send + Sync,
    C::BlockSize: ArraySize<ArrayType<u8> = [u8; B]>,
{
    fn encrypt(&self, blocks: &mut [[u8; B]]) {
        self.0.encrypt_blocks(Array::cast_slice_from_core_mut(blocks));
    }

    fn decrypt(&self, blocks: &mut [[u8; B]]) {
        self.0.decrypt_blocks(Array::cast_slice_from_core_mut(blocks));
    }
}

/// The data as blocks.
///
/// # Panics
/// When the data is not a whole number of blocks.
pub(crate) fn blocks<'i, 'o, const B: usize>(data: InOutBuf<'i, 'o, u8>) -> InOutBuf<'i, 'o, [u8; B]> {
    assert!(data.len().is_multiple_of(B), "{} bytes are no blocks of {B}", data.len());
    let count = data.len() / B;
    let (src, dst) = data.into_raw();
    // SAFETY: `count` arrays span the same bytes, arrays of bytes need no alignment, and the
    // lifetimes are kept.
    unsafe { InOutBuf::from_raw(src.cast(), dst.cast(), count) }
}

/// a ^ b.
pub(crate) fn xor<const B: usize>(a: &[u8; B], b: &[u8; B]) -> [u8; B] {
    let mut sum = *a;
    for (sum, b) in sum.iter_mut().zip(b) {
        *sum ^= b;
    }
    sum
}
