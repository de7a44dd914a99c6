//! Checksums: which blocks of an interrupted step are old, which are new, and the contents of torn
//! blocks.

use digest::DynDigest;
use underseal_cipher::{CipherSpec, SectorCipher, SectorSize};
use zeroize::Zeroizing;

use super::{Protection, work::Work};
use crate::{CipherParameters, Hash, Result, cipher_parameters};

/// The smallest part of a block that reaches the disk whole.
const PART: usize = 512;
/// For blocks of at most this many parts each choice of old and new parts is tried; for longer
/// blocks only the choices of a write that ended early.
const FEW: usize = 8;

/// The length of the longest block that can be restored.
const LONGEST: u64 = 4096;

/// Returns true when a block of old and new parts can be restored, as far as this cipher is
/// concerned.
pub(super) fn mends(block: u64, cipher: &dyn SectorCipher) -> bool {
    block <= LONGEST && (cipher.is_local() || cipher.sector_size() == SectorSize::S512)
}

/// Returns true when checksums of blocks of that size are enough for a disk that may write only
/// parts of a block: when this cipher decrypts each part separately.
///
/// # Errors
/// `Unsupported` for ciphers that this build does not know; `Memory`, `Io`.
pub fn checksums_mend(block: u64, cipher: &CipherSpec, sector_size: SectorSize) -> Result<bool> {
    if cipher.is_null() || sector_size == SectorSize::S512 {
        return Ok(block <= LONGEST);
    }
    let sizes =
        underseal_cipher::key_sizes(cipher).map_err(|e| cipher_parameters::cipher_error(cipher, e))?;
    let len = sizes.iter().copied().max().unwrap_or(0);
    let any = CipherParameters::new(cipher, sector_size, len).build(&crate::random::key(len)?)?;
    Ok(mends(block, &*any))
}

/// The blocks of a step, and their hash.
pub(super) struct Blocks {
    hash: Hash,
    size: usize,
}

impl Blocks {
    /// Returns `None` for a step that is not protected by checksums.
    pub(super) fn of(protection: Protection) -> Option<Self> {
        let Protection::Checksum { hash, block } = protection else { return None };
        // A plan has been checked.
        usize::try_from(block).ok().map(|size| Self { hash, size })
    }

    /// Writes the blocks' hashes, in order; the last block may be shorter.
    pub(super) fn hash_all(&self, bytes: &[u8], hashes: &mut [u8]) {
        let mut state = self.hash.start();
        let blocks = bytes.chunks(self.size).zip(hashes.chunks_mut(self.hash.output_len()));
        blocks.for_each(|(block, out)| digest(&mut *state, block, out));
    }

    /// Converts old or new blocks to new blocks, from the volume's byte `at` on. `hashes` are the
    /// hashes of the old blocks.
    ///
    /// Fails with the place of the first block that is neither old, nor new, nor a mixture of both.
    /// This block is left as it is, and counts as new; the other blocks are converted.
    pub(super) fn renew(
        &self,
        work: &Work<'_>,
        at: u64,
        bytes: &mut [u8],
        hashes: &[u8],
    ) -> std::result::Result<(), u64> {
        let mut state = self.hash.start();
        let mut found = vec![0; self.hash.output_len()];
        let mut lost = Ok(());
        let blocks = bytes.chunks_mut(self.size).zip(hashes.chunks(self.hash.output_len()));
        for (at, (block, hash)) in (at..).step_by(self.size).zip(blocks) {
            let mut was_old = |block: &[u8]| {
                digest(&mut *state, block, &mut found);
                found == hash
            };
            if was_old(block) {
                work.renew(at, block);
                continue;
            }
            let mut old = Zeroizing::new(block.to_vec());
            work.age(at, &mut old);
            if was_old(&old) {
                continue;
            }
            if mend(block, &old, was_old) {
                work.renew(at, block);
            } else {
                lost = lost.and(Err(at));
            }
        }
        lost
    }
}

fn digest(state: &mut dyn DynDigest, bytes: &[u8], out: &mut [u8]) {
    state.update(bytes);
    // `out` has the hash's length, so the only error of this call cannot happen.
    let _ = state.finalize_into_reset(out);
}

/// Restores the old block, if the hash tells which parts are old. A block torn by a crash is old in
/// some parts and new in others. `aged` has the old form of its new parts, as far as the ciphers
/// decrypt a part separately.
fn mend(block: &mut [u8], aged: &[u8], was_old: impl FnMut(&[u8]) -> bool) -> bool {
    let parts = block.len().div_ceil(PART);
    let mut was_old = was_old;
    let mut old = Zeroizing::new(vec![0; block.len()]);
    let mut try_one = |is_new: &dyn Fn(usize) -> bool| {
        let both = block.chunks(PART).zip(aged.chunks(PART));
        for (i, (out, (here, aged))) in old.chunks_mut(PART).zip(both).enumerate() {
            out.copy_from_slice(if is_new(i) { aged } else { here });
        }
        was_old(&old)
    };
    let found = if parts <= FEW {
        (1..(1usize << parts) - 1).any(|set| try_one(&|i| set >> i & 1 == 1))
    } else {
        (1..parts).any(|cut| try_one(&|i| i < cut) || try_one(&|i| i >= cut))
    };
    if found {
        block.copy_from_slice(&old);
    }
    found
}
