//! The memory of received requests.

use std::io::IoSliceMut;

use underseal_fuse::wire::WRITE_DATA;

use super::pages::{PAGE, PageMemory};

/// The offset of a request, such that the bytes of a WRITE begin at a page.
const START: usize = PAGE - WRITE_DATA;

/// The memory of a request. The bytes of a WRITE begin at a page, and are encrypted there.
pub(super) struct RequestBuffer {
    memory: PageMemory,
}

impl RequestBuffer {
    /// Returns memory for requests of up to `max_write` bytes of data. Another page fills up the
    /// last extent.
    pub(super) fn new(max_write: usize) -> Self {
        Self { memory: PageMemory::new(2 * PAGE + max_write) }
    }

    pub(super) fn room(&mut self) -> [IoSliceMut<'_>; 1] {
        let end = self.memory.len() - PAGE;
        [IoSliceMut::new(&mut self.memory[START..end])]
    }

    /// Copies a request from parts that were received elsewhere.
    pub(super) fn put(&mut self, parts: &[&[u8]]) {
        let mut at = START;
        for part in parts {
            self.memory[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
    }

    /// Returns the largest length of a request.
    pub(super) fn len(&self) -> usize {
        self.memory.len() - PAGE - START
    }

    /// Returns the request of `len` bytes.
    pub(super) fn request(&self, len: usize) -> &[u8] {
        &self.memory[START..START + len]
    }

    /// Returns the data of a WRITE, and the memory behind it.
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
