//! `ctr`: C_j = P_j ^ E(IV + j), the sum big-endian over the whole block (NIST SP 800-38A, 6.5).
//!
//! Sectors whose counters overlap share their key stream: with `plain64` sector S and block j meet where
//! be(le64(S)) + j is the same. dm-crypt takes it; it protects little.

use cipher::inout::InOutBuf;

use super::{GROUP, Mode};
use crate::block::{BlockCipher, blocks, xor};

pub(crate) struct Ctr<C> {
    pub(crate) data: C,
}

/// `block` + 1, big-endian, wrapping.
fn increment<const B: usize>(block: &mut [u8; B]) {
    for byte in block.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            break;
        }
    }
}

impl<C: BlockCipher<B>, const B: usize> Mode<B> for Ctr<C> {
    fn encrypt(&self, ivs: &mut [[u8; B]], data: InOutBuf<'_, '_, u8>) {
        let mut rest = blocks::<B>(data);
        let per_sector = rest.len() / ivs.len();
        let mut stream = [[0; B]; GROUP];
        for counter in ivs {
            let mut sector;
            (sector, rest) = rest.split_at(per_sector);
            while !sector.is_empty() {
                let n = GROUP.min(sector.len());
                let group;
                (group, sector) = sector.split_at(n);
                for block in &mut stream[..n] {
                    *block = *counter;
                    increment(counter);
                }
                self.data.encrypt(&mut stream[..n]);
                for (mut block, stream) in group.into_iter().zip(&stream) {
                    let sum = xor(block.get_in(), stream);
                    *block.get_out() = sum;
                }
            }
        }
    }

    fn decrypt(&self, ivs: &mut [[u8; B]], data: InOutBuf<'_, '_, u8>) {
        self.encrypt(ivs, data);
    }

    fn is_local(&self) -> bool {
        true
    }
}
