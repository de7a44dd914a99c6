//! IV generators: one file each, its formula in its documentation.
//!
//! In the formulas cc is dm-crypt's sector number and S what a generator sees of it ([`Run::number`]).

mod encrypted;
mod plain64;

pub(crate) use encrypted::{Encrypted, EncryptedNumbers};
pub(crate) use plain64::Plain64;

use crate::sector::Run;

/// Makes IVs of `W` bytes, those of a run of sectors in one call.
pub(crate) trait IvGenerator<const W: usize>: Send + Sync {
    /// Overwrites `ivs` with the IVs of the run's first `ivs.len()` sectors.
    fn fill(&self, run: Run, ivs: &mut [[u8; W]]);
}
