//! The table of a queue's requests in flight.

use std::ops::Range;
use std::time::Instant;

use underseal_device::Buffer;

use crate::inbox::LowerRequest;
use crate::piece::Piece;
use crate::shared::SharedView;
use crate::{Dispatch, Error, WriteOrder};

/// A request in flight, or a part of one. It moves forward piece by piece: a piece lies in one
/// segment and is one lower request.
pub(crate) struct Slot {
    pub(crate) tag: u64,
    pub(crate) op: SlotOperation,
    /// The first byte in the volume.
    pub(crate) start: u64,
    /// All bytes before this one are done.
    pub(crate) at: u64,
    /// The end in the volume.
    pub(crate) end: u64,
    /// The longest piece.
    pub(crate) most: u64,
    /// A flush follows the last piece.
    pub(crate) then_flush: bool,
    /// The version that the request pinned when it began: its volume, to its end.
    pub(crate) version: u32,
    pub(crate) stage: SlotStage,
    /// The piece in progress.
    pub(crate) piece: Piece,
    /// The lower device that has the piece, or had one last.
    pub(crate) device: usize,
    /// Memory for the sectors that the request covers in part: the first and the last. In a part:
    /// the caller's bytes.
    pub(crate) spare: [Option<Buffer>; 2],
    /// Memory for tuples, in a volume with tuples: those of the piece are at the front. It moves
    /// together with the piece's memory.
    pub(crate) tags: Option<Buffer>,
    /// The source or destination of the plaintext, if not the slot's memory.
    pub(crate) shared: Option<SharedView>,
    /// The threads for the crypto.
    pub(crate) dispatch: Dispatch,
    pub(crate) order: WriteOrder,
    /// The state of the slot's range lock.
    pub(crate) lock: LockState,
    /// The parent, for a part.
    pub(crate) part_of: Option<SlotPart>,
    pub(crate) class: RequestClass,
    /// The time of arrival.
    pub(crate) arrived: Instant,
    /// The beginning of the present stage.
    pub(crate) since: Instant,
}

/// The stage of a slot's piece, which tells where its memory is.
pub(crate) enum SlotStage {
    /// The request has not begun: it is held while the volume is suspended, or waits for others in
    /// its sectors.
    Held(Option<Buffer>),
    /// This thread works on the next piece, or will. Discards and flushes have no memory.
    Ready(Option<Buffer>),
    /// The lower device has the piece.
    Below,
    /// The lower device flushes.
    Flushes(Option<Buffer>),
    /// The ciphertext was read, and waits in the backlog.
    Came(Buffer),
    /// A worker has the piece.
    Worker,
    /// The ciphertext waits for its turn to be written.
    Encrypted(Buffer),
    /// The zeros wait for their turn to be made and written.
    Turn(Option<Buffer>),
    /// The parts have the memory.
    Parts(RequestParts),
}

impl SlotStage {
    /// True while a lower device has the request.
    fn is_below(&self) -> bool {
        matches!(self, Self::Below | Self::Flushes(_))
    }

    /// Takes the memory, unless a worker, device or part has it, and sets the stage to ready.
    pub(crate) fn take(&mut self) -> Option<Buffer> {
        match std::mem::replace(self, Self::Ready(None)) {
            Self::Held(buffer) | Self::Ready(buffer) | Self::Turn(buffer) | Self::Flushes(buffer) => buffer,
            Self::Came(buffer) | Self::Encrypted(buffer) => Some(buffer),
            Self::Below | Self::Worker | Self::Parts(_) => None,
        }
    }
}

/// The parts of a request in flight.
pub(crate) struct RequestParts {
    pub(crate) first: u32,
    pub(crate) left: u32,
    pub(crate) count: u32,
    /// The parts use slots that all long requests share.
    pub(crate) is_shared: bool,
    pub(crate) failed: Option<Error>,
}

/// A slot's place among the parts of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotPart {
    pub(crate) parent: u32,
    /// The part that follows in the volume.
    pub(crate) next: Option<u32>,
}

/// The state of a slot's range lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockState {
    None,
    /// The slot holds its sectors.
    Taken,
    /// The slot holds its sectors, or waits for them, in the map.
    Listed,
}

impl Slot {
    /// A slot of a request or part that has not begun.
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
            version: 0,
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
    /// Copies a decrypted piece of a read to its shared bytes, if the request has some.
    pub(crate) fn bring(&self, piece: &Piece) {
        if let (true, Some(shared), SlotStage::Ready(Some(buffer))) =
            (self.op.reads(), self.direct(), &self.stage)
        {
            shared.bytes.copy_from(shared.offset(piece.at), &buffer[piece.range()]);
        }
    }

    /// True when the pieces are short, so that they stay in the cache, as long as the lower device
    /// does not block.
    pub(crate) fn is_cached(&self) -> bool {
        let moves = matches!(self.op, SlotOperation::Read { .. } | SlotOperation::Write { durable: false });
        let in_turn = matches!(self.dispatch, Dispatch::Inline | Dispatch::Adaptive)
            && self.order == WriteOrder::AsReady;
        moves && in_turn && self.tags.is_none()
    }

    /// The shared bytes, if the crypto reads or writes them directly: not where a read fetches more
    /// bytes than the request wants.
    pub(crate) fn direct(&self) -> Option<&SharedView> {
        self.shared.as_ref().filter(|_| !matches!(self.op, SlotOperation::Read { view: Some(_) }))
    }
}

/// The class under which a request is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestClass {
    Read,
    Write,
    Flush,
    Other,
}

/// The operation on each piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotOperation {
    /// `view`: the offset and number of the requested bytes among those read.
    Read {
        view: Option<(usize, usize)>,
    },
    Write {
        durable: bool,
    },
    /// A sector that is written in part: read first, then changed from byte `from` on for `len`
    /// bytes, and written.
    Modify {
        reads: bool,
        from: usize,
        len: usize,
        durable: bool,
    },
    /// Encrypted zeros, made and written in pieces.
    WriteZeros,
    /// Zeroing by the device, where its zeros read as zeros. `fast`: fails instead of writing
    /// zeros.
    ZeroBelow {
        punch: bool,
        fast: bool,
    },
    Discard,
    Prefetch,
    /// Flushes of one device after the other; this is the next.
    Flush {
        device: usize,
    },
}

impl SlotOperation {
    /// True when bytes are read from the device and decrypted.
    pub(crate) fn reads(self) -> bool {
        matches!(self, Self::Read { .. } | Self::Modify { reads: true, .. })
    }

    /// True when stored bytes become zeros.
    pub(crate) fn zeroes(self) -> bool {
        matches!(self, Self::WriteZeros | Self::ZeroBelow { .. })
    }

    /// True when stored bytes change.
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
    /// When the table is full.
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

    /// The slots that hold or wait for their sectors.
    pub(crate) fn locked(&self) -> Vec<u32> {
        let slots = (0..).zip(&self.slots);
        let locked =
            |(index, slot): (u32, &Option<Slot>)| (slot.as_ref()?.lock != LockState::None).then_some(index);
        slots.filter_map(locked).collect()
    }

    /// The request that has been in a lower device for the longest time.
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
