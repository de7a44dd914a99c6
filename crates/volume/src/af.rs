//! The anti-forensic splitter (LUKS1 On-Disk Format 1.2.3, section 2.4): a key spread over many
//! stripes, so that the loss of any single stripe loses the key. A disk that remaps sectors cannot
//! guarantee the loss of a particular sector.

use underseal_cipher::Key;
use zeroize::Zeroize;

use crate::{Hash, Result};

/// The number of stripes of every LUKS1 and LUKS2 keyslot.
pub(crate) const STRIPES: usize = 4000;

/// Returns the bytes of a split key on disk: whole 512-byte sectors.
pub(crate) fn split_len(key_len: usize) -> usize {
    (key_len * STRIPES).next_multiple_of(512)
}

/// Splits `key` into [`STRIPES`] stripes of its length, padded to whole sectors.
pub(crate) fn split(key: &Key, hash: Hash) -> Result<Key> {
    let len = key.len();
    let mut out = crate::kdf::new_key(split_len(len))?;
    let (random, last) = out.as_mut_bytes().split_at_mut(len * (STRIPES - 1));
    crate::random::fill(random)?;
    let mut state = crate::kdf::new_key(len)?;
    mix(random, state.as_mut_bytes(), hash);
    xor(state.as_mut_bytes(), key.as_bytes());
    last[..len].copy_from_slice(state.as_bytes());
    Ok(out)
}

/// Merges `stripes` to the key of `len` bytes.
pub(crate) fn merge(stripes: &[u8], len: usize, hash: Hash) -> Result<Key> {
    let (random, last) = stripes.split_at(len * (STRIPES - 1));
    let mut state = crate::kdf::new_key(len)?;
    mix(random, state.as_mut_bytes(), hash);
    xor(state.as_mut_bytes(), &last[..len]);
    Ok(state)
}

/// Folds every stripe into `state`: xor, then diffuse.
fn mix(stripes: &[u8], state: &mut [u8], hash: Hash) {
    if state.is_empty() {
        return;
    }
    let mut digest = hash.start();
    let mut whole = vec![0; hash.output_len()];
    for stripe in stripes.chunks_exact(state.len()) {
        xor(state, stripe);
        for (i, chunk) in (0u32..).zip(state.chunks_mut(whole.len())) {
            digest.update(&i.to_be_bytes());
            digest.update(chunk);
            // The buffer is one digest long, so this cannot fail.
            digest.finalize_into_reset(&mut whole).expect("a buffer of the digest's length");
            chunk.copy_from_slice(&whole[..chunk.len()]);
        }
    }
    whole.zeroize();
}

fn xor(into: &mut [u8], from: &[u8]) {
    into.iter_mut().zip(from).for_each(|(a, b)| *a ^= b);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn merging_undoes_splitting(bytes in proptest::collection::vec(any::<u8>(), 1..130), hash in 0..Hash::ALL.len()) {
            let (key, hash) = (Key::new(&bytes).unwrap(), Hash::ALL[hash]);
            let stripes = split(&key, hash).unwrap();
            prop_assert_eq!(stripes.len() % 512, 0);
            prop_assert!(merge(stripes.as_bytes(), key.len(), hash).unwrap() == key);
        }
    }

    #[test]
    fn losing_one_byte_loses_the_key() {
        let key = Key::new(&[7; 32]).unwrap();
        let mut stripes = split(&key, Hash::Sha256).unwrap();
        stripes.as_mut_bytes()[1000] ^= 1;
        assert!(merge(stripes.as_bytes(), 32, Hash::Sha256).unwrap() != key);
    }
}
