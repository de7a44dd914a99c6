//! The table of a queue's requests in flight.

use std::ops::Range;
use std::time::Instant;

use underseal_device::Buffer;

use crate::piece::Piece;
use crate::post::LowerRequest;
use crate::shared::SharedView;
use crate::{Dispatch, Error, WriteOrder};

/// A request on its way, or a part of one. It moves forward piece by piece: a piece lies in one
/// segment and is one lower request.
pub(crate) struct Slot {
    pub(crate) tag: u64,
    pub(crate) op: SlotOperation,
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
    /// Which of the queue's epochs it has pinned when it began: its volume, to its end.
    pub(crate) epoch: u32,
    pub(crate) stage: SlotStage,
    /// The piece that is under way.
    pub(crate) piece: Piece,
    /// The lower device that has it, or had it last.
    pub(crate) device: usize,
    /// Memory for the sectors that it covers in part: the first and the last. In a part: the
    /// caller's bytes.
    pub(crate) spare: [Option<Buffer>; 2],
    /// Memory for tuples, where the volume keeps some: those of its piece are at the front. Whoever
    /// has the piece has it.
    pub(crate) tags: Option<Buffer>,
    /// Where its plaintext comes from or goes to, if not its memory.
    pub(crate) shared: Option<SharedView>,
    /// Who does its crypto.
    pub(crate) dispatch: Dispatch,
    pub(crate) order: WriteOrder,
    /// What it has of the lock on its sectors, which other queues may use too.
    pub(crate) lock: LockState,
    /// What it is a part of.
    pub(crate) part_of: Option<SlotPart>,
    pub(crate) class: RequestClass,
    /// When it came.
    pub(crate) arrived: Instant,
    /// When its present stage began.
    pub(crate) since: Instant,
}

/// How far a slot is with its piece, and so where its memory is.
pub(crate) enum SlotStage {
    /// It has not begun: it is held back while the volume is suspended, or waits for others in its
    /// sectors.
    Held(Option<Buffer>),
    /// This thread is at its next piece, or comes to it. Discards and flushes have no memory.
    Ready(Option<Buffer>),
    /// The lower device has it.
    Below,
    /// The lower device flushes.
    Flushes(Option<Buffer>),
    /// Ciphertext has come, and waits in the backlog.
    Came(Buffer),
    /// A worker has it.
    Worker,
    /// Ciphertext waits for its turn to go down.
    Encrypted(Buffer),
    /// Zeros wait for their turn to be made and go down.
    Turn(Option<Buffer>),
    /// Its parts have it.
    Parts(RequestParts),
}

impl SlotStage {
    /// A lower device has it.
    fn is_below(&self) -> bool {
        matches!(self, Self::Below | Self::Flushes(_))
    }

    /// The memory, unless somebody else has it; the next piece is ready to begin.
    pub(crate) fn take(&mut self) -> Option<Buffer> {
        match std::mem::replace(self, Self::Ready(None)) {
            Self::Held(buffer) | Self::Ready(buffer) | Self::Turn(buffer) | Self::Flushes(buffer) => buffer,
            Self::Came(buffer) | Self::Encrypted(buffer) => Some(buffer),
            Self::Below | Self::Worker | Self::Parts(_) => None,
        }
    }
}

/// A request's parts while they are under way.
pub(crate) struct RequestParts {
    pub(crate) first: u32,
    pub(crate) left: u32,
    pub(crate) count: u32,
    /// They are among the slots that all long requests share.
    pub(crate) is_shared: bool,
    pub(crate) failed: Option<Error>,
}

/// A slot that is a part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotPart {
    pub(crate) parent: u32,
    /// The one that follows in the volume.
    pub(crate) next: Option<u32>,
}

/// A slot's part in the lock that all queues share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockState {
    None,
    /// It holds its sectors.
    Taken,
    /// It holds them, or has its place in the line for them.
    Listed,
}

impl Slot {
    /// A request or a part of one that has not begun.
    pub(crate) fn new(
        op: SlotOperation,
        range: Range<u64>,
        buffer: Option<Buffer>,
        class: RequestClass,
        now: Instant,
    ) -> Self {
        Self {
            tag: 0,
            op,
            start: range.start,
            at: range.start,
            end: range.end,
            most: u64::MAX,
            then_flush: false,
            epoch: 0,
            stage: SlotStage::Held(buffer),
            piece: Piece::NONE,
            device: 0,
            spare: [None, None],
            tags: None,
            shared: None,
            dispatch: Dispatch::Inline,
            order: WriteOrder::AsReady,
            lock: LockState::None,
            part_of: None,
            class,
            arrived: now,
            since: now,
        }
    }
}

impl Slot {
    /// Copies a piece that was read, and decrypted elsewhere, to its shared bytes, if it has some.
    pub(crate) fn bring(&self, piece: &Piece) {
        if let (true, Some(shared), SlotStage::Ready(Some(buffer))) =
            (self.op.reads(), self.direct(), &self.stage)
        {
            shared.bytes.copy_from(shared.offset(piece.at), &buffer[piece.range()]);
        }
    }

    /// True if its pieces are short, so that they stay in the cache, as far as the lower device
    /// does them at once.
    pub(crate) fn is_cached(&self) -> bool {
        let moves = matches!(self.op, SlotOperation::Read { .. } | SlotOperation::Write { durable: false });
        let in_turn = matches!(self.dispatch, Dispatch::Inline | Dispatch::Adaptive)
            && self.order == WriteOrder::AsReady;
        moves && in_turn && self.tags.is_none()
    }

    /// Its shared bytes, if its crypto goes there or comes from there: not where a read brings more
    /// than was asked for.
    pub(crate) fn direct(&self) -> Option<&SharedView> {
        self.shared.as_ref().filter(|_| !matches!(self.op, SlotOperation::Read { view: Some(_) }))
    }
}

/// What a request counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestClass {
    Read,
    Write,
    Flush,
    Other,
}

/// What is to be done with each piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotOperation {
    /// `view`: the bytes of it that were asked for, from where and how many.
    Read {
        view: Option<(usize, usize)>,
    },
    Write {
        durable: bool,
    },
    /// A sector that is written in part: read first, then changed from its byte `from` on for `len`
    /// bytes, and written.
    Modify {
        reads: bool,
        from: usize,
        len: usize,
        durable: bool,
    },
    /// Encrypted zeros, made and written in pieces.
    WriteZeros,
    /// Zeros below are zeros above: the device zeroes. `fast`: do not write instead where it
    /// cannot.
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

impl SlotOperation {
    /// Its bytes come from the device and are decrypted.
    pub(crate) fn reads(self) -> bool {
        matches!(self, Self::Read { .. } | Self::Modify { reads: true, .. })
    }

    /// It makes zeros of what is stored.
    pub(crate) fn zeroes(self) -> bool {
        matches!(self, Self::WriteZeros | Self::ZeroBelow { .. })
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
            |(index, slot): (u32, &Option<Slot>)| (slot.as_ref()?.lock != LockState::None).then_some(index);
        slots.filter_map(locked).collect()
    }

    /// The request that a lower device has had longest.
    pub(crate) fn oldest_below(&self) -> Option<LowerRequest> {
        let below = self.slots.iter().flatten().filter(|slot| slot.stage.is_below());
        below.map(|slot| LowerRequest { since: slot.since, device: slot.device }).min()
    }

    pub(crate) fn has(&self, index: u32) -> bool {
        self.slots.get(index as usize).is_some_and(Option::is_some)
    }

    /// # Panics
    /// When no request has this number.
    pub(crate) fn get(&mut self, index: u32) -> &mut Slot {
        self.slots[index as usize].as_mut().expect("only requests in flight are looked at")
    }
}
