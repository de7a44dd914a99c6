//! IV generators: one file each, its formula in its documentation.
//!
//! A generator makes the IVs of a whole run of sectors in one call.

mod essiv;
mod plain64;

pub(crate) use essiv::Essiv;
pub(crate) use plain64::Plain64;

use crate::block::Block;

/// Makes IVs. Sector `i` of the run has dm-crypt's sector number `first + i * step` (mod 2^64), where `step`
/// is the sector size in 512-byte units.
pub(crate) trait IvGenerator: Send + Sync + 'static {
    fn fill(&self, first: u64, step: u64, ivs: &mut [Block]);
}
