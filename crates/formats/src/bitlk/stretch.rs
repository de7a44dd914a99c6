//! BitLocker's key derivation: SHA-256 in a loop of 2^20 rounds.
//!
//! A round hashes 88 bytes: the last digest (32, zeros at first), the initial digest (32), the salt
//! (16), the number of the round (8, little-endian). These are two blocks of SHA-256, of which 56
//! bytes change: padding is laid out once. The last digest is an AES-256 key.

use sha2::block_api::compress256;
use sha2::{Digest, Sha256};
use underseal_cipher::{Key, Locked};
use zeroize::Zeroize;

use crate::Result;

/// Rounds of one stretch.
pub(crate) const ROUNDS: u64 = 1 << 20;

/// SHA-256's initial state (FIPS 180-4, 5.3.3).
const START: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

/// Bytes that a round hashes.
const MESSAGE: usize = 88;

/// The message of a round, padded, and the state.
struct Round {
    blocks: [[u8; 64]; 2],
    state: [u32; 8],
}

/// The AES-256 key of an initial digest and a salt.
///
/// # Errors
/// `Memory`.
pub(crate) fn stretch(initial: &Key, salt: [u8; 16]) -> Result<Key> {
    rounds(initial, salt, ROUNDS)
}

fn rounds(initial: &Key, salt: [u8; 16], count: u64) -> Result<Key> {
    let mut round = Locked::new(Round { blocks: [[0; 64]; 2], state: [0; 8] })?;
    let Round { blocks, state } = &mut *round;
    blocks[0][32..].copy_from_slice(initial.as_bytes());
    let (salted, padding) = blocks[1].split_at_mut(MESSAGE - 64);
    salted[..16].copy_from_slice(&salt);
    padding[0] = 0x80;
    let bits = (MESSAGE as u64) * 8;
    padding[32..].copy_from_slice(&bits.to_be_bytes());
    for number in 0..count {
        blocks[1][16..24].copy_from_slice(&number.to_le_bytes());
        *state = START;
        compress256(state, blocks);
        for (bytes, word) in blocks[0].as_chunks_mut().0.iter_mut().zip(*state) {
            *bytes = word.to_be_bytes();
        }
    }
    let key = Key::new(&round.blocks[0][..32]);
    round.state.zeroize();
    Ok(key?)
}

/// The initial digest of a password: SHA-256 twice over its UTF-16 code units.
///
/// # Errors
/// `Memory`.
pub(crate) fn of_password(password: &str) -> Result<Key> {
    let units = password.encode_utf16().count();
    let mut utf16 = Key::zeroed(units * 2)?;
    for (bytes, unit) in utf16.as_mut_bytes().as_chunks_mut().0.iter_mut().zip(password.encode_utf16()) {
        *bytes = unit.to_le_bytes();
    }
    once(once(&utf16)?)
}

/// The initial digest of a recovery password's 16 bytes.
///
/// # Errors
/// `Memory`.
pub(crate) fn of_recovery(bytes: &Key) -> Result<Key> {
    once(bytes)
}

/// SHA-256, from locked memory to locked memory.
fn once(bytes: impl std::borrow::Borrow<Key>) -> Result<Key> {
    let mut hash = Locked::new(Sha256::new())?;
    hash.update(bytes.borrow().as_bytes());
    let mut digest = Key::zeroed(32)?;
    hash.finalize_into_reset(digest.as_mut_bytes().try_into().expect("a key of 32 bytes"));
    Ok(digest)
}

#[cfg(test)]
mod tests {
    use super::super::recovery::{Recovery, parse};
    use super::*;

    #[test]
    fn a_stretch_is_that_of_windows() {
        let salt = std::array::from_fn(|nth| nth.to_le_bytes()[0]);
        let password = of_password("anaconda").unwrap();
        let expected = "f7d898db56e670f9fb6f18a9678afa1e0c883d7a9424bed9e72d90ca76f78e9a";
        assert_eq!(hex::encode(stretch(&password, salt).unwrap().as_bytes()), expected);
        let text = "042647-302313-590458-071500-554323-116567-412181-516978";
        let Recovery::Valid(bytes) = parse(text).unwrap() else { panic!() };
        let expected = "f3c32210c1fadc511e2822ca7e712e50115734a518605ca5de9faea1a05853ca";
        let key = stretch(&of_recovery(&bytes).unwrap(), salt).unwrap();
        assert_eq!(hex::encode(key.as_bytes()), expected);
    }
}
