//! `cts(cbc(..))`: CBC with ciphertext stealing (CBC-CS3: NIST SP 800-38A addendum; RFC 3962).
//! Sectors are whole blocks, so the mode only exchanges the last two.

use cipher::inout::InOutBuf;

use super::{Cbc, ChainCipher};
use crate::block::BlockCipher;

pub(crate) struct Cts<C> {
    pub(crate) cbc: Cbc<C>,
}

fn exchange<const B: usize>(data: &mut [u8], sectors: usize) {
    let bytes = data.len() / sectors;
    if bytes < 2 * B {
        return;
    }
    for sector in data.chunks_exact_mut(bytes) {
        let (front, last) = sector.split_at_mut(bytes - B);
        front[bytes - 2 * B..].swap_with_slice(last);
    }
}

impl<C: BlockCipher<B>, const B: usize> ChainCipher<B> for Cts<C> {
    fn encrypt(&self, ivs: &mut [[u8; B]], mut data: InOutBuf<'_, '_, u8>) {
        self.cbc.encrypt(ivs, data.reborrow());
        exchange::<B>(data.get_out(), ivs.len());
    }

    fn decrypt(&self, ivs: &mut [[u8; B]], data: InOutBuf<'_, '_, u8>) {
        let out = data.into_out_with_copied_in();
        exchange::<B>(out, ivs.len());
        self.cbc.decrypt(ivs, out.into());
    }
}
