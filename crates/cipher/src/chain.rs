//! A chain of ciphers over the same sectors: VeraCrypt's cascades, which dm-crypt makes of devices
//! upon devices.
//!
//! C = E_n(.. E_2(E_1(P))), where each cipher has separate keys and tweaks for the same sector
//! number. A request goes through the chain in pieces that stay in the nearest cache: the first
//! cipher writes a piece to its destination, the others work in place.

use std::sync::Arc;

use cipher::inout::InOutBuf;

use crate::{SectorCipher, SectorSize};

/// Bytes of a piece: less than half of a first-level cache, and enough for the kernels that take
/// the most sectors at once.
const PIECE: usize = 16 << 10;

/// Ciphers in the order of encryption; at least one.
pub(crate) struct Chain {
    pub(crate) ciphers: Vec<Arc<dyn SectorCipher>>,
    pub(crate) size: SectorSize,
}

impl Chain {
    /// Calls `apply` with each piece of a request and each cipher of `order` in turn.
    fn pieces<'a>(
        &self,
        first: u64,
        data: InOutBuf<'_, '_, u8>,
        order: impl Iterator<Item = &'a Arc<dyn SectorCipher>> + Clone,
        apply: impl Fn(&dyn SectorCipher, u64, InOutBuf<'_, '_, u8>),
    ) {
        let bytes = self.size.bytes();
        assert!(data.len().is_multiple_of(bytes), "{} bytes are no whole sectors", data.len());
        let most = PIECE.max(bytes);
        let (mut number, mut rest) = (first, data);
        while !rest.is_empty() {
            let (mut piece, len);
            (piece, rest) = {
                len = most.min(rest.len());
                rest.split_at(len)
            };
            let mut ciphers = order.clone();
            if let Some(cipher) = ciphers.next() {
                apply(&**cipher, number, piece.reborrow());
            }
            let out = piece.get_out();
            ciphers.for_each(|cipher| apply(&**cipher, number, InOutBuf::from(&mut *out)));
            number = number.wrapping_add(len as u64 >> 9);
        }
    }
}

impl SectorCipher for Chain {
    fn sector_size(&self) -> SectorSize {
        self.size
    }

    fn encrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>) {
        self.pieces(first, data, self.ciphers.iter(), |cipher, number, piece| cipher.encrypt(number, piece));
    }

    fn decrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>) {
        let order = self.ciphers.iter().rev();
        self.pieces(first, data, order, |cipher, number, piece| cipher.decrypt(number, piece));
    }

    fn is_null(&self) -> bool {
        self.ciphers.iter().all(|cipher| cipher.is_null())
    }

    fn is_local(&self) -> bool {
        self.ciphers.iter().all(|cipher| cipher.is_local())
    }
}
