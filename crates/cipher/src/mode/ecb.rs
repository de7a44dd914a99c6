//! `ecb`: each block independently (NIST SP 800-38A, 6.1), without an IV. Equal blocks have equal
//! ciphertexts.

use cipher::inout::InOutBuf;

use super::ChainCipher;
use crate::block::{BlockCipher, blocks};

pub(crate) struct Ecb<C> {
    pub(crate) data: C,
}

impl<C: BlockCipher<B>, const B: usize> ChainCipher<B> for Ecb<C> {
    fn encrypt(&self, _ivs: &mut [[u8; B]], data: InOutBuf<'_, '_, u8>) {
        self.data.encrypt(blocks(data).into_out_with_copied_in());
    }

    fn decrypt(&self, _ivs: &mut [[u8; B]], data: InOutBuf<'_, '_, u8>) {
        self.data.decrypt(blocks(data).into_out_with_copied_in());
    }

    fn is_local(&self) -> bool {
        true
    }
}
