//! `plain64`: IV = le64(S), zero-padded to the block.

use super::IvGenerator;
use crate::block::Block;

pub(crate) struct Plain64;

impl IvGenerator for Plain64 {
    fn fill(&self, first: u64, step: u64, ivs: &mut [Block]) {
        let mut sector = first;
        for iv in ivs {
            *iv = Block::from(u128::from(sector).to_le_bytes());
            sector = sector.wrapping_add(step);
        }
    }
}
