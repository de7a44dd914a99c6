//! Page-aligned memory.

use std::ops::{Deref, DerefMut};

pub(super) const PAGE: usize = 4096;

/// Page-aligned memory: a processor may need several times as long to fill other memory with a
/// file's bytes.
pub(super) struct PageMemory {
    memory: Vec<u8>,
    start: usize,
}

impl PageMemory {
    pub(super) fn new(len: usize) -> Self {
        let memory = vec![0; len + PAGE];
        // Only the allocator of constant evaluation cannot tell the offset.
        let start = memory.as_ptr().align_offset(PAGE).min(PAGE);
        Self { memory, start }
    }
}

impl Deref for PageMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..]
    }
}

impl DerefMut for PageMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..]
    }
}
