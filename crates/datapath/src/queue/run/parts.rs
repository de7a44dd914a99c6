//! Requests in several parts: sectors that are covered in part, and long requests that are shared
//! or split.

use std::ops::Range;

use underseal_device::Buffer;

use super::super::abandon::abandoned;
use super::super::{Queue, SHARED_PARTS};
use super::kept;
use crate::slot::{RequestClass, RequestParts, Slot, SlotOperation, SlotPart, SlotStage};
use crate::{Dispatch, Error, ErrorKind, Result};

impl Queue {
    /// Begins a request under the current settings.
    pub(in super::super) fn begin(&mut self, index: u32) {
        let now = self.now;
        let version = self.settings_versions.pin();
        let slot = self.slots.get(index);
        let waited = now.saturating_duration_since(slot.arrived);
        (slot.version, slot.since) = (version, now);
        slot.stage = SlotStage::Ready(slot.stage.take());
        self.inbox.stats.queued.record(crate::stats::nanos(waited), 1);
        if self.is_abandoned {
            return self.complete(index, Err(abandoned()));
        }
        if slot.end > self.settings.layout.size {
            let context = format!("the volume ends at {} by now", self.settings.layout.size);
            return self.complete(index, Err(Error::new(ErrorKind::OutOfRange, context)));
        }
        if slot.spare[0].is_some() {
            return self.begin_edges(index);
        }
        // The parts of a write to a zone would be in flight together.
        let in_sequence = self.mapping.is_zoned() && slot.op.changes();
        let data =
            matches!(slot.op, SlotOperation::Read { .. } | SlotOperation::Write { .. }) && !in_sequence;
        if data && slot.end - slot.start > slot.most && slot.dispatch != Dispatch::Inline {
            let most = slot.most;
            return self.divide(index, most);
        }
        self.dispatch(index);
    }

    /// Divides a read or write into parts of `each` bytes, whole sectors, that proceed
    /// independently; at most as many parts as there are slots.
    pub(super) fn divide(&mut self, index: u32, each: u64) {
        let slot = self.slots.get(index);
        let (start, end) = (slot.start, slot.end);
        let wanted = (end - start).div_ceil(each.max(1));
        let count = u32::try_from(wanted).unwrap_or(u32::MAX).min(self.spare_parts);
        let sector = u64::from(self.mapping.sector());
        let each = if count > 1 { (end - start).div_ceil(count.into()).next_multiple_of(sector) } else { 0 };
        if count < 2 || each >= end - start {
            return self.dispatch(index);
        }
        let cuts = (1..count).map(|n| start + u64::from(n) * each).take_while(|cut| *cut < end);
        let mut parts = [(0, 0); SHARED_PARTS as usize];
        let mut used = 0;
        let mut from = start;
        for to in cuts.chain([end]) {
            parts[used] = (from, to);
            (used, from) = (used + 1, to);
        }
        let slot = self.slots.get(index);
        let (op, dispatch) = (slot.op, slot.dispatch);
        let shared = slot.direct().cloned();
        let Some(mut rest) = slot.stage.take() else { return self.complete(index, Err(kept())) };
        let mut tags = slot.tags.take();
        // The view belongs to the parent.
        let op = if op.reads() { SlotOperation::Read { view: None } } else { op };
        let mut made = [0; SHARED_PARTS as usize];
        for (n, (from, to)) in parts[..used].iter().enumerate() {
            let after = rest.split_off(usize::try_from(to - from).unwrap_or(usize::MAX).min(rest.len()));
            let buffer = std::mem::replace(&mut rest, after);
            let tuples = self.tuples(&mut tags, to - from);
            made[n] = self.part(index, op, *from..*to, (Some(buffer), tuples), dispatch);
            self.slots.get(made[n]).shared.clone_from(&shared);
        }
        self.slots.get(index).tags = tags;
        self.spare_parts -= u32::try_from(used).unwrap_or(0);
        self.start_parts(index, &made[..used], true);
    }

    /// Divides a write that covers sectors in part: these sectors are read first.
    fn begin_edges(&mut self, index: u32) {
        let slot = self.slots.get(index);
        let (op, start, end, dispatch) = (slot.op, slot.start, slot.end, slot.dispatch);
        let mut rest = slot.stage.take();
        let scratch = std::mem::take(&mut slot.spare);
        let mut tags = slot.tags.take();
        let zeros = op == SlotOperation::WriteZeros;
        let durable = op.is_durable();
        let sector = u64::from(self.mapping.sector());
        // A buffer larger than a sector holds the whole request.
        let whole = scratch[0].as_ref().is_some_and(|memory| memory.len() as u64 > sector);
        let mut scratch = scratch.into_iter().flatten();
        let (mut parts, mut used) = ([0; 3], 0);
        let mut from = start;
        while from < end {
            let floor = from / sector * sector;
            let aligned_end = end / sector * sector;
            // To the end of a sector that begins before the request, or to the last partly covered
            // sector, or to the end.
            let to = if from != floor { end.min(floor + sector) } else { aligned_end.max(from) };
            let to = if to == from || whole { end } else { to };
            let is_edge = whole || from != floor || !to.is_multiple_of(sector);
            let len = usize::try_from(to - from).unwrap_or(usize::MAX);
            // Zeros have one buffer, for the whole sectors in the middle.
            let data = if zeros {
                if is_edge { None } else { rest.take() }
            } else {
                rest.take().map(|mut data| {
                    rest = Some(data.split_off(len.min(data.len())));
                    data
                })
            };
            parts[used] = if is_edge {
                let within = usize::try_from(from - floor).unwrap_or(0);
                let modify = SlotOperation::Modify { reads: true, from: within, len, durable };
                let ceiling = to.next_multiple_of(sector);
                let memory = (scratch.next(), self.tuples(&mut tags, ceiling - floor));
                let part = self.part(index, modify, floor..ceiling, memory, dispatch);
                self.slots.get(part).spare[0] = data;
                part
            } else {
                let len = data.as_ref().map_or(0, |data| data.len() as u64);
                let memory = (data, self.tuples(&mut tags, len));
                self.part(index, op, from..to, memory, dispatch)
            };
            used += 1;
            from = to;
        }
        self.slots.get(index).tags = tags;
        // Zeros without a whole sector do not use the buffer.
        if let Some(unused) = rest.filter(|_| zeros) {
            self.arena.free(unused);
        }
        scratch.for_each(|unused| self.arena.free(unused));
        self.start_parts(index, &parts[..used], false);
    }

    /// Splits memory for the tuples of a part of `len` bytes off the front of the request's.
    fn tuples(&self, rest: &mut Option<Buffer>, len: u64) -> Option<Buffer> {
        let rest = rest.as_mut()?;
        let after = rest.split_off(self.mapping.tags_for(len).min(rest.len()));
        Some(std::mem::replace(rest, after))
    }

    fn part(
        &mut self,
        parent: u32,
        op: SlotOperation,
        range: Range<u64>,
        (buffer, tags): (Option<Buffer>, Option<Buffer>),
        dispatch: Dispatch,
    ) -> u32 {
        let slot = self.slots.get(parent);
        let (order, most, class, version) = (slot.order, slot.most, slot.class, slot.version);
        let part = Slot::new(op, range, None, class, self.now);
        let (part_of, stage) = (Some(SlotPart { parent, next: None }), SlotStage::Ready(buffer));
        self.slots.put(Slot { most, dispatch, order, version, part_of, stage, tags, ..part })
    }

    fn start_parts(&mut self, parent: u32, parts: &[u32], is_shared: bool) {
        for pair in parts.windows(2) {
            if let Some(part) = &mut self.slots.get(pair[0]).part_of {
                part.next = Some(pair[1]);
            }
        }
        let count = u32::try_from(parts.len()).unwrap_or(0);
        self.slots.get(parent).stage =
            SlotStage::Parts(RequestParts { first: parts[0], left: count, count, is_shared, failed: None });
        for part in parts {
            self.dispatch(*part);
        }
    }

    /// Notes that a part is over. After the last part the request completes.
    pub(super) fn part_over(&mut self, parent: u32, result: Result<()>) {
        let SlotStage::Parts(parts) = &mut self.slots.get(parent).stage else { return };
        parts.left -= 1;
        if let Err(e) = result {
            parts.failed.get_or_insert(e);
        }
        if parts.left > 0 {
            return;
        }
        let (mut next, failed) = (Some(parts.first), parts.failed.take());
        if parts.is_shared {
            self.spare_parts += parts.count;
        }
        let mut whole = JoinedMemory::default();
        // A part of a request for zeros has memory only where it covers whole sectors.
        let all_have = self.slots.get(parent).class != RequestClass::Other;
        // Unused memory for tuples follows the parts' memory.
        let rest = self.slots.get(parent).tags.take();
        let (mut all_tags, is_tagged) = (JoinedMemory::default(), rest.is_some());
        while let Some(index) = next {
            let Slot { part_of, op, mut stage, spare: [data, _], tags, .. } = self.slots.take(index);
            next = part_of.and_then(|part| part.next);
            let mut buffer = stage.take();
            if let SlotOperation::Modify { .. } = op {
                // The sector's memory is the queue's; the bytes' memory is the caller's.
                if let Some(scratch) = std::mem::replace(&mut buffer, data) {
                    self.arena.free(scratch);
                }
            }
            whole.add(buffer, all_have);
            all_tags.add(tags, is_tagged);
        }
        all_tags.add(rest, is_tagged);
        let slot = self.slots.get(parent);
        slot.stage = SlotStage::Ready(whole.memory);
        slot.tags = all_tags.memory;
        slot.at = slot.end;
        match failed {
            Some(e) => self.complete(parent, Err(e)),
            None => self.run(parent),
        }
    }

    /// Copies the written bytes into the sector that was read, which is written next.
    pub(super) fn overlay(&mut self, index: u32) {
        let slot = self.slots.get(index);
        if let SlotOperation::Modify { from, len, durable, .. } = slot.op
            && let SlotStage::Ready(Some(sector)) = &mut slot.stage
        {
            match &slot.spare[0] {
                Some(data) => sector[from..from + len].copy_from_slice(data),
                None => sector[from..from + len].fill(0),
            }
            slot.op = SlotOperation::Modify { reads: false, from, len, durable };
            slot.at = slot.start;
        }
    }

    /// Counts an ended request in its class.
    pub(super) fn count(&self, class: RequestClass, bytes: u64, well: bool) {
        let stats = &self.inbox.stats;
        let counters = match class {
            RequestClass::Read => &stats.reads,
            RequestClass::Write => &stats.writes,
            RequestClass::Flush => &stats.flushes,
            RequestClass::Other => &stats.others,
        };
        counters.ended(bytes, well);
    }
}

/// A request's memory, joined from the memory of its parts.
#[derive(Default)]
struct JoinedMemory {
    memory: Option<Buffer>,
    /// A buffer that a lower device kept leaves a gap, so the memory cannot be joined.
    is_lost: bool,
}

impl JoinedMemory {
    /// Adds the next part's memory; `must`: the part had some.
    fn add(&mut self, part: Option<Buffer>, must: bool) {
        self.is_lost |= must && part.is_none();
        match (&mut self.memory, part) {
            _ if self.is_lost => self.memory = None,
            (Some(memory), Some(part)) => memory.join(part),
            (none @ None, part) => *none = part,
            (Some(_), None) => {}
        }
    }
}
