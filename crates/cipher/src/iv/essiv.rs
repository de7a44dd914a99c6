//! `essiv:HASH`: IV = E(le64(S) padded) under the key HASH(volume key).
//!
//! It hides from the disk's reader which sectors are neighbours, so CBC is not open to watermarking.
//! Source: Fruhwirth, "New Methods in Hard Disk Encryption", 2005, 4.2.2.

use super::{IvGenerator, Plain64};
use crate::block::{Block, BlockCipher};

pub(crate) struct Essiv<C> {
    /// The cipher under the hashed key.
    pub(crate) salted: C,
}

impl<C: BlockCipher> IvGenerator for Essiv<C> {
    fn fill(&self, first: u64, step: u64, ivs: &mut [Block]) {
        Plain64.fill(first, step, ivs);
        self.salted.encrypt_blocks(ivs);
    }
}
