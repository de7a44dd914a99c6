//! A driver's ring, and every request in it: taken, followed, made out, answered.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use underseal_export::vhost_user::guest::{GuestRam, scatter};
use underseal_export::vhost_user::request::{LONGEST, Operation, Request, SECTOR, parse};
use underseal_export::vhost_user::ring::Ring;
use vm_memory::{Bytes, GuestAddress, GuestMemory, Permissions};

/// Two regions with a gap between them: the ring and small things, and data.
const FIRST: u64 = 0x1_0000;
const SECOND: u64 = 0x4_0000;
const LEN: usize = 0x1_0000;

const TABLE: u64 = FIRST;
const AVAILABLE: u64 = FIRST + 0x1000;
const USED: u64 = FIRST + 0x2000;
const INDIRECT: u64 = FIRST + 0x3000;
const HEADERS: u64 = FIRST + 0x8000;

/// Bytes of the input that describe a descriptor.
const ENTRY: usize = 8;

thread_local! {
    static RAM: RefCell<GuestRam> = RefCell::new(
        GuestRam::from_ranges(&[(GuestAddress(FIRST), LEN), (GuestAddress(SECOND), LEN)]).unwrap(),
    );
}

fuzz_target!(|input: &[u8]| {
    RAM.with_borrow(|ram| play(ram, input));
});

/// The first bytes say how the ring is; then come descriptors, heads, and the bytes that headers
/// are made of.
fn play(ram: &GuestRam, input: &[u8]) {
    let [kind, offered, entries, rest @ ..] = input else { return };
    let (size, event_index) = (1_u16 << (kind & 7), kind & 8 != 0);
    let discards = kind & 16 != 0;
    for at in [FIRST, SECOND] {
        ram.write_slice(&[0; LEN], GuestAddress(at)).unwrap();
    }
    let (descriptors, rest) = rest.split_at(rest.len().min(ENTRY * usize::from(*entries)));
    let (table, indirect) = descriptors.split_at(descriptors.len().min(ENTRY * usize::from(size)));
    lay(ram, TABLE, table);
    lay(ram, INDIRECT, indirect);
    let (heads, headers) = rest.split_at(rest.len().min(usize::from(*offered)));
    for (slot, &head) in heads.iter().take(usize::from(size)).enumerate() {
        let at = GuestAddress(AVAILABLE + 4 + 2 * slot as u64);
        ram.write_slice(&u16::from(head).to_le_bytes(), at).unwrap();
    }
    ram.write_slice(&u16::from(*offered).to_le_bytes(), GuestAddress(AVAILABLE + 2)).unwrap();
    let headers = &headers[..headers.len().min(LEN / 2)];
    ram.write_slice(headers, GuestAddress(HEADERS)).unwrap();

    let places = [TABLE, AVAILABLE, USED].map(GuestAddress);
    let mut ring = Ring::new(ram, size, places, event_index).unwrap();
    let (mut chain, mut data) = (Vec::new(), Vec::new());
    let mut taken = 0;
    loop {
        match ring.take(ram) {
            // What was written over the ring by its own requests may offer more.
            Ok(Some(head)) if taken < 1024 => {
                taken += 1;
                if ring.follow(ram, head, &mut chain).is_err() {
                    break;
                }
                let Ok(request) = parse(ram, &mut chain, discards) else { break };
                answer(ram, &request, &chain, &mut data);
                if ring.put(ram, head, request.writable).is_err() {
                    break;
                }
            }
            Ok(_) | Err(_) => break,
        }
    }
    ring.publish(ram).unwrap();
    ring.wants_signal(ram).unwrap();
    assert!(!ring.wants_signal(ram).unwrap(), "nothing is new the second time");
    let _ = ring.listen(ram);
    let _ = ring.hush(ram);
}

/// Writes a table of descriptors whose addresses are mostly in guest memory.
fn lay(ram: &GuestRam, table: u64, described: &[u8]) {
    for (index, entry) in described.chunks_exact(ENTRY).enumerate() {
        let &[how, a, b, c, d, e, f, g] = entry else { unreachable!() };
        let near = u64::from(u16::from_le_bytes([a, b]));
        let at = match how & 7 {
            0 => HEADERS + near % (LEN as u64 / 2),
            1 => INDIRECT + near % 0x1000,
            2 | 3 => SECOND + near,
            4 => FIRST + near,
            5 => SECOND + LEN as u64 - near % 64,
            6 => u64::MAX - near,
            _ => near << 40,
        };
        let small = u32::from(u16::from_le_bytes([c, d]));
        let len = match how >> 3 & 7 {
            0 => 16,
            1 => 1,
            2 | 3 => small * 512,
            4 => small,
            5 => small * 16,
            6 => u32::MAX - small,
            _ => 0,
        };
        let flags = u16::from(e & 7) | u16::from(f) << 8 & 0xf000;
        let bytes = [&at.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &[g, 0]].concat();
        // A table longer than there is room for is cut short.
        let _ = ram.write_slice(&bytes, GuestAddress(table + 16 * index as u64));
    }
}

/// Does what the volume would, and checks what was made out.
fn answer(
    ram: &GuestRam,
    request: &Request,
    chain: &[underseal_export::vhost_user::chain::Segment],
    data: &mut Vec<u8>,
) {
    assert!(ram.check_range(request.status, 1, Permissions::Write));
    let total: u64 = chain.iter().map(|segment| u64::from(segment.len)).sum();
    match request.operation {
        Ok(Operation::Read { len, .. } | Operation::Write { len, .. }) => {
            assert!(u64::from(len) == total && len > 0 && len <= LONGEST && u64::from(len) % SECTOR == 0);
            let writes = matches!(request.operation, Ok(Operation::Read { .. }));
            assert!(chain.iter().all(|segment| segment.writable == writes));
            data.resize(len as usize, 0xaa);
            if writes {
                scatter(ram, chain, data).unwrap();
            } else {
                let mut rest = &mut data[..];
                for segment in chain {
                    let (now, later) = rest.split_at_mut(segment.len as usize);
                    ram.read_slice(now, segment.at).unwrap();
                    rest = later;
                }
            }
        }
        Ok(Operation::GetId) => {
            let _ = scatter(ram, chain, &[0x55; 20]);
        }
        Ok(Operation::Discard { len, .. } | Operation::WriteZeroes { len, .. }) => assert!(len % SECTOR == 0),
        Ok(Operation::Flush) | Err(_) => {}
    }
    ram.write_obj(0_u8, request.status).unwrap();
}
