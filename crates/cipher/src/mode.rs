//! Chain modes: one file each. A mode turns a block cipher and an IV generator into a [`SectorCipher`].
//!
//! [`SectorCipher`]: crate::SectorCipher

mod cbc;
mod null;
mod xts;

pub(crate) use cbc::Cbc;
pub(crate) use null::Null;
pub(crate) use xts::Xts;

use cipher::consts::U16;
use cipher::inout::InOutBuf;

use crate::SectorSize;
use crate::block::Block;

/// Sectors whose IVs are made together, on the stack.
const RUN: usize = 32;

/// Blocks that go through the block cipher in one call.
const GROUP: usize = 64;

/// The data as blocks.
///
/// # Panics
/// When it is not a whole number of sectors, as `SectorCipher` promises.
fn blocks<'i, 'o>(data: InOutBuf<'i, 'o, u8>, sector: SectorSize) -> InOutBuf<'i, 'o, Block> {
    assert!(data.len().is_multiple_of(sector.bytes()), "{} bytes are no whole sectors", data.len());
    data.into_chunks::<U16>().0
}

fn xor(a: &Block, b: &Block) -> Block {
    Block::from((u128::from_ne_bytes((*a).into()) ^ u128::from_ne_bytes((*b).into())).to_ne_bytes())
}
