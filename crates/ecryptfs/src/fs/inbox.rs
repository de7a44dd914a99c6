//! The memory that requests arrive in.

use std::io::IoSliceMut;

use underseal_fuse::wire::WRITE_DATA;

use super::pages::{PAGE, PageMemory};

/// Before the bytes of a WRITE, which begin at a page.
const START: usize = PAGE - WRITE_DATA;

/// Where a request arrives: so placed that the bytes of a WRITE begin at a page, where they are
/// encrypted.
pub(super) struct RequestBuffer {
    memory: PageMemory,
}

impl RequestBuffer {
    /// For requests of so many bytes of data. One page more is there to fill up the last extent.
    pub(super) fn new(max_write: usize) -> Self {
        Self { memory: PageMemory::new(2 * PAGE + max_write) }
    }

    pub(super) fn room(&mut self) -> [IoSliceMut<'_>; 1] {
        let end = self.memory.len() - PAGE;
        [IoSliceMut::new(&mut self.memory[START..end])]
    }

    /// Puts a request there that arrived elsewhere, in parts.
    pub(super) fn put(&mut self, parts: &[&[u8]]) {
        let mut at = START;
        for part in parts {
            self.memory[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
    }

    /// How long a request may be.
    pub(super) fn len(&self) -> usize {
        self.memory.len() - PAGE - START
    }

    /// The request of so many bytes.
    pub(super) fn request(&self, len: usize) -> &[u8] {
        &self.memory[START..START + len]
    }

    /// The data of a WRITE, and what memory there is behind it.
    pub(super) fn data(&mut self) -> &mut [u8] {
        &mut self.memory[START + WRITE_DATA..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_arrives_at_a_page_with_a_page_to_spare() {
        let mut inbox = RequestBuffer::new(1 << 20);
        assert_eq!(inbox.data().as_ptr().align_offset(PAGE), 0);
        assert!(inbox.data().len() >= (1 << 20) + PAGE);
        assert!(
            inbox.room()[0].len() >= WRITE_DATA + (1 << 20),
            "else the kernel refuses to hand out requests"
        );
    }
}
