//! aarch64 has no permute of this width: every block goes through the tables.

use super::{Subkeys, Tables};
use crate::CpuPath;

/// The rows of the four S-boxes.
pub(super) type Boxes = [[[u8; 16]; 16]; 4];

/// A number of blocks done together; aarch64 has no value of this type.
#[allow(dead_code, reason = "its fields are read where there are vectors")]
pub(super) struct Width {
    pub(super) encrypt: unsafe fn(&Boxes, &Subkeys, &mut [[u8; 16]]),
    pub(super) decrypt: unsafe fn(&Boxes, &Subkeys, &mut [[u8; 16]]),
    pub(super) blocks: usize,
}

pub(super) fn widths(_path: CpuPath) -> &'static [Width] {
    &[]
}

pub(super) fn rows(_tables: &Tables, _boxes: &mut Boxes) {}
