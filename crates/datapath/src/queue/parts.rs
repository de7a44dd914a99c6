//! Requests of several parts: sectors that are written in part, and long requests that are shared or split.

use underseal_device::Buffer;

use super::{Family, Job, Kind, Queue, Slot};
use crate::{Dispatch, Result};

impl Queue {
    /// A request's turn has come.
    pub(super) fn begin(&mut self, index: u32) {
        let now = self.now;
        let slot = self.slots.get(index);
        let waited = now.saturating_duration_since(slot.arrived);
        slot.since = now;
        self.post.stats.queued.record(crate::stats::nanos(waited), 1);
        let slot = self.slots.get(index);
        if slot.spare[0].is_some() {
            return self.begin_edges(index);
        }
        // The parts of a write to a zone would be in flight together.
        let in_sequence = self.mapping.is_zoned() && slot.job.changes();
        let data = matches!(slot.job, Job::Read { .. } | Job::Write { .. }) && !in_sequence;
        if data && slot.end - slot.start > slot.most && slot.dispatch != Dispatch::Inline {
            let most = slot.most;
            return self.divide(index, most);
        }
        self.dispatch(index);
    }

    /// Divides a read or write into parts of `each` bytes, whole sectors, that go their own ways; as many as there are
    /// slots for.
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
        let mut parts = [(0, 0); super::SHARED_PARTS as usize];
        let mut used = 0;
        let mut from = start;
        for to in cuts.chain([end]) {
            parts[used] = (from, to);
            (used, from) = (used + 1, to);
        }
        let slot = self.slots.get(index);
        let (job, dispatch, Some(mut rest)) = (slot.job, slot.dispatch, slot.buffer.take()) else { return };
        // The view is the parent's matter.
        let job = if job.reads() { Job::Read { view: None } } else { job };
        let mut made = [0; super::SHARED_PARTS as usize];
        for (n, (from, to)) in parts[..used].iter().enumerate() {
            let after = rest.split_off(usize::try_from(to - from).unwrap_or(usize::MAX).min(rest.len()));
            let buffer = std::mem::replace(&mut rest, after);
            made[n] = self.part(index, job, *from, *to, Some(buffer), dispatch);
        }
        self.spare_parts -= u32::try_from(used).unwrap_or(0);
        self.start_parts(index, &made[..used], true);
    }

    /// Divides a write that covers sectors in part: these are read first.
    fn begin_edges(&mut self, index: u32) {
        let slot = self.slots.get(index);
        let (job, start, end, dispatch) = (slot.job, slot.start, slot.end, slot.dispatch);
        let mut rest = slot.buffer.take();
        let zeros = job == Job::WriteZeros;
        let durable = job.is_durable();
        let sector = u64::from(self.mapping.sector());
        let scratch = std::mem::take(&mut self.slots.get(index).spare);
        // Memory for more than that: for all of it.
        let whole = scratch[0].as_ref().is_some_and(|memory| memory.len() as u64 > sector);
        let mut scratch = scratch.into_iter().flatten();
        let (mut parts, mut used) = ([0; 3], 0);
        let mut from = start;
        while from < end {
            let floor = from / sector * sector;
            let aligned_end = end / sector * sector;
            // To the end of a sector that is begun amid, or to the last one, or to the end.
            let to = if from != floor { end.min(floor + sector) } else { aligned_end.max(from) };
            let to = if to == from || whole { end } else { to };
            let is_edge = whole || from != floor || !to.is_multiple_of(sector);
            let len = usize::try_from(to - from).unwrap_or(usize::MAX);
            // Zeros have one buffer, for the part in the middle.
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
                let modify = Job::Modify { reads: true, from: within, len, durable };
                let ceiling = to.next_multiple_of(sector);
                let part = self.part(index, modify, floor, ceiling, scratch.next(), dispatch);
                self.slots.get(part).spare[0] = data;
                part
            } else {
                self.part(index, job, from, to, data, dispatch)
            };
            used += 1;
            from = to;
        }
        // Zeros whose sectors are all covered in part need no memory of their own.
        if let Some(unused) = rest.filter(|_| zeros) {
            self.arena.free(unused);
        }
        scratch.for_each(|unused| self.arena.free(unused));
        self.start_parts(index, &parts[..used], false);
    }

    fn part(
        &mut self,
        parent: u32,
        job: Job,
        start: u64,
        end: u64,
        buffer: Option<Buffer>,
        dispatch: Dispatch,
    ) -> u32 {
        let family = Family::Part { parent, next: None };
        let slot = self.slots.get(parent);
        let (order, most, kind) = (slot.order, slot.most, slot.kind);
        let part = Slot::new(job, start..end, buffer, kind, self.now);
        self.slots.put(Slot { most, dispatch, order, family, ..part })
    }

    fn start_parts(&mut self, parent: u32, parts: &[u32], is_shared: bool) {
        for pair in parts.windows(2) {
            if let Family::Part { next, .. } = &mut self.slots.get(pair[0]).family {
                *next = Some(pair[1]);
            }
        }
        let count = u32::try_from(parts.len()).unwrap_or(0);
        self.slots.get(parent).family =
            Family::Parent { first: parts[0], left: count, parts: count, is_shared, failed: None };
        for part in parts {
            self.dispatch(*part);
        }
    }

    /// A part is over. True when it was the last: the whole request is over then.
    pub(super) fn part_over(&mut self, parent: u32, result: Result<()>) {
        let Family::Parent { first, left, parts, is_shared, failed } = &mut self.slots.get(parent).family
        else {
            return;
        };
        *left -= 1;
        if let Err(e) = result {
            failed.get_or_insert(e);
        }
        if *left > 0 {
            return;
        }
        let (mut next, failed) = (Some(*first), failed.take());
        if *is_shared {
            self.spare_parts += *parts;
        }
        let mut whole: Option<Buffer> = None;
        while let Some(index) = next {
            let Slot { family, job, mut buffer, spare: [data, _], .. } = self.slots.take(index);
            next = if let Family::Part { next, .. } = family { next } else { None };
            if let Job::Modify { .. } = job {
                // The sector was ours, the bytes are the caller's.
                if let Some(scratch) = std::mem::replace(&mut buffer, data) {
                    self.arena.free(scratch);
                }
            }
            match (&mut whole, buffer) {
                (Some(whole), Some(buffer)) => whole.join(buffer),
                (none @ None, buffer) => *none = buffer,
                (Some(_), None) => {}
            }
        }
        let slot = self.slots.get(parent);
        slot.family = Family::Alone;
        slot.buffer = whole;
        slot.at = slot.end;
        match failed {
            Some(e) => self.complete(parent, Err(e)),
            None if slot.then_flush => {
                slot.job = Job::Flush { device: 0 };
                self.run(parent);
            }
            None => self.complete(parent, Ok(())),
        }
    }

    /// Puts what is written into the sector that was read, which is written next.
    pub(super) fn overlay(&mut self, index: u32) {
        let slot = self.slots.get(index);
        if let Job::Modify { from, len, durable, .. } = slot.job
            && let Some(sector) = &mut slot.buffer
        {
            match &slot.spare[0] {
                Some(data) => sector[from..from + len].copy_from_slice(data),
                None => sector[from..from + len].fill(0),
            }
            slot.job = Job::Modify { reads: false, from, len, durable };
            slot.at = slot.start;
        }
    }

    /// What counts as this kind of request has ended.
    pub(super) fn count(&self, kind: Kind, bytes: u64, well: bool) {
        let stats = &self.post.stats;
        let counters = match kind {
            Kind::Read => &stats.reads,
            Kind::Write => &stats.writes,
            Kind::Flush => &stats.flushes,
            Kind::Other => &stats.others,
        };
        counters.ended(bytes, well);
    }
}
