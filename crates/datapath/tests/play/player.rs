//! A player: a thread with a queue.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

use underseal_datapath::{Buffer, Completion, ErrorKind, Mapping, Queue, QueueOptions, Request};

use super::dice::Dice;
use super::disk::{ANYTHING, Disk, Stamp, UNIT, ZEROS, fill};
use super::hot;
use super::round::{Setup, Shared};

pub(crate) struct Player<'r> {
    setup: &'r Setup,
    shared: &'r Shared,
    mapping: Arc<Mapping>,
    /// The options of the player's export.
    options: QueueOptions,
    queue: Queue,
    disk: Disk,
    dice: Dice,
    number: u64,
    /// Sent requests, by tag.
    sent: Vec<Option<Sent>>,
    free: Vec<usize>,
    /// Power cuts that the player has seen.
    cuts: u64,
    checked: u64,
    requests: u64,
}

enum Sent {
    Read {
        offset: u64,
        len: u64,
        begun: u64,
    },
    Change {
        offset: u64,
        len: u64,
        id: u64,
        durable: bool,
    },
    Flush {
        begun: u64,
    },
    /// A read of blocks that all players write.
    Hot {
        offset: u64,
        /// True when each of the blocks was written before the read was sent.
        is_written: bool,
    },
    Other,
    Bad(ErrorKind),
}

impl<'r> Player<'r> {
    pub(crate) fn new(setup: &'r Setup, shared: &'r Shared, mapping: Arc<Mapping>, number: u64) -> Self {
        let options = setup.queue_of(number);
        let queue = Queue::open(mapping.clone(), options).unwrap();
        Self {
            disk: Disk::new(mapping.size(), setup, shared.clock.clone()),
            dice: Dice::of(setup.seed, 100 + number),
            sent: Vec::new(),
            free: Vec::new(),
            cuts: 0,
            checked: 0,
            requests: 0,
            setup,
            shared,
            mapping,
            options,
            queue,
            number,
        }
    }

    /// Plays until the round ends, and checks all blocks that it wrote. Returns the numbers of
    /// blocks and requests.
    pub(crate) fn play(mut self) -> (u64, u64) {
        self.write_everything();
        while !self.shared.stop.load(SeqCst) {
            if self.cuts < self.shared.cuts.load(SeqCst) {
                self.drain();
                // A flush of any player counts for all.
                self.disk.flushed(self.shared.flushed.load(SeqCst));
                self.disk.cut();
                self.cuts += 1;
                self.shared.drained.fetch_add(1, SeqCst);
                while self.shared.restored.load(SeqCst) < self.cuts && !self.shared.stop.load(SeqCst) {
                    thread::sleep(Duration::from_millis(1));
                }
                self.come_back();
                continue;
            }
            if self.dice.one_in(2000) {
                self.reopen();
            }
            for _ in 0..1 + self.dice.below(8) {
                if !self.send_one() {
                    break;
                }
            }
            self.take();
            if self.queue.in_flight() > 0 {
                // Now and then the player does not wait, so that more requests pile up.
                if self.dice.one_in(4) {
                    self.queue.poll().unwrap()
                } else {
                    self.queue.wait().unwrap()
                }
                self.take();
            }
        }
        self.drain();
        self.check_everything();
        self.check_memory();
        (self.checked, self.requests)
    }

    /// Takes the current mapping, which may be a new one.
    fn come_back(&mut self) {
        let now = self.shared.mapping();
        if !Arc::ptr_eq(&now, &self.mapping) {
            self.queue = Queue::open(now.clone(), self.options).unwrap();
            self.mapping = now;
        }
    }

    /// Drops the queue with requests in flight; each of them was done, or was not.
    fn reopen(&mut self) {
        self.take();
        let fresh = Queue::open(self.mapping.clone(), self.options).unwrap();
        drop(std::mem::replace(&mut self.queue, fresh));
        for tag in 0..self.sent.len() {
            if let Some(sent) = self.sent[tag].take() {
                self.free.push(tag);
                if let Sent::Change { offset, len, id, durable } = sent {
                    self.disk.end(offset, len, id, false, durable);
                }
            }
        }
    }

    fn drain(&mut self) {
        while self.queue.in_flight() > 0 {
            self.queue.wait().unwrap();
            self.take();
        }
        self.take();
        assert_eq!(self.free.len(), self.sent.len(), "every request was answered");
    }

    fn mine(&self) -> impl Fn(u64) -> bool + use<> {
        let (setup, number) = (self.setup.clone(), self.number);
        move |unit| setup.owner(unit * UNIT) == number
    }

    fn write_everything(&mut self) {
        if self.number == 0 {
            self.write_hot_blocks();
        }
        let (start, end) = self.setup.region(self.number);
        let most = self.options.max_request as u64;
        let block = u64::from(self.mapping.block());
        let own = (0..self.setup.shared)
            .step_by(usize::try_from(block).unwrap())
            .filter(|at| self.setup.owner(*at) == self.number);
        let rest = (start..end).step_by(usize::try_from(most).unwrap()).map(|at| (at, most.min(end - at)));
        let all: Vec<_> = own.map(|at| (at, block)).chain(rest).collect();
        for (offset, len) in all {
            while !self.write(offset, len, false) {
                self.queue.wait().unwrap();
                self.take();
            }
            self.take();
        }
    }

    fn check_everything(&mut self) {
        let size = self.mapping.size();
        let is_torn = self.setup.may_tear();
        // Where blocks of other players may be torn, each block is read alone.
        let most = if is_torn { u64::from(self.mapping.block()) } else { self.options.max_request as u64 };
        let mut at = 0;
        while at < size {
            let len = most.min(size - at);
            if is_torn && self.setup.owner(at) != self.number {
                at += len;
                continue;
            }
            while !self.read(at, len) {
                self.queue.wait().unwrap();
                self.take();
            }
            self.drain();
            at += len;
        }
    }

    /// Checks that all memory has come back.
    fn check_memory(&mut self) {
        assert_eq!(self.queue.in_flight(), 0);
        let longest = self.options.max_request.max(1 << 20);
        let pieces: Vec<Buffer> = (0..2).map_while(|_| self.queue.alloc(longest)).collect();
        let all = pieces.len() == 2;
        pieces.into_iter().for_each(|piece| self.queue.free(piece));
        assert!(all, "memory is missing");
    }

    fn range(&mut self) -> (u64, u64) {
        let block = u64::from(self.mapping.block());
        if self.dice.one_in(3) {
            let blocks = self.setup.shared / block;
            let at = self.dice.below(blocks / self.setup.threads) * self.setup.threads + self.number;
            return (at * block, block);
        }
        let (start, end) = self.setup.region(self.number);
        // Half of the ranges are close together, so that they overlap.
        let room = (end - start) / block;
        let near = if self.dice.one_in(2) { room.min(64) } else { room };
        let at = self.dice.below(near);
        let most = (self.options.max_request as u64 / block).min(room - at);
        (start + at * block, self.dice.length(most) * block)
    }

    /// Sends a request. False when the queue had no room.
    fn send_one(&mut self) -> bool {
        if self.setup.hot > 0 && self.dice.one_in(6) {
            return self.send_hot();
        }
        let (offset, len) = self.range();
        let durable = self.dice.one_in(8);
        let (in_region, block) = (offset >= self.setup.shared, u64::from(self.mapping.block()));
        let sent = match self.dice.below(100) {
            0..45 => self.write(offset, len, durable),
            45..55 => self.write_in_place(offset, len, durable),
            55..86 => {
                let whole = self.dice.one_in(4) && !in_region && !self.setup.may_tear();
                // The shared part as a whole: blocks of other players are in between.
                if whole {
                    self.read(0, self.setup.shared.min(self.options.max_request as u64))
                } else {
                    self.read(offset, len)
                }
            }
            86..92 => {
                let begun = self.disk.now();
                self.submit(Sent::Flush { begun }, Request::Flush)
            }
            92..95 => {
                let (punch, fast) = (self.dice.one_in(2), false);
                self.change(
                    offset,
                    len,
                    ZEROS,
                    durable,
                    Request::WriteZeroes { offset, len, durable, punch, fast },
                )
            }
            95..97 if in_region => {
                let (from, to) = self.setup.whole_sectors(offset, len);
                let request = Request::Discard { offset, len, durable };
                if self.mapping.discards() && from < to {
                    self.change(from, to - from, ANYTHING, durable, request)
                } else {
                    self.submit(Sent::Other, request)
                }
            }
            95..98 => self.submit(Sent::Other, Request::Prefetch { offset, len }),
            98 => {
                let offset = self.mapping.size();
                self.submit(
                    Sent::Bad(ErrorKind::OutOfRange),
                    Request::Read { offset, len: 512.max(usize::try_from(block).unwrap()) },
                )
            }
            _ => {
                let request = Request::Discard { offset: 1, len: block, durable };
                self.submit(Sent::Bad(ErrorKind::Misaligned), request)
            }
        };
        if !sent && self.queue.in_flight() == 0 {
            let over = self.requests;
            self.take();
            assert!(self.requests > over, "an empty queue has no room for {len} bytes");
        }
        sent
    }

    /// Reads or writes blocks that all players write.
    fn send_hot(&mut self) -> bool {
        let (offset, len) = hot::range(&mut self.dice, self.setup, self.mapping.block());
        if self.dice.one_in(2) {
            let request = Request::Read { offset, len: usize::try_from(len).unwrap() };
            // Before this flag a block may have no write at the read, although it has one at the
            // check.
            let is_written = self.shared.hot_is_written.load(SeqCst);
            return self.submit(Sent::Hot { offset, is_written }, request);
        }
        self.write_hot(offset, len)
    }

    fn write_hot(&mut self, offset: u64, len: u64) -> bool {
        let len = usize::try_from(len).unwrap();
        if self.dice.one_in(3) {
            let mut data = vec![0; len];
            hot::fill(&mut data, offset, self.shared);
            let tag = self.tag();
            if self.queue.write_in_place(tag as u64, offset, &mut data, false).is_err() {
                self.free.push(tag);
                return false;
            }
            self.sent[tag] = Some(Sent::Other);
            return true;
        }
        let Some(mut data) = self.queue.alloc(len) else { return false };
        hot::fill(&mut data, offset, self.shared);
        let durable = self.dice.one_in(8);
        self.submit(Sent::Other, Request::Write { offset, data, durable })
    }

    fn write_hot_blocks(&mut self) {
        let end = self.setup.size;
        for offset in (end - self.setup.hot..end).step_by(self.mapping.block() as usize) {
            while !self.write_hot(offset, self.mapping.block().into()) {
                self.queue.wait().unwrap();
                self.take();
            }
        }
        self.drain();
        self.shared.hot_is_written.store(true, SeqCst);
    }

    fn stamp(&mut self) -> Stamp {
        (self.dice.next() | 1) & !(1 << 63)
    }

    fn read(&mut self, offset: u64, len: u64) -> bool {
        let begun = self.disk.now();
        let request = Request::Read { offset, len: usize::try_from(len).unwrap() };
        self.submit(Sent::Read { offset, len, begun }, request)
    }

    fn write(&mut self, offset: u64, len: u64, durable: bool) -> bool {
        let Some(mut data) = self.queue.alloc(usize::try_from(len).unwrap()) else { return false };
        let stamp = self.stamp();
        fill(&mut data, offset, stamp);
        self.change(offset, len, stamp, durable, Request::Write { offset, data, durable })
    }

    fn write_in_place(&mut self, offset: u64, len: u64, durable: bool) -> bool {
        let mut data = vec![0; usize::try_from(len).unwrap()];
        let stamp = self.stamp();
        fill(&mut data, offset, stamp);
        let tag = self.tag();
        if self.queue.write_in_place(tag as u64, offset, &mut data, durable).is_err() {
            self.free.push(tag);
            return false;
        }
        let id = self.disk.begin(offset, len, stamp);
        self.sent[tag] = Some(Sent::Change { offset, len, id, durable });
        true
    }

    fn change(&mut self, offset: u64, len: u64, stamp: Stamp, durable: bool, request: Request) -> bool {
        // The write may be done before it is noted here, but its completion is taken later.
        let Some(tag) = self.submit_as(request) else { return false };
        let id = self.disk.begin(offset, len, stamp);
        self.sent[tag] = Some(Sent::Change { offset, len, id, durable });
        true
    }

    fn submit(&mut self, sent: Sent, request: Request) -> bool {
        let tag = self.submit_as(request);
        if let Some(tag) = tag {
            self.sent[tag] = Some(sent);
        }
        tag.is_some()
    }

    fn submit_as(&mut self, request: Request) -> Option<usize> {
        let tag = self.tag();
        let Err(refused) = self.queue.submit(tag as u64, request) else { return Some(tag) };
        if let Request::Write { data, .. } = refused {
            self.queue.free(data);
        }
        self.free.push(tag);
        None
    }

    fn tag(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.sent.push(None);
            self.sent.len() - 1
        })
    }

    fn take(&mut self) {
        while let Some(completion) = self.queue.next_completion() {
            self.over(completion);
        }
        self.shared.progress.fetch_add(1, SeqCst);
    }

    fn over(&mut self, Completion { tag, result, buffer }: Completion) {
        self.requests += 1;
        let tag = usize::try_from(tag).unwrap();
        let sent = self.sent[tag].take().expect("a request is answered once");
        self.free.push(tag);
        let ok = result.is_ok();
        match (&sent, &result) {
            (Sent::Bad(kind), result) => assert_eq!(result.as_ref().unwrap_err().kind(), *kind),
            (Sent::Read { offset, len, begun }, Err(e))
                if e.kind() == ErrorKind::Integrity && self.setup.may_tear() =>
            {
                assert!(
                    self.disk.may_be_torn(*offset, *len, *begun),
                    "{offset} + {len}: nothing tore it: {e}"
                );
            }
            (_, Err(e)) => {
                let source = std::error::Error::source(e).map(ToString::to_string);
                assert!(self.setup.may_fail(), "no request fails here: {e}: {source:?}");
                let kinds = [ErrorKind::Lower, ErrorKind::NoSpace];
                assert!(kinds.contains(&e.kind()), "{e}");
            }
            _ => {}
        }
        match sent {
            Sent::Read { offset, len, begun } if ok => {
                let data = buffer.as_ref().expect("a read brings its bytes");
                assert_eq!(data.len() as u64, len);
                if !self.shared.uncertain.load(SeqCst) {
                    let mine = self.mine();
                    self.checked += self.disk.check(offset, data, begun, mine) as u64;
                }
            }
            Sent::Change { offset, len, id, durable } => self.disk.end(offset, len, id, ok, durable),
            Sent::Hot { offset, is_written: true } if ok => {
                let data = buffer.as_ref().expect("a read brings its bytes");
                self.checked += hot::check(data, offset, self.mapping.block(), self.shared);
            }
            Sent::Flush { begun } if ok => {
                self.disk.flushed(begun);
                self.shared.has_flushed(begun);
            }
            _ => {}
        }
        if let Some(buffer) = buffer {
            self.queue.free(buffer);
        }
    }
}
