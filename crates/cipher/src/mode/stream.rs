//! Stream ciphers as dm-crypt takes them: `chacha20`, `xchacha20`, `xchacha12`, `arc4`.
//!
//! The IV gives the state's last four words. ChaCha: IV = the first block's number (32 bits), then the nonce (RFC 8439).
//! XChaCha: HChaCha's input, 8 bytes of nonce, 8 bytes of position (draft-irtf-cfrg-xchacha-03, 2.3). Two writes to one
//! sector share their key stream; whoever sees both sees their difference.

use std::marker::PhantomData;

use chacha20::cipher::{KeyIvInit, StreamCipher, StreamCipherCore};
use chacha20::variants::Ietf;
use chacha20::{ChaChaCore, R12, R20, Rounds, hchacha};
use cipher::KeyInit;
use cipher::consts::U64;
use cipher::inout::InOutBuf;
use rc4::Rc4;
use zeroize::Zeroize;

use super::Mode;
use crate::{Key, Result};

/// ChaCha with 20 rounds.
pub(crate) type Twenty = R20;
/// ChaCha with 12 rounds.
pub(crate) type Twelve = R12;

/// The key of a stream cipher.
pub(crate) struct ChaCha<R> {
    key: Key,
    rounds: PhantomData<R>,
}

impl<R: Rounds> ChaCha<R> {
    /// From a key of 32 bytes.
    pub(crate) fn new(key: &[u8]) -> Result<Self> {
        Ok(Self { key: Key::new(key)?, rounds: PhantomData })
    }

    fn key(&self) -> [u8; 32] {
        let mut key = [0; 32];
        key.copy_from_slice(self.key.as_bytes());
        key
    }

    /// Adds the key stream from the state's last words on. The block's number wraps within its word, which the library
    /// takes for the end of the stream: this drives its core.
    fn add(key: &[u8; 32], words: &[u8; 16], data: InOutBuf<'_, '_, u8>) {
        let mut nonce = [0; 12];
        nonce.copy_from_slice(&words[4..]);
        let first = u32::from_le_bytes([words[0], words[1], words[2], words[3]]);
        let mut core = ChaChaCore::<R, Ietf>::new(key.into(), (&nonce).into());
        let (blocks, tail) = data.into_chunks::<U64>();
        let to_wrap = usize::try_from((1u64 << 32) - u64::from(first)).unwrap_or(usize::MAX);
        let to_wrap = to_wrap.min(blocks.len());
        let (before, after) = blocks.split_at(to_wrap);
        core.set_block_pos(first);
        core.apply_keystream_blocks_inout(before);
        core.set_block_pos(first.wrapping_add(u32::try_from(to_wrap).unwrap_or(0)));
        core.apply_keystream_blocks_inout(after);
        if !tail.is_empty() {
            let mut block = Default::default();
            core.write_keystream_block(&mut block);
            for (mut byte, stream) in tail.into_iter().zip(&block) {
                let sum = *byte.get_in() ^ stream;
                *byte.get_out() = sum;
            }
            block.zeroize();
        }
    }

    /// XChaCha.
    pub(crate) fn add_extended(&self, iv: &[u8; 32], data: InOutBuf<'_, '_, u8>) {
        let mut key = self.key();
        let (mut input, mut words) = ([0; 16], [0; 16]);
        input.copy_from_slice(&iv[..16]);
        words[..8].copy_from_slice(&iv[24..]);
        words[8..].copy_from_slice(&iv[16..24]);
        let mut subkey: [u8; 32] = hchacha::<R>((&key).into(), (&input).into()).into();
        Self::add(&subkey, &words, data);
        key.zeroize();
        subkey.zeroize();
    }
}

fn each<const W: usize>(
    ivs: &[[u8; W]],
    data: InOutBuf<'_, '_, u8>,
    mut add: impl FnMut(&[u8; W], InOutBuf<'_, '_, u8>),
) {
    let bytes = data.len() / ivs.len();
    let mut rest = data;
    for iv in ivs {
        let sector;
        (sector, rest) = rest.split_at(bytes);
        add(iv, sector);
    }
}

impl<R: Rounds + Send + Sync> Mode<16> for ChaCha<R> {
    fn encrypt(&self, ivs: &mut [[u8; 16]], data: InOutBuf<'_, '_, u8>) {
        let mut key = self.key();
        each(ivs, data, |iv, sector| Self::add(&key, iv, sector));
        key.zeroize();
    }

    fn decrypt(&self, ivs: &mut [[u8; 16]], data: InOutBuf<'_, '_, u8>) {
        Mode::<16>::encrypt(self, ivs, data);
    }

    fn is_local(&self) -> bool {
        true
    }
}

impl<R: Rounds + Send + Sync> Mode<32> for ChaCha<R> {
    fn encrypt(&self, ivs: &mut [[u8; 32]], data: InOutBuf<'_, '_, u8>) {
        each(ivs, data, |iv, sector| self.add_extended(iv, sector));
    }

    fn decrypt(&self, ivs: &mut [[u8; 32]], data: InOutBuf<'_, '_, u8>) {
        Mode::<32>::encrypt(self, ivs, data);
    }

    fn is_local(&self) -> bool {
        true
    }
}

/// `arc4`: takes no IV, so every sector has the same key stream. It protects nothing.
pub(crate) struct Arc4 {
    pub(crate) key: Key,
}

impl Mode<8> for Arc4 {
    fn encrypt(&self, ivs: &mut [[u8; 8]], data: InOutBuf<'_, '_, u8>) {
        each(ivs, data, |_, sector| {
            if let Ok(mut stream) = Rc4::new_from_slice(self.key.as_bytes()) {
                stream.apply_keystream_inout(sector);
            }
        });
    }

    fn decrypt(&self, ivs: &mut [[u8; 8]], data: InOutBuf<'_, '_, u8>) {
        self.encrypt(ivs, data);
    }

    fn is_local(&self) -> bool {
        true
    }
}
