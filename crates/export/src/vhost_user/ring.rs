//! A split virtqueue (virtio 1.2, 2.7): the driver's available chains, and the used ones returned
//! to it.
//!
//! ```text
//!   descriptor table   address, length, flags, next        chains begin at a head
//!   available ring     flags, index, heads ..., used_event   written by the driver
//!   used ring          flags, index, (head, length) ..., avail_event   written here
//! ```
//!
//! The guest may change any part of it at any time: each value is read once, and that copy is
//! checked.

use std::num::Wrapping;
use std::sync::atomic::{Ordering, fence};

use vm_memory::{Address, Bytes, GuestAddress, GuestMemory, Permissions};

use super::chain::{self, Malformed, Result, Segment};
use super::guest::GuestRam;

/// The largest ring.
pub const LARGEST: u16 = 1024;

const USED_ELEMENT: u64 = 8;

/// Flags of the available and the used ring: no signal or no kick is needed.
const NO_INTERRUPT: u16 = 1;
const NO_NOTIFY: u16 = 1;

/// A ring's addresses and indices.
#[derive(Debug, Clone)]
pub struct Ring {
    size: u16,
    descriptors: GuestAddress,
    available: GuestAddress,
    used: GuestAddress,
    event_index: bool,
    /// The next available head to take, and how many the driver had offered at the last look.
    next: Wrapping<u16>,
    offered: Wrapping<u16>,
    /// The next used element. Elements before `published` are visible to the driver; it may have
    /// been signalled about those before `signalled`.
    done: Wrapping<u16>,
    published: Wrapping<u16>,
    signalled: Wrapping<u16>,
    listening: bool,
}

/// Returns the lengths in bytes of the three parts of a ring with `size` descriptors.
pub(super) fn lengths(size: u16) -> [usize; 3] {
    let size = usize::from(size);
    [16 * size, 6 + 2 * size, 6 + 8 * size]
}

impl Ring {
    /// A ring of `size` descriptors, with the addresses of its table, its available and its used
    /// ring. It continues at the index of its used ring.
    ///
    /// # Errors
    /// `Ring` when a part is not in memory, or the size is invalid.
    pub fn new(ram: &GuestRam, size: u16, at: [GuestAddress; 3], event_index: bool) -> Result<Self> {
        let fits = at.iter().zip(lengths(size)).zip([16, 2, 4]).all(|((&at, len), align)| {
            at.raw_value().is_multiple_of(align) && ram.check_range(at, len, Permissions::ReadWrite)
        });
        if !fits || !size.is_power_of_two() || size > LARGEST {
            return Err(Malformed::Ring);
        }
        let [descriptors, available, used] = at;
        let mut ring = Self {
            size,
            descriptors,
            available,
            used,
            event_index,
            next: Wrapping(0),
            offered: Wrapping(0),
            done: Wrapping(0),
            published: Wrapping(0),
            signalled: Wrapping(0),
            listening: false,
        };
        ring.go_on(ram)?;
        Ok(ring)
    }

    /// Continues at the index of the used ring, which another process may have written. Fails when
    /// the ring is no longer in memory.
    pub(super) fn go_on(&mut self, ram: &GuestRam) -> Result<()> {
        let used = Wrapping(self.load(ram, self.used, 2)?);
        (self.done, self.published, self.signalled) = (used, used, used);
        Ok(())
    }

    /// Returns the number of descriptors.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Takes available heads from this one on.
    pub fn set_next(&mut self, next: u16) {
        (self.next, self.offered) = (Wrapping(next), Wrapping(next));
    }

    /// Returns the next available head.
    pub fn next(&self) -> u16 {
        self.next.0
    }

    /// Returns how many elements of the used ring have been written, wrapping.
    pub fn used(&self) -> u16 {
        self.published.0
    }

    /// Returns true when no element of the used ring has been written: the driver is new. The index
    /// alone does not tell, since it is 0 again after 65536 elements. Drivers zero a ring's memory.
    ///
    /// # Errors
    /// `Ring` when the ring is no longer in memory.
    pub fn is_unused(&self, ram: &GuestRam) -> Result<bool> {
        let last = 4 + USED_ELEMENT * u64::from(self.size - 1);
        let at = self.used.checked_add(last).ok_or(Malformed::Ring)?;
        let mut element = [0; size_of::<u64>()];
        ram.read_slice(&mut element, at).map_err(|_| Malformed::Ring)?;
        Ok(self.used() == 0 && u64::from_ne_bytes(element) == 0)
    }

    fn load(&self, ram: &GuestRam, base: GuestAddress, offset: u64) -> Result<u16> {
        let at = base.checked_add(offset).ok_or(Malformed::Ring)?;
        ram.load(at, Ordering::Acquire).map(u16::from_le).map_err(|_| Malformed::Ring)
    }

    fn store(&self, ram: &GuestRam, offset: u64, value: u16) -> Result<()> {
        let at = self.used.checked_add(offset).ok_or(Malformed::Ring)?;
        ram.store(value.to_le(), at, Ordering::Release).map_err(|_| Malformed::Ring)
    }

    /// Takes the next head that the driver offers.
    ///
    /// # Errors
    /// `Malformed` when the ring is malformed.
    pub fn take(&mut self, ram: &GuestRam) -> Result<Option<u16>> {
        if self.next == self.offered && !self.look(ram)? {
            return Ok(None);
        }
        let slot = u64::from(self.next.0 & (self.size - 1));
        let head = self.load(ram, self.available, 4 + 2 * slot)?;
        if head >= self.size {
            return Err(Malformed::Head(head));
        }
        self.next += 1;
        Ok(Some(head))
    }

    /// Looks whether the driver offers more.
    ///
    /// # Errors
    /// `Malformed` when the ring is malformed.
    pub fn look(&mut self, ram: &GuestRam) -> Result<bool> {
        self.offered = Wrapping(self.load(ram, self.available, 2)?);
        let offered = (self.offered - self.next).0;
        if offered > self.size { Err(Malformed::Index { offered }) } else { Ok(offered > 0) }
    }

    /// Notes that a chain is done, with `len` bytes written to it. The driver sees it after
    /// [`publish`](Self::publish).
    ///
    /// # Errors
    /// `Ring` when the ring is no longer in memory.
    pub fn put(&mut self, ram: &GuestRam, head: u16, len: u32) -> Result<()> {
        let slot = u64::from(self.done.0 & (self.size - 1));
        let at = self.used.checked_add(4 + USED_ELEMENT * slot).ok_or(Malformed::Ring)?;
        let element = u64::from(head) | u64::from(len) << 32;
        ram.write_slice(&element.to_le_bytes(), at).map_err(|_| Malformed::Ring)?;
        self.done += 1;
        Ok(())
    }

    /// Shows the driver all chains that are done.
    ///
    /// # Errors
    /// `Ring` when the ring is no longer in memory.
    pub fn publish(&mut self, ram: &GuestRam) -> Result<()> {
        if self.published != self.done {
            self.store(ram, 2, self.done.0)?;
            self.published = self.done;
        }
        Ok(())
    }

    /// Returns true when the driver wants a signal for the chains published since the last call.
    ///
    /// # Errors
    /// `Ring` when the ring is no longer in memory.
    pub fn wants_signal(&mut self, ram: &GuestRam) -> Result<bool> {
        if self.signalled == self.published {
            return Ok(false);
        }
        // The index is stored before the driver's wish is read: the driver stores its wish first
        // and then reads the index.
        fence(Ordering::SeqCst);
        let before = std::mem::replace(&mut self.signalled, self.published);
        if !self.event_index {
            return Ok(self.load(ram, self.available, 0)? & NO_INTERRUPT == 0);
        }
        let wanted = Wrapping(self.load(ram, self.available, 4 + 2 * u64::from(self.size))?);
        Ok(self.published - wanted - Wrapping(1) < self.published - before)
    }

    /// Asks for a kick at the next chain. Returns true when one has been offered already.
    ///
    /// # Errors
    /// `Malformed` when the ring is malformed.
    pub fn listen(&mut self, ram: &GuestRam) -> Result<bool> {
        if self.event_index {
            self.store(ram, 4 + USED_ELEMENT * u64::from(self.size), self.next.0)?;
        } else if !self.listening {
            self.store(ram, 0, 0)?;
        }
        self.listening = true;
        // The request for a kick is stored before the driver's index is read.
        fence(Ordering::SeqCst);
        self.look(ram)
    }

    /// Asks for no kicks. With event indices none arrives anyway until `listen` asks for one.
    ///
    /// # Errors
    /// `Ring` when the ring is no longer in memory.
    pub fn hush(&mut self, ram: &GuestRam) -> Result<()> {
        if self.listening && !self.event_index {
            self.store(ram, 0, NO_NOTIFY)?;
        }
        self.listening = false;
        Ok(())
    }

    /// Follows the chain that begins at `head`. Its segments replace those in `chain`.
    ///
    /// # Errors
    /// When the descriptors are no valid chain.
    pub fn follow(&self, ram: &GuestRam, head: u16, chain: &mut Vec<Segment>) -> Result<()> {
        chain::follow(ram, self.descriptors, self.size, head, chain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_whose_index_has_come_round_is_not_unused() {
        const SIZE: u16 = 8;
        let ram = GuestRam::from_ranges(&[(GuestAddress(0), 1 << 16)]).unwrap();
        let at = [0, 0x1000, 0x2000].map(GuestAddress);
        let ring = || Ring::new(&ram, SIZE, at, false).unwrap();
        assert!(ring().is_unused(&ram).unwrap());
        for count in 1..=1_u32 << 16 {
            let mut ring = ring();
            // The length of an answer includes its status.
            ring.put(&ram, 0, 1).unwrap();
            ring.publish(&ram).unwrap();
            assert!(!ring.is_unused(&ram).unwrap(), "{count}");
        }
        assert_eq!(ring().used(), 0);
        assert!(!ring().is_unused(&ram).unwrap());
    }
}
