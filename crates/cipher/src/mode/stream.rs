//! Stream ciphers in dm-crypt: `chacha20`, `xchacha20`, `xchacha12`, `arc4`.
//!
//! The IV gives the state's last four words. ChaCha: IV = the first block's number (32 bits), then
//! the nonce (RFC 8439). XChaCha: HChaCha's input, 8 bytes of nonce, 8 bytes of position
//! (draft-irtf-cfrg-xchacha-03, 2.3). Two writes to one sector share their key stream; an attacker
//! with both ciphertexts knows the difference of their contents.

use std::marker::PhantomData;

use chacha20::cipher::{KeyIvInit, StreamCipher, StreamCipherCore};
use chacha20::variants::Ietf;
use chacha20::{ChaChaCore, R12, R20, Rounds, hchacha};
use cipher::KeyInit;
use cipher::consts::U64;
use cipher::inout::InOutBuf;
use rc4::Rc4;
use zeroize::Zeroize;

use super::ChainCipher;
use crate::kernel::{ChaChaLanes, SUBKEYS};
use crate::wipe::wipe_stack;
use crate::{CpuPath, Key, Locked, Result};

/// ChaCha with 20 rounds.
pub(crate) type ChaCha20Rounds = R20;
/// ChaCha with 12 rounds.
pub(crate) type ChaCha12Rounds = R12;

/// The key of a stream cipher.
pub(crate) struct ChaCha<R> {
    key: Locked<[u8; 32]>,
    /// Many blocks at once, where the processor can; else the library's code.
    lanes: Option<ChaChaLanes>,
    rounds: PhantomData<R>,
}

/// The most stack of the vectors, and of what drives them; a test checks it.
const SPILLED: usize = 4096;
/// The most stack of the library's code.
const SPILLED_BY_LIBRARY: usize = 16 << 10;

impl<R: Rounds> ChaCha<R> {
    /// Takes a key of 32 bytes.
    pub(crate) fn new(key: &[u8], path: CpuPath) -> Result<Self> {
        let mut locked = Locked::new([0; 32])?;
        locked.copy_from_slice(key);
        Ok(Self { key: locked, lanes: ChaChaLanes::of(path, R::COUNT), rounds: PhantomData })
    }

    /// Adds the key stream from the state's last words on. The caller wipes the stack.
    pub(super) fn add(&self, key: &[u8; 32], words: &[u8; 16], data: InOutBuf<'_, '_, u8>) {
        match &self.lanes {
            Some(lanes) => lanes.add(key, words, data),
            None => Self::add_by_library(key, words, data),
        }
    }

    /// The block's number wraps within its word, which the library treats as the end of the stream:
    /// so this drives the library's core.
    fn add_by_library(key: &[u8; 32], words: &[u8; 16], data: InOutBuf<'_, '_, u8>) {
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

    /// `HChaCha` of the first `count` inputs. The caller wipes the stack.
    pub(super) fn subkeys(
        &self,
        inputs: &[[u8; 16]; SUBKEYS],
        count: usize,
        subkeys: &mut [[u8; 32]; SUBKEYS],
    ) {
        if let Some(lanes) = &self.lanes {
            return lanes.subkeys(&self.key, inputs, subkeys);
        }
        for (subkey, input) in subkeys.iter_mut().zip(inputs).take(count) {
            *subkey = hchacha::<R>((&*self.key).into(), input.into()).into();
        }
    }

    /// XChaCha over sectors, whose IVs are its inputs and nonces.
    pub(super) fn add_extended(&self, ivs: &[[u8; 32]], data: InOutBuf<'_, '_, u8>) {
        self.add_to_extended(ivs, data);
        self.wipe();
    }

    /// Wipes the stack that calls of these functions have used.
    pub(super) fn wipe(&self) {
        match self.lanes {
            Some(_) => wipe_stack::<SPILLED>(),
            None => wipe_stack::<SPILLED_BY_LIBRARY>(),
        }
    }

    /// A function of its own: the compiler keeps words of the key in its frame, which the caller
    /// wipes.
    #[inline(never)]
    fn add_to_extended(&self, ivs: &[[u8; 32]], data: InOutBuf<'_, '_, u8>) {
        let bytes = data.len() / ivs.len();
        let mut rest = data;
        let mut subkeys = [[0; 32]; SUBKEYS];
        for ivs in ivs.chunks(SUBKEYS) {
            let mut inputs = [[0; 16]; SUBKEYS];
            for (input, iv) in inputs.iter_mut().zip(ivs) {
                input.copy_from_slice(&iv[..16]);
            }
            self.subkeys(&inputs, ivs.len(), &mut subkeys);
            for (subkey, iv) in subkeys.iter().zip(ivs) {
                let mut words = [0; 16];
                words[..8].copy_from_slice(&iv[24..]);
                words[8..].copy_from_slice(&iv[16..24]);
                let sector;
                (sector, rest) = rest.split_at(bytes);
                self.add(subkey, &words, sector);
            }
        }
        subkeys.zeroize();
    }

    /// ChaCha over sectors; a function of its own for the same reason.
    #[inline(never)]
    fn add_to_each(&self, ivs: &[[u8; 16]], data: InOutBuf<'_, '_, u8>) {
        each(ivs, data, |iv, sector| self.add(&self.key, iv, sector));
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

impl<R: Rounds + Send + Sync> ChainCipher<16> for ChaCha<R> {
    fn encrypt(&self, ivs: &mut [[u8; 16]], data: InOutBuf<'_, '_, u8>) {
        self.add_to_each(ivs, data);
        self.wipe();
    }

    fn decrypt(&self, ivs: &mut [[u8; 16]], data: InOutBuf<'_, '_, u8>) {
        ChainCipher::<16>::encrypt(self, ivs, data);
    }

    fn is_local(&self) -> bool {
        true
    }
}

impl<R: Rounds + Send + Sync> ChainCipher<32> for ChaCha<R> {
    fn encrypt(&self, ivs: &mut [[u8; 32]], data: InOutBuf<'_, '_, u8>) {
        self.add_extended(ivs, data);
    }

    fn decrypt(&self, ivs: &mut [[u8; 32]], data: InOutBuf<'_, '_, u8>) {
        self.add_extended(ivs, data);
    }

    fn is_local(&self) -> bool {
        true
    }
}

/// `arc4`: takes no IV, so every sector has the same key stream. It protects nothing.
pub(crate) struct Arc4 {
    pub(crate) key: Key,
}

impl ChainCipher<8> for Arc4 {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    use crate::wipe::{DEEP, left_on_the_stack};

    #[test]
    fn no_key_and_no_subkey_is_left_on_the_stack() {
        for path in CpuPath::ALL.into_iter().filter(|path| path.is_available()) {
            let (cipher, needles) = made(path);
            let mut data = vec![1; 9 * 1520];
            // Callers of `new` do so, and this test has left some itself.
            wipe_stack::<{ 64 << 10 }>();
            cipher.add_extended(&[[7; 32]; 9], (&mut data[..]).into());
            let stack = left_on_the_stack();
            let words: Vec<u32> = stack.as_chunks().0.iter().map(|word| !u32::from_ne_bytes(*word)).collect();
            let found = |pair: &[u32]| needles.iter().position(|needle| needle == pair);
            let at = words.windows(2).enumerate().find_map(|(at, pair)| Some((at, found(pair)?)));
            let below = at.map(|(at, needle)| (DEEP - 4 * at, needle));
            assert_eq!(below, None, "bytes below and needle, {}", path.name());
        }
    }

    /// A cipher with a random key. A function of its own: registers that a test's function keeps
    /// are saved on the stack by those that it calls.
    #[inline(never)]
    fn made(path: CpuPath) -> (ChaCha<ChaCha12Rounds>, Vec<[u32; 2]>) {
        let mut key = Key::zeroed(32).unwrap();
        std::fs::File::open("/dev/urandom").unwrap().read_exact(key.as_mut_bytes()).unwrap();
        (ChaCha::new(key.as_bytes(), path).unwrap(), needles(key.as_bytes()))
    }

    /// The words of the key and of the subkey as they may lie side by side: in order, and one in
    /// every lane. Inverted, so that the list is not found itself.
    fn needles(key: &[u8]) -> Vec<[u32; 2]> {
        let key: &[u8; 32] = key.try_into().unwrap();
        let subkey: [u8; 32] = hchacha::<ChaCha12Rounds>(key.into(), (&[7; 16]).into()).into();
        let mut needles = Vec::new();
        for key in [key, &subkey] {
            let words: Vec<u32> = key.as_chunks().0.iter().map(|word| !u32::from_ne_bytes(*word)).collect();
            needles.extend(words.windows(2).map(|pair| [pair[0], pair[1]]));
            needles.extend(words.iter().map(|&word| [word; 2]));
        }
        needles
    }
}
