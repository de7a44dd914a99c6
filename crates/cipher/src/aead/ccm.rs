//! `rfc4309(ccm(..))`: counter mode and CBC-MAC (RFC 3610, RFC 4309), over any block cipher of 16
//! bytes.
//!
//! Nonce N = salt, the last 3 bytes of the key, || IV. B0 = flags || N || be32(bytes); X =
//! CBC-MAC(B0 || be16(8) || le64(number) padded || P); block i of the stream is E(3 || N ||
//! be32(i)). Tag = X ^ block 0, cut; data begin with block 1. CBC-MAC is serial, so the MACs of
//! sectors advance side by side.

use cipher::inout::InOutBuf;

use super::counter::add_stream;
use super::{Aead, MANY, Tags, TagsMut, sectors, wipe_wrong};
use crate::block::{AnyCipher, BlockCipher, xor};
use crate::mac::chain;
use crate::sector::Run;
use crate::{BadSector, Key, Result};

pub(crate) struct Ccm {
    cipher: AnyCipher<16>,
    salt: Key,
    tag: usize,
}

impl Ccm {
    /// Makes the mode with tags of an even number of bytes, 4 to 16. Returns `Memory` when the salt
    /// cannot be placed on locked pages.
    pub(crate) fn new(cipher: AnyCipher<16>, salt: &[u8], tag: usize) -> Result<Self> {
        Ok(Self { cipher, salt: Key::new(salt)?, tag })
    }

    /// The block flags || N || be32(number).
    fn block(&self, flags: u8, iv: &[u8; 8], number: u32) -> [u8; 16] {
        let mut block = [0; 16];
        block[0] = flags;
        block[1..4].copy_from_slice(self.salt.as_bytes());
        block[4..12].copy_from_slice(iv);
        block[12..].copy_from_slice(&number.to_be_bytes());
        block
    }

    /// The whole tags of sectors of plaintext.
    fn sums(&self, run: Run, ivs: &[[u8; 8]], plaintext: &[u8]) -> [[u8; 16]; MANY] {
        let (bytes, mut sums) = (plaintext.len() / ivs.len(), [[0; 16]; MANY]);
        let states = &mut sums[..ivs.len()];
        // The flags for associated data, and for 4 bytes of length.
        let flags = u8::try_from(0x40 | (((self.tag - 2) / 2) << 3) | 3).unwrap_or(0);
        let len = u32::try_from(bytes).unwrap_or(u32::MAX);
        chain(&self.cipher, states, |nth| self.block(flags, &ivs[nth], len));
        chain(&self.cipher, states, |nth| {
            let mut block = [0; 16];
            block[1] = 8;
            block[2..10].copy_from_slice(&run.number(nth).to_le_bytes());
            block
        });
        let data = plaintext.as_chunks::<16>().0;
        let per_sector = bytes / 16;
        for at in 0..per_sector {
            chain(&self.cipher, states, |nth| data[nth * per_sector + at]);
        }
        let mut stream = [[0; 16]; MANY];
        for (block, iv) in stream.iter_mut().zip(ivs) {
            *block = self.block(3, iv, 0);
        }
        self.cipher.encrypt_untidied(&mut stream[..ivs.len()]);
        for (sum, block) in states.iter_mut().zip(&stream) {
            *sum = xor(sum, block);
        }
        sums
    }

    fn add_stream(&self, iv: &[u8; 8], data: InOutBuf<'_, '_, u8>) {
        add_stream(&self.cipher, 1, |number| self.block(3, iv, number), data);
    }
}

impl Aead<8> for Ccm {
    fn seal(&self, run: Run, ivs: &mut [[u8; 8]], data: InOutBuf<'_, '_, u8>, tags: &mut TagsMut<'_>) {
        let sums = self.sums(run, ivs, data.get_in());
        for (iv, sector) in ivs.iter().zip(sectors(data, ivs.len())) {
            self.add_stream(iv, sector);
        }
        tags.set(&sums[..ivs.len()]);
    }

    fn open(
        &self,
        run: Run,
        ivs: &mut [[u8; 8]],
        mut data: InOutBuf<'_, '_, u8>,
        tags: Tags<'_>,
    ) -> std::result::Result<(), BadSector> {
        for (iv, sector) in ivs.iter().zip(sectors(data.reborrow(), ivs.len())) {
            self.add_stream(iv, sector);
        }
        let out = data.get_out();
        let sums = self.sums(run, ivs, out);
        wipe_wrong(out, tags, &sums[..ivs.len()])
    }
}
