//! A long exchange of a driver and a device over one ring: indices that wrap, requests completed in
//! any order, kicks and signals that are only sent where they are wanted.

use std::collections::{HashMap, VecDeque};

use underseal_export::vhost_user::guest::GuestRam;
use underseal_export::vhost_user::request::{Operation, Request, parse};
use underseal_export::vhost_user::ring::Ring;
use vm_memory::{Bytes, GuestAddress};

const LEN: usize = 0x1_0000;
const TABLE: u64 = 0x1000;
const AVAILABLE: u64 = 0x2000;
const USED: u64 = 0x3000;
/// Each head's indirect table, header, data and status.
const HEADS: u64 = 0x4000;
const OF_A_HEAD: u64 = 0x400;

/// Bytes of the input that make a step.
const ENTRY: usize = 4;

/// Bits of the first byte, after the ring's size.
const EVENT_INDEX: u8 = 8;
const DISCARDS: u8 = 16;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

const READ: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;

struct Driver {
    ram: GuestRam,
    size: u16,
    event_index: bool,
    /// Available and used indices.
    offered: u16,
    seen: u16,
    free: Vec<u16>,
    /// Heads that the device has, with the number of bytes that it writes to each.
    out: HashMap<u16, u32>,
    /// Heads that were offered, in their order.
    order: VecDeque<u16>,
    waits: bool,
}

/// Plays both sides. Returns true when requests completed.
pub(crate) fn sequence(bytes: &[u8]) -> bool {
    let &[kind, low, high, ref steps @ ..] = bytes else { return false };
    let ram = GuestRam::from_ranges(&[(GuestAddress(0), LEN)]).expect("memory");
    let base = u16::from_le_bytes([low, high]);
    let size = 1 << (kind & 7).min(5);
    for at in [AVAILABLE + 2, USED + 2] {
        ram.write_obj(base.to_le(), GuestAddress(at)).expect("in memory");
    }
    let mut driver = Driver {
        ram: ram.clone(),
        size,
        event_index: kind & EVENT_INDEX != 0,
        offered: base,
        seen: base,
        free: (0..size).collect(),
        out: HashMap::new(),
        order: VecDeque::new(),
        waits: false,
    };
    let mut ring = Ring::new(&ram, size, [TABLE, AVAILABLE, USED].map(GuestAddress), driver.event_index)
        .expect("it is in memory");
    ring.set_next(base);
    let (mut under_way, mut listening, mut done) = (Vec::new(), false, 0);
    let mut chain = Vec::new();
    for step in steps.chunks_exact(ENTRY) {
        let &[what, a, b, c] = step else { unreachable!() };
        match what % 6 {
            0 | 1 => {
                let before = driver.offered;
                let count = driver.offer(a, b, c);
                assert!(
                    count == 0 || !listening || driver.kicks(before),
                    "a kick that was asked for is not sent"
                );
                listening &= count == 0;
            }
            2 => {
                ring.hush(&ram).expect("it is in memory");
                listening = false;
                while under_way.len() < usize::from(a % 33) {
                    let Some(head) = ring.take(&ram).expect("the driver makes sense") else { break };
                    assert_eq!(Some(head), driver.order.pop_front(), "another head, or out of order");
                    ring.follow(&ram, head, &mut chain).expect("it is a chain");
                    let request = parse(&ram, &mut chain, kind & DISCARDS != 0).expect("it is a request");
                    driver.check(head, &request, kind & DISCARDS != 0);
                    under_way.push((head, request));
                }
            }
            3 if !under_way.is_empty() => {
                let (head, request) = under_way.swap_remove(usize::from(a) % under_way.len());
                ram.write_obj(0_u8, request.status).expect("in memory");
                ring.put(&ram, head, request.writable + 1).expect("in memory");
                if b & 1 == 0 {
                    ring.publish(&ram).expect("in memory");
                    let signals = ring.wants_signal(&ram).expect("in memory");
                    assert!(!driver.waits || signals, "a signal that is waited for is not sent");
                    assert!(!ring.wants_signal(&ram).expect("in memory"), "nothing is new the second time");
                    driver.waits &= !signals;
                }
            }
            4 => {
                let more = ring.listen(&ram).expect("the driver makes sense");
                assert!(more || driver.order.is_empty(), "what was offered is overlooked");
                listening |= !more;
            }
            5 => {
                done += driver.collect();
                driver.wait(a & 1 == 0);
            }
            _ => {}
        }
    }
    // Takes the remaining heads.
    while let Some(head) = ring.take(&ram).expect("the driver makes sense") {
        assert_eq!(Some(head), driver.order.pop_front());
        ring.put(&ram, head, driver.out[&head]).expect("in memory");
    }
    for (head, request) in under_way {
        ring.put(&ram, head, request.writable + 1).expect("in memory");
    }
    ring.publish(&ram).expect("in memory");
    done += driver.collect();
    assert!(driver.out.is_empty() && driver.order.is_empty(), "{:?} never come back", driver.out);
    assert_eq!(driver.free.len(), usize::from(size));
    done > 0
}

impl Driver {
    fn at(&self, head: u16) -> u64 {
        HEADS + OF_A_HEAD * u64::from(head)
    }

    /// Offers as many requests of a kind as the ring has room for, and returns their number.
    fn offer(&mut self, kind: u8, many: u8, how: u8) -> u16 {
        let mut count = 0;
        while count < u16::from(many % 8) {
            let Some(head) = self.free.pop() else { break };
            let slot = u64::from(self.offered.wrapping_add(count) & (self.size - 1));
            self.lay(head, kind.wrapping_add(how), how);
            self.ram.write_obj(head.to_le(), GuestAddress(AVAILABLE + 4 + 2 * slot)).expect("in memory");
            self.order.push_back(head);
            count += 1;
        }
        self.offered = self.offered.wrapping_add(count);
        self.ram.write_obj(self.offered.to_le(), GuestAddress(AVAILABLE + 2)).expect("in memory");
        count
    }

    /// Writes a request behind one descriptor: an indirect table of a header, data in one or two
    /// segments, and a status.
    fn lay(&mut self, head: u16, kind: u8, how: u8) {
        let place = self.at(head);
        let kind = [READ, OUT, FLUSH, GET_ID, DISCARD][usize::from(kind % 5)];
        let (data, writes) = match kind {
            READ => (512, WRITE),
            OUT => (512, 0),
            GET_ID => (20, WRITE),
            DISCARD => (16, 0),
            _ => (0, 0),
        };
        let header = [kind.to_le_bytes(), [0; 4], u32::from(how).to_le_bytes(), [0; 4]].concat();
        self.ram.write_slice(&header, GuestAddress(place + 0x100)).expect("in memory");
        // A range of one sector.
        self.ram
            .write_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0], GuestAddress(place + 0x180))
            .expect("in memory");
        let cut = if how & 1 == 0 { data } else { data / 2 };
        let pieces =
            [(0x100, 16, 0), (0x180, cut, writes), (0x180 + cut, data - cut, writes), (0x3f0, 1, WRITE)];
        let pieces: Vec<_> = pieces.into_iter().filter(|&(_, len, _)| len > 0).collect();
        for (index, &(offset, len, flags)) in (0..).zip(&pieces) {
            let more = if usize::from(index) + 1 < pieces.len() { NEXT } else { 0 };
            self.describe(
                place + 16 * u64::from(index),
                place + u64::from(offset),
                len,
                flags | more,
                index + 1,
            );
        }
        let len = 16 * u32::try_from(pieces.len()).expect("four at most");
        self.describe(TABLE + 16 * u64::from(head), place, len, INDIRECT, 0);
        let writable = if writes == 0 { 0 } else { data };
        self.out.insert(head, writable + 1);
    }

    fn describe(&self, entry: u64, at: u64, len: u32, flags: u16, next: u16) {
        let bytes =
            [&at.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat();
        self.ram.write_slice(&bytes, GuestAddress(entry)).expect("in memory");
    }

    fn check(&self, head: u16, request: &Request, discards: bool) {
        assert_eq!(request.writable + 1, self.out[&head], "what is written");
        assert_eq!(request.status, GuestAddress(self.at(head) + 0x3f0), "where the status goes");
        let kind: u32 = self.ram.read_obj(GuestAddress(self.at(head) + 0x100)).expect("in memory");
        let is = match request.operation {
            Ok(Operation::Read { len: 512, .. }) => READ,
            Ok(Operation::Write { len: 512, .. }) => OUT,
            Ok(Operation::Flush) => FLUSH,
            Ok(Operation::GetId) => GET_ID,
            Ok(Operation::Discard { .. }) => DISCARD,
            Err(_) if !discards => DISCARD,
            other => panic!("{other:?}"),
        };
        assert_eq!(u32::from_le(kind), is);
    }

    fn load(&self, at: u64) -> u16 {
        u16::from_le(self.ram.read_obj(GuestAddress(at)).expect("in memory"))
    }

    /// Returns true when the device wants a kick for the heads offered after `before`, by the
    /// driver's rules.
    fn kicks(&self, before: u16) -> bool {
        if !self.event_index {
            return self.load(USED) & 1 == 0;
        }
        let wanted = self.load(USED + 4 + 8 * u64::from(self.size));
        self.offered.wrapping_sub(wanted).wrapping_sub(1) < self.offered.wrapping_sub(before)
    }

    /// Collects the heads that the device has published.
    fn collect(&mut self) -> usize {
        let published = self.load(USED + 2);
        let mut count = 0;
        while self.seen != published {
            let at = USED + 4 + 8 * u64::from(self.seen & (self.size - 1));
            let element = u64::from_le(self.ram.read_obj(GuestAddress(at)).expect("in memory"));
            let head = u16::try_from(element & 0xffff_ffff).expect("a head");
            assert_eq!(self.out.remove(&head).map(u64::from), Some(element >> 32), "given back once, whole");
            self.free.push(head);
            self.seen = self.seen.wrapping_add(1);
            count += 1;
        }
        count
    }

    /// Asks for a signal at the next used head, or for none.
    fn wait(&mut self, waits: bool) {
        self.waits = waits;
        if self.event_index {
            // Without a wait, the index is far behind.
            let wanted = if waits { self.seen } else { self.seen.wrapping_sub(0x4000) };
            let at = AVAILABLE + 4 + 2 * u64::from(self.size);
            self.ram.write_obj(wanted.to_le(), GuestAddress(at)).expect("in memory");
        } else {
            self.ram.write_obj(u16::from(!waits).to_le(), GuestAddress(AVAILABLE)).expect("in memory");
        }
    }
}
