//! Admission of a request: checks, slot and memory, and waiting for earlier requests.

use std::ops::Range;

use underseal_device::Buffer;
use underseal_volume::Volume;

use super::{Full, Queue};
use crate::piece::ZEROS;
use crate::shared::SharedView;
use crate::slot::{RequestClass, Slot, SlotOperation};
use crate::{Completion, Dispatch, Error, ErrorKind, Request, Result};

impl Queue {
    pub(super) fn check(&self, request: &Request) -> Result<()> {
        let Some((offset, len)) = request.range() else { return Ok(()) };
        self.check_range(offset, len, request.writes())?;
        if let Request::WriteZeroes { fast: true, .. } = request
            && !self.settings.layout.is_null
        {
            let context = "zeros under a cipher must be encrypted: not faster than a write";
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        if matches!(request, Request::ReadInto { .. }) && self.widen(offset..offset + len).1 > 0 {
            let context = format!("bytes {offset} + {len}: not whole sectors");
            return Err(Error::new(ErrorKind::Misaligned, context));
        }
        if request.moves() { self.check_length(len) } else { Ok(()) }
    }

    pub(super) fn check_length(&self, len: u64) -> Result<()> {
        if len > self.max_request as u64 {
            let context = format!("a request of {len} bytes is longer than {}", self.max_request);
            return Err(Error::new(ErrorKind::TooLarge, context));
        }
        Ok(())
    }

    pub(super) fn check_range(&self, offset: u64, len: u64, writes: bool) -> Result<()> {
        let block = u64::from(self.mapping.least());
        let fail = |kind, what: &str| Err(Error::new(kind, format!("bytes {offset} + {len}: {what}")));
        if writes && self.mapping.read_only() {
            return fail(ErrorKind::ReadOnly, "the volume is read-only");
        }
        if offset.checked_add(len).is_none_or(|end| end > self.settings.layout.size) {
            return fail(ErrorKind::OutOfRange, &format!("the volume ends at {}", self.settings.layout.size));
        }
        if len == 0 || !offset.is_multiple_of(block) || !len.is_multiple_of(block) {
            return fail(ErrorKind::Misaligned, &format!("not on blocks of {block} bytes"));
        }
        if writes { self.mapping.check_guards(offset..offset + len) } else { Ok(()) }
    }

    /// Completes a request that is not admitted.
    pub(super) fn refuse(&mut self, tag: u64, error: Error, buffer: Option<Buffer>) {
        self.inbox.stats.others.ended(0, false);
        self.ready.push_back(Completion { tag, result: Err(error), buffer });
    }

    /// Returns memory for the tuples of `len` bytes; `None` for a volume without tuples. Returns
    /// `Full` when the memory is short.
    pub(super) fn tags(&mut self, len: u64) -> std::result::Result<Option<Buffer>, Full> {
        match self.mapping.tags_for(len) {
            0 => Ok(None),
            bytes => self.arena.alloc(bytes).map(Some).ok_or(Full),
        }
    }

    /// Memory for encrypted zeros.
    pub(super) fn zeros(&mut self, len: u64) -> Option<Buffer> {
        self.arena.alloc(usize::try_from(len.min(ZEROS)).ok()?)
    }

    /// Copies the bytes of a shared write into its own memory, if it covers sectors in part: these
    /// sectors are read first, and the bytes go into them. Returns the memory when the shared
    /// memory is gone.
    pub(super) fn with_own_bytes(&self, request: Request) -> std::result::Result<Request, Buffer> {
        match request {
            Request::WriteShared { offset, from, mut data, durable }
                if self.widen(offset..offset + data.len() as u64).1 > 0 =>
            {
                from.copy_to(0, &mut data);
                if from.is_lost() { Err(data) } else { Ok(Request::Write { offset, data, durable }) }
            }
            request => Ok(request),
        }
    }

    /// Makes a request's slot, with all memory that the request will need. Returns the request when
    /// memory is short.
    pub(super) fn slot(&mut self, tag: u64, request: Request) -> std::result::Result<Slot, Request> {
        let (start, len) = request.range().unwrap_or((0, 0));
        let (wide, edges) = self.widen(start..start + len);
        let mut range = start..start + len;
        let mut spare = [None, None];
        let partial = request.writes() && edges > 0 && !matches!(request, Request::Discard { .. });
        if partial {
            let (count, each) = self.scratch(&request, &wide, edges);
            for scratch in &mut spare[..count] {
                *scratch = self.arena.alloc(each);
            }
            if spare[..count].iter().any(Option::is_none) {
                spare.into_iter().flatten().for_each(|scratch| self.arena.free(scratch));
                return Err(request);
            }
        }
        let moves = match &request {
            _ if request.moves() => wide.end - wide.start,
            // Tuples of the partly covered sectors and of the zeros' memory.
            Request::WriteZeroes { .. } => {
                len.min(ZEROS) + if partial { 2 * u64::from(self.mapping.sector()) } else { 0 }
            }
            _ => 0,
        };
        let Ok(tags) = self.tags(moves) else {
            spare.into_iter().flatten().for_each(|scratch| self.arena.free(scratch));
            return Err(request);
        };
        let mut shared = None;
        let (op, then_flush, buffer, class) = match request {
            Request::Read { .. } | Request::ReadShared { .. } => {
                #[expect(clippy::cast_possible_truncation, reason = "reads are no longer than the memory")]
                let (head, whole, len) =
                    ((start - wide.start) as usize, (wide.end - wide.start) as usize, len as usize);
                range = wide;
                let Some(buffer) = self.arena.alloc(whole) else {
                    tags.into_iter().for_each(|memory| self.arena.free(memory));
                    return Err(request);
                };
                if let Request::ReadShared { into: bytes, .. } = request {
                    shared = Some(SharedView { bytes, base: start });
                }
                let view = (whole != len).then_some((head, len));
                (SlotOperation::Read { view }, false, Some(buffer), RequestClass::Read)
            }
            Request::ReadInto { data, .. } => {
                (SlotOperation::Read { view: None }, false, Some(data), RequestClass::Read)
            }
            Request::Write { data, durable, .. } => {
                (SlotOperation::Write { durable }, false, Some(data), RequestClass::Write)
            }
            Request::WriteShared { from: bytes, data, durable, .. } => {
                shared = Some(SharedView { bytes, base: start });
                (SlotOperation::Write { durable }, false, Some(data), RequestClass::Write)
            }
            Request::Flush => (SlotOperation::Flush { device: 0 }, false, None, RequestClass::Flush),
            Request::Discard { durable, .. } => {
                // Only whole sectors can be discarded.
                let sector = u64::from(self.mapping.sector());
                range = range.start.next_multiple_of(sector)..range.end / sector * sector;
                range.end = range.end.max(range.start);
                (SlotOperation::Discard, durable, None, RequestClass::Other)
            }
            Request::Prefetch { .. } => {
                range = wide;
                (SlotOperation::Prefetch, false, None, RequestClass::Other)
            }
            Request::WriteZeroes { durable, punch, fast, .. } if self.settings.layout.is_null && !partial => {
                (SlotOperation::ZeroBelow { punch, fast }, durable, None, RequestClass::Other)
            }
            Request::WriteZeroes { durable, .. } => match self.zeros(len) {
                Some(buffer) => (SlotOperation::WriteZeros, durable, Some(buffer), RequestClass::Other),
                None => {
                    let memory = spare.into_iter().chain([tags]).flatten();
                    memory.for_each(|memory| self.arena.free(memory));
                    return Err(request);
                }
            },
        };
        Ok(Slot { tag, then_flush, spare, tags, shared, ..Slot::new(op, range, buffer, class, self.now) })
    }

    /// Memory for the sectors that a request covers in part: the number of buffers, and their
    /// length.
    fn scratch(&self, request: &Request, wide: &Range<u64>, edges: usize) -> (usize, usize) {
        let sector = self.mapping.sector() as usize;
        // Whole sectors are written from the caller's memory. Where the devices cannot use that,
        // the whole range is read, changed and written in one buffer.
        let behind =
            request.range().map_or(0, |(start, _)| (wide.start + sector as u64 - start) % sector as u64);
        if matches!(request, Request::Write { .. }) && !self.mapping.takes_memory_at(behind) {
            return (1, usize::try_from(wide.end - wide.start).unwrap_or(usize::MAX));
        }
        (edges, sector)
    }

    /// Returns the whole sectors that contain a range, and how many of them it covers in part.
    pub(super) fn widen(&self, range: Range<u64>) -> (Range<u64>, usize) {
        let sector = u64::from(self.mapping.sector());
        let wide = range.start / sector * sector..range.end.next_multiple_of(sector);
        let (head, tail) = (wide.start != range.start, wide.end != range.end);
        let one = head && tail && wide.end - wide.start == sector;
        (wide, if one { 1 } else { usize::from(head) + usize::from(tail) })
    }

    /// Admits a request.
    pub(super) fn admit(&mut self, slot: Slot) {
        let index = self.enter(slot);
        if self.settings.suspended {
            self.paused.push_back(index);
        } else {
            self.admit_index(index);
        }
    }

    /// Counts a request as in flight, and stores its slot.
    pub(super) fn enter(&mut self, slot: Slot) -> u32 {
        self.requests += 1;
        self.inbox.stats.in_flight.store(self.requests.into(), std::sync::atomic::Ordering::Relaxed);
        self.slots.put(slot)
    }

    /// Lets a request of a running volume begin, or wait for an earlier write.
    pub(super) fn admit_index(&mut self, index: u32) {
        let policy = self.settings.policy;
        let slot = self.slots.get(index);
        let (dispatch, most) = match slot.class {
            RequestClass::Read => (policy.read, policy.max_read_size),
            RequestClass::Write => (policy.write, policy.max_write_size),
            RequestClass::Flush | RequestClass::Other => (Dispatch::Inline, None),
        };
        slot.dispatch = dispatch;
        slot.order = policy.write_order;
        if slot.op.changes() {
            let range = slot.start..slot.end;
            let range = self.range_to_claim(range);
            if !self.writes.enter(range, index) {
                return;
            }
        }
        if let Some(most) = most {
            // A part has at least one sector.
            let sector = u64::from(self.mapping.sector());
            self.slots.get(index).most = u64::from(most).max(sector) / sector * sector;
        }
        self.take_lock(index);
    }

    /// The range by which writes are ordered: whole sectors where sectors are written in part, and
    /// always whole zones on a zoned device, since io_uring may reorder requests in flight.
    fn range_to_claim(&self, range: Range<u64>) -> Range<u64> {
        match self.settings_versions.current() {
            Some(volume) if self.mapping.is_zoned() => self.zones_of(volume, range),
            _ if self.mapping.modifies() => self.widen(range).0,
            _ => range,
        }
    }

    /// The zones that a range touches, in bytes of the volume.
    fn zones_of(&self, volume: &Volume, range: Range<u64>) -> Range<u64> {
        let zone = |at: u64, up: bool| {
            let segment = &volume.segments()[volume.segment_index(at)?];
            let (device, lower) = segment.lower(at)?;
            let zones = self.mapping.devices().get(device)?.geometry().zones?;
            let begin = lower / zones.size * zones.size;
            Some(if up {
                at.saturating_add(begin.saturating_add(zones.size) - lower).min(segment.end())
            } else {
                at.saturating_sub(lower.saturating_sub(begin)).max(segment.start)
            })
        };
        let last = range.end.saturating_sub(1).max(range.start);
        zone(range.start, false).unwrap_or(range.start)..zone(last, true).unwrap_or(range.end)
    }
}
