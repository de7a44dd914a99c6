//! The table of a queue's requests in flight.

use underseal_device::Buffer;

/// A request on its way. It moves forward piece by piece: a piece lies in one segment and is one lower request.
pub(crate) struct Slot {
    pub(crate) tag: u64,
    pub(crate) job: Job,
    /// Where it begins in the volume.
    pub(crate) start: u64,
    /// Everything before this is done.
    pub(crate) at: u64,
    /// Where it ends.
    pub(crate) end: u64,
    /// A flush follows the last piece.
    pub(crate) then_flush: bool,
    /// The lower device that has it, or had it last.
    pub(crate) device: usize,
    /// Its memory, unless the lower device has it.
    pub(crate) buffer: Option<Buffer>,
}

/// What is to be done with each piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Job {
    Read,
    Write {
        durable: bool,
    },
    /// Encrypted zeros, made and written in pieces.
    WriteZeros,
    /// Zeros below are zeros above: the device zeroes. `fast`: do not write instead where it cannot.
    ZeroBelow {
        punch: bool,
        fast: bool,
    },
    Discard,
    Prefetch,
    /// One device after the other; this is the next.
    Flush {
        device: usize,
    },
}

/// Slots by number; the one just freed is used next.
pub(crate) struct Slots {
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
}

impl Slots {
    pub(crate) fn new(depth: u32) -> Self {
        Self { slots: (0..depth).map(|_| None).collect(), free: (0..depth).rev().collect() }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// # Panics
    /// When full.
    pub(crate) fn put(&mut self, slot: Slot) -> u32 {
        let index = self.free.pop().expect("the caller has checked that a slot is free");
        self.slots[index as usize] = Some(slot);
        index
    }

    /// # Panics
    /// When no request has this number.
    pub(crate) fn take(&mut self, index: u32) -> Slot {
        let slot = self.slots[index as usize].take().expect("only requests in flight are taken");
        self.free.push(index);
        slot
    }

    /// # Panics
    /// When no request has this number.
    pub(crate) fn get(&mut self, index: u32) -> &mut Slot {
        self.slots[index as usize].as_mut().expect("only requests in flight are looked at")
    }
}
