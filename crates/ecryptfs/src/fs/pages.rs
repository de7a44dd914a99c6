//! Memory that begins at a page.

use std::ops::{Deref, DerefMut};

pub(super) const PAGE: usize = 4096;

/// Memory that begins at a page: a processor may take several times as long to fill other memory
/// with what a file has.
pub(super) struct PageMemory {
    memory: Vec<u8>,
    start: usize,
}

impl PageMemory {
    pub(super) fn new(len: usize) -> Self {
        let memory = vec![0; len + PAGE];
        // The only allocator that cannot tell is that of constant evaluation.
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
