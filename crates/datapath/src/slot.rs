//! The table of a queue's requests in flight.

use std::ops::Range;
use std::time::Instant;

use underseal_device::Buffer;

use crate::{Dispatch, Error, WriteOrder};

/// A request on its way, or a part of one. It moves forward piece by piece: a piece lies in one segment and is one lower
/// request.
pub(crate) struct Slot {
    pub(crate) tag: u64,
    pub(crate) job: Job,
    /// Where it begins in the volume.
    pub(crate) start: u64,
    /// Everything before this is done.
    pub(crate) at: u64,
    /// Where it ends.
    pub(crate) end: u64,
    /// The longest piece.
    pub(crate) most: u64,
    /// A flush follows the last piece.
    pub(crate) then_flush: bool,
    /// The lower device that has it, or had it last.
    pub(crate) device: usize,
    /// Its memory, unless the lower device or a worker has it.
    pub(crate) buffer: Option<Buffer>,
    /// Memory for the sectors that it covers in part: the first and the last. In a part: the caller's bytes.
    pub(crate) spare: [Option<Buffer>; 2],
    /// Who does its crypto.
    pub(crate) dispatch: Dispatch,
    pub(crate) order: WriteOrder,
    /// Its next piece's bytes are there, or encrypted, and wait for their turn.
    pub(crate) is_due: bool,
    /// What it has of the lock on its sectors, which other queues may use too.
    pub(crate) lock: Lock,
    /// Where the next job of its piece for the accelerator begins, and how many are out.
    pub(crate) jobs_at: usize,
    pub(crate) jobs_out: u32,
    /// What this thread will take for its next piece, in nanoseconds, as the backlog counts it.
    pub(crate) cost: u64,
    pub(crate) family: Family,
    pub(crate) kind: Kind,
    /// When it came.
    pub(crate) arrived: Instant,
    /// When its present stage began.
    pub(crate) since: Instant,
}

/// A slot's part in the lock that all queues share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lock {
    None,
    /// It holds its sectors.
    Taken,
    /// It holds them, or has its place in the line for them.
    Listed,
}

impl Slot {
    /// A request or a part of one that has not begun.
    pub(crate) fn new(job: Job, range: Range<u64>, buffer: Option<Buffer>, kind: Kind, now: Instant) -> Self {
        Self {
            tag: 0,
            job,
            start: range.start,
            at: range.start,
            end: range.end,
            most: u64::MAX,
            then_flush: false,
            device: 0,
            buffer,
            spare: [None, None],
            dispatch: Dispatch::Inline,
            order: WriteOrder::AsReady,
            is_due: false,
            lock: Lock::None,
            jobs_at: 0,
            jobs_out: 0,
            cost: 0,
            family: Family::Alone,
            kind,
            arrived: now,
            since: now,
        }
    }
}

/// How a slot belongs to others.
pub(crate) enum Family {
    Alone,
    /// The request itself, while its parts are under way.
    Parent {
        first: u32,
        left: u32,
        parts: u32,
        is_shared: bool,
        failed: Option<Error>,
    },
    /// A part; the next one follows in the volume.
    Part {
        parent: u32,
        next: Option<u32>,
    },
}

/// What a request counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Flush,
    Other,
}

/// What is to be done with each piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Job {
    /// `view`: the bytes of it that were asked for, from where and how many.
    Read {
        view: Option<(usize, usize)>,
    },
    Write {
        durable: bool,
    },
    /// A sector that is written in part: read first, then changed from its byte `from` on for `len` bytes, and written.
    Modify {
        reads: bool,
        from: usize,
        len: usize,
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

impl Job {
    /// Its bytes come from the device and are decrypted.
    pub(crate) fn reads(self) -> bool {
        matches!(self, Self::Read { .. } | Self::Modify { reads: true, .. })
    }

    /// Its bytes are encrypted and go to the device.
    pub(crate) fn writes_data(self) -> bool {
        matches!(self, Self::Write { .. } | Self::Modify { reads: false, .. })
    }

    /// It changes what is stored.
    pub(crate) fn changes(self) -> bool {
        !matches!(self, Self::Read { .. } | Self::Prefetch | Self::Flush { .. })
    }

    pub(crate) fn is_durable(self) -> bool {
        matches!(self, Self::Write { durable: true } | Self::Modify { durable: true, .. })
    }
}

/// Slots by number; the one just freed is used next.
pub(crate) struct Slots {
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
}

impl Slots {
    pub(crate) fn new(count: u32) -> Self {
        Self { slots: (0..count).map(|_| None).collect(), free: (0..count).rev().collect() }
    }

    /// # Panics
    /// When full.
    pub(crate) fn put(&mut self, slot: Slot) -> u32 {
        let index = self.free.pop().expect("every request has room for its parts");
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

    /// Those that have, or wait for, their sectors.
    pub(crate) fn locked(&self) -> Vec<u32> {
        let slots = (0..).zip(&self.slots);
        let locked =
            |(index, slot): (u32, &Option<Slot>)| (slot.as_ref()?.lock != Lock::None).then_some(index);
        slots.filter_map(locked).collect()
    }

    /// # Panics
    /// When no request has this number.
    pub(crate) fn get(&mut self, index: u32) -> &mut Slot {
        self.slots[index as usize].as_mut().expect("only requests in flight are looked at")
    }
}
