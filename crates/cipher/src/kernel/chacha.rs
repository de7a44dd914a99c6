//! ChaCha with 12 or 20 rounds (RFC 8439): 4, 8 or 16 blocks side by side, and the subkeys of
//! XChaCha for 8 sectors at once.
//!
//! A vector holds the same word of every block's state, so that no round needs a shuffle. There are
//! no look-ups and no branches, so the time is constant.

use cipher::inout::InOutBuf;

#[cfg(target_arch = "aarch64")]
use super::words::Four;
use super::words::WordVector;
#[cfg(target_arch = "x86_64")]
use super::words::{Eight, Sixteen};
use crate::CpuPath;

/// Sectors whose subkeys are made in one call.
pub(crate) const SUBKEYS: usize = 8;

/// Bytes of a block.
const BLOCK: usize = 64;

/// "expand 32-byte k".
const CONSTANTS: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

/// The stream: key, the state's last words, source, destination, bytes.
type AddFn = unsafe fn(&[u8; 32], &[u8; 16], *const u8, *mut u8, usize);
/// `HChaCha`: key, inputs, subkeys.
type SubkeysFn = unsafe fn(&[u8; 32], &[[u8; 16]; SUBKEYS], &mut [[u8; 32]; SUBKEYS]);

/// The vector code of ChaCha. The caller wipes the stack after a call.
#[derive(Clone, Copy)]
pub(crate) struct ChaChaLanes {
    // Invariant: functions of features that the processor has.
    add: AddFn,
    subkeys: SubkeysFn,
}

impl ChaChaLanes {
    /// The widest vectors of a path that the processor has, for 6 or 10 double rounds; `None`
    /// without vectors.
    pub(crate) fn of(path: CpuPath, double_rounds: usize) -> Option<Self> {
        let twelve = double_rounds == 6;
        match path {
            CpuPath::Portable => None,
            _ if !path.is_available() => None,
            #[cfg(target_arch = "aarch64")]
            _ if twelve => Some(Self { add: neon::<6>, subkeys: subkeys_neon::<6> }),
            #[cfg(target_arch = "aarch64")]
            _ => Some(Self { add: neon::<10>, subkeys: subkeys_neon::<10> }),
            #[cfg(target_arch = "x86_64")]
            CpuPath::Avx512 if twelve => Some(Self { add: avx512::<6>, subkeys: subkeys_avx2::<6> }),
            #[cfg(target_arch = "x86_64")]
            CpuPath::Avx512 => Some(Self { add: avx512::<10>, subkeys: subkeys_avx2::<10> }),
            #[cfg(target_arch = "x86_64")]
            _ if !is_x86_feature_detected!("avx2") => None,
            #[cfg(target_arch = "x86_64")]
            _ if twelve => Some(Self { add: avx2::<6>, subkeys: subkeys_avx2::<6> }),
            #[cfg(target_arch = "x86_64")]
            _ => Some(Self { add: avx2::<10>, subkeys: subkeys_avx2::<10> }),
        }
    }

    /// Adds the key stream to the data; `words` are the last words of the first block's state.
    pub(crate) fn add(&self, key: &[u8; 32], words: &[u8; 16], data: InOutBuf<'_, '_, u8>) {
        let bytes = data.len();
        let (src, dst) = data.into_raw();
        // SAFETY: the processor has the features; `InOutBuf` is one buffer or two apart, of `bytes`
        // bytes.
        unsafe { (self.add)(key, words, src, dst, bytes) }
    }

    /// `HChaCha` of each input.
    pub(crate) fn subkeys(
        &self,
        key: &[u8; 32],
        inputs: &[[u8; 16]; SUBKEYS],
        subkeys: &mut [[u8; 32]; SUBKEYS],
    ) {
        // SAFETY: the processor has the features.
        unsafe { (self.subkeys)(key, inputs, subkeys) }
    }
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
unsafe fn neon<const DOUBLE: usize>(
    key: &[u8; 32],
    words: &[u8; 16],
    src: *const u8,
    dst: *mut u8,
    bytes: usize,
) {
    // SAFETY: the caller's promise, passed on.
    unsafe { stream::<Four, DOUBLE>(key, words, src, dst, bytes) };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2<const DOUBLE: usize>(
    key: &[u8; 32],
    words: &[u8; 16],
    src: *const u8,
    dst: *mut u8,
    bytes: usize,
) {
    // SAFETY: the caller's promise, passed on.
    unsafe { stream::<Eight, DOUBLE>(key, words, src, dst, bytes) };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
unsafe fn avx512<const DOUBLE: usize>(
    key: &[u8; 32],
    words: &[u8; 16],
    src: *const u8,
    dst: *mut u8,
    bytes: usize,
) {
    let (mut words, mut at) = (*words, 0);
    if bytes > 8 * BLOCK {
        // A remainder for eight lanes is left to them.
        let rest = bytes % (16 * BLOCK);
        at = if rest <= 8 * BLOCK { bytes - rest } else { bytes };
        // SAFETY: the caller's promise, passed on for the first bytes.
        unsafe { stream::<Sixteen, DOUBLE>(key, &words, src, dst, at) };
        let first = u32::from_le_bytes([words[0], words[1], words[2], words[3]]);
        // At most 1024 blocks.
        let blocks = u32::try_from(at / BLOCK).unwrap_or(0);
        words[..4].copy_from_slice(&first.wrapping_add(blocks).to_le_bytes());
    }
    // SAFETY: the caller's promise, passed on for the following bytes.
    unsafe { stream::<Eight, DOUBLE>(key, &words, src.add(at), dst.add(at), bytes - at) };
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
unsafe fn subkeys_neon<const DOUBLE: usize>(
    key: &[u8; 32],
    inputs: &[[u8; 16]; SUBKEYS],
    subkeys: &mut [[u8; 32]; SUBKEYS],
) {
    // SAFETY: the caller's promise, passed on.
    unsafe { self::subkeys::<Four, DOUBLE>(key, inputs, subkeys) };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn subkeys_avx2<const DOUBLE: usize>(
    key: &[u8; 32],
    inputs: &[[u8; 16]; SUBKEYS],
    subkeys: &mut [[u8; 32]; SUBKEYS],
) {
    // SAFETY: the caller's promise, passed on.
    unsafe { self::subkeys::<Eight, DOUBLE>(key, inputs, subkeys) };
}

/// `HChaCha` of each input, one in each lane.
///
/// # Safety
/// The processor has the features of `V`.
#[inline(always)]
unsafe fn subkeys<V: WordVector, const DOUBLE: usize>(
    key: &[u8; 32],
    inputs: &[[u8; 16]; SUBKEYS],
    subkeys: &mut [[u8; 32]; SUBKEYS],
) {
    let mut columns = [[0; SUBKEYS]; 4];
    for (lane, input) in inputs.iter().enumerate() {
        for (column, word) in columns.iter_mut().zip(input.as_chunks::<4>().0) {
            column[lane] = u32::from_le_bytes(*word);
        }
    }
    for (nth, subkeys) in subkeys.chunks_exact_mut(V::LANES).enumerate() {
        // SAFETY: the caller's promise of features; there is an input for each lane; a lane's bytes
        // are 64, and the kept first half is whole vectors.
        unsafe {
            let mut x = state::<V>(key, [0; 4]);
            for (x, column) in x[12..].iter_mut().zip(&columns) {
                *x = V::load(column.as_ptr().add(nth * V::LANES).cast());
            }
            rounds::<V, DOUBLE>(&mut x, V::turns());
            let [a, b, c, d, .., e, f, g, h] = x;
            let lanes = V::to_lanes([a, b, c, d, e, f, g, h, a, a, a, a, a, a, a, a]);
            for (subkey, vectors) in subkeys.iter_mut().zip(lanes.chunks_exact(BLOCK / V::BYTES)) {
                for (at, vector) in vectors.iter().enumerate().take(32 / V::BYTES) {
                    vector.store(subkey.as_mut_ptr().add(at * V::BYTES));
                }
            }
        }
    }
}

/// The state with the same words in every lane.
///
/// # Safety
/// The processor has the features of `V`.
#[inline(always)]
unsafe fn state<V: WordVector>(key: &[u8; 32], last: [u32; 4]) -> [V; 16] {
    let key = key.as_chunks::<4>().0;
    // SAFETY: the caller's promise.
    unsafe {
        let mut x = [V::every(0); 16];
        let mut i = 0;
        while i < 4 {
            x[i] = V::every(CONSTANTS[i]);
            x[4 + i] = V::every(u32::from_le_bytes(key[i]));
            x[8 + i] = V::every(u32::from_le_bytes(key[4 + i]));
            x[12 + i] = V::every(last[i]);
            i += 1;
        }
        x
    }
}

/// The rounds, without the final addition.
///
/// # Safety
/// As [`state`].
#[inline(always)]
unsafe fn rounds<V: WordVector, const DOUBLE: usize>(x: &mut [V; 16], [by_16, by_8]: [V; 2]) {
    // Four quarter rounds side by side: each is a chain of dependent instructions.
    macro_rules! quarters {
        ($([$a:literal $b:literal $c:literal $d:literal])*) => {
            $(x[$a] = x[$a].add(x[$b]); x[$d] = x[$d].xor(x[$a]).turn::<16, 16>(by_16);)*
            $(x[$c] = x[$c].add(x[$d]); x[$b] = x[$b].xor(x[$c]).rotate::<12, 20>();)*
            $(x[$a] = x[$a].add(x[$b]); x[$d] = x[$d].xor(x[$a]).turn::<8, 24>(by_8);)*
            $(x[$c] = x[$c].add(x[$d]); x[$b] = x[$b].xor(x[$c]).rotate::<7, 25>();)*
        };
    }
    let mut round = 0;
    while round < DOUBLE {
        // SAFETY: the caller's promise.
        unsafe {
            quarters!([0 4 8 12] [1 5 9 13] [2 6 10 14] [3 7 11 15]);
            quarters!([0 5 10 15] [1 6 11 12] [2 7 8 13] [3 4 9 14]);
        }
        round += 1;
    }
}

/// Adds the key stream. The number of the block wraps within its word.
///
/// # Safety
/// The processor has the features of `V`; `src` is readable and `dst` writable for `bytes` bytes,
/// and they are the same or apart.
#[inline(always)]
unsafe fn stream<V: WordVector, const DOUBLE: usize>(
    key: &[u8; 32],
    words: &[u8; 16],
    src: *const u8,
    dst: *mut u8,
    bytes: usize,
) {
    let mut last = [0; 4];
    for (word, bytes) in last.iter_mut().zip(words.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    // SAFETY: whole vectors as long as possible, then the rest of one; all else is the caller's
    // promise.
    unsafe {
        let mut start = state::<V>(key, last);
        start[12] = start[12].add(V::lanes());
        let step = V::every(u32::try_from(V::LANES).unwrap_or(0));
        let turns = V::turns();
        let mut at = 0;
        while at < bytes {
            let mut x = start;
            rounds::<V, DOUBLE>(&mut x, turns);
            let mut i = 0;
            while i < 16 {
                x[i] = x[i].add(start[i]);
                i += 1;
            }
            start[12] = start[12].add(step);
            let x = V::to_lanes(x);
            if bytes - at >= 16 * V::BYTES {
                let mut i = 0;
                while i < 16 {
                    x[i].xor(V::load(src.add(at))).store(dst.add(at));
                    at += V::BYTES;
                    i += 1;
                }
                continue;
            }
            for stream in x {
                if bytes - at >= V::BYTES {
                    stream.xor(V::load(src.add(at))).store(dst.add(at));
                    at += V::BYTES;
                    continue;
                }
                let mut left = [0u8; 64];
                stream.store(left.as_mut_ptr());
                for byte in &left[..bytes - at] {
                    *dst.add(at) = *src.add(at) ^ byte;
                    at += 1;
                }
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use chacha20::cipher::{KeyIvInit, StreamCipherCore};
    use chacha20::variants::Ietf;
    use chacha20::{ChaChaCore, R12, R20, Rounds, hchacha};
    use proptest::prelude::*;

    use super::*;

    /// The library's stream, one block after the other.
    fn library<R: Rounds>(key: &[u8; 32], words: &[u8; 16], data: &mut [u8]) {
        let nonce: [u8; 12] = words[4..].try_into().unwrap();
        let first = u32::from_le_bytes(words[..4].try_into().unwrap());
        for (nth, block) in data.chunks_mut(64).enumerate() {
            let mut core = ChaChaCore::<R, Ietf>::new(key.into(), (&nonce).into());
            core.set_block_pos(first.wrapping_add(u32::try_from(nth).unwrap()));
            let mut stream = Default::default();
            core.write_keystream_block(&mut stream);
            block.iter_mut().zip(&stream).for_each(|(byte, stream)| *byte ^= stream);
        }
    }

    fn check<R: Rounds>(
        key: &[u8; 32],
        words: &[u8; 16],
        data: &[u8],
        inputs: &[[u8; 16]; SUBKEYS],
    ) -> Result<(), TestCaseError> {
        let mut want = data.to_vec();
        library::<R>(key, words, &mut want);
        for path in CpuPath::ALL {
            let Some(lanes) = ChaChaLanes::of(path, R::COUNT) else { continue };
            let mut got = vec![0x5a; data.len() + 1];
            lanes.add(key, words, InOutBuf::new(data, &mut got[..data.len()]).unwrap());
            prop_assert!(got[..data.len()] == want, "{} bytes on {}", data.len(), path.name());
            prop_assert!(got[data.len()] == 0x5a, "no byte behind is touched");
            got[..data.len()].copy_from_slice(data);
            lanes.add(key, words, (&mut got[..data.len()]).into());
            prop_assert!(got[..data.len()] == want, "in place on {}", path.name());
            let mut subkeys = [[0; 32]; SUBKEYS];
            lanes.subkeys(key, inputs, &mut subkeys);
            for (subkey, input) in subkeys.iter().zip(inputs) {
                prop_assert!(*subkey == <[u8; 32]>::from(hchacha::<R>(key.into(), input.into())));
            }
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn streams_and_subkeys_are_the_librarys_on_every_path(
            key in any::<[u8; 32]>(),
            words in any::<[u8; 16]>(),
            wraps in any::<bool>(),
            data in prop::collection::vec(any::<u8>(), 0..5000),
            inputs in any::<[[u8; 16]; SUBKEYS]>(),
        ) {
            let mut words = words;
            if wraps {
                words[1..4].fill(0xff);
            }
            check::<R12>(&key, &words, &data, &inputs)?;
            check::<R20>(&key, &words, &data, &inputs)?;
        }
    }
}
