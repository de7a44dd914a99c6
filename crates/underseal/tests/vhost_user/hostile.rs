//! Drivers that break the rules, and front ends that disconnect. The server survives all of them,
//! and serves the next front end.

use std::sync::mpsc;
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use vhost::VhostBackend;
use vmm_sys_util::eventfd::EventFd;

use crate::control::operator::Operator;
use crate::support::tools::{PATIENCE, wait_until, within};
use crate::support::volume::{Volume, text};
use crate::support::{Scratch, Server};
use crate::vhost_user::disk::{Disk, serve};
use crate::vhost_user::front::{
    AVAILABLE, FLUSH, Front, GET_ID, GUEST, IN, INDIRECT, MEMORY, NEXT, OUT, RING, SPARE, USED, WRITE, data,
    descriptor, guest, request,
};

const OK: u8 = 0;
const IO_ERROR: u8 = 1;
const UNSUPPORTED: u8 = 2;

/// The outcome of a chain.
#[derive(Debug, Clone, Copy)]
enum Fate {
    /// The chain is answered with this status.
    Answered(u8),
    /// The chain's ring is stopped, and the log has this reason.
    Stopped(&'static str),
}
use Fate::{Answered, Stopped};

/// Where the header and the status of hand-made chains are.
const HEADER: usize = SPARE;
const STATUS: usize = SPARE + 16;

/// A descriptor: where, how long, flags, next.
type Entry = (u64, u32, u16, u16);

/// A header of `kind`, `middle`, and a place for the status.
fn around(front: &Front, kind: u32, middle: &[Entry]) {
    front.put(HEADER, &request(kind, 0));
    front.put(STATUS, &[0xee]);
    front.describe(0, guest(HEADER), 16, NEXT, 1);
    for (index, &(at, len, flags, next)) in (1..).zip(middle) {
        front.describe(index, at, len, flags, next);
    }
    let last = u16::try_from(middle.len() + 1).unwrap();
    front.describe(last, guest(STATUS), 1, WRITE, 0);
}

/// Lays an indirect table of these entries, and a chain of it alone.
fn indirect(front: &Front, entries: &[Entry], len: u32) {
    front.put(HEADER, &request(IN, 0));
    front.put(STATUS, &[0xee]);
    let table: Vec<u8> =
        entries.iter().flat_map(|&(at, len, flags, next)| descriptor(at, len, flags, next)).collect();
    front.put(data(1), &table);
    front.describe(0, guest(data(1)), len, INDIRECT, 0);
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn chains_that_make_no_sense() {
    let end = GUEST + MEMORY as u64;
    let at = guest(data(0));
    let header = (guest(HEADER), 16, NEXT, 1);
    let status = (guest(STATUS), 1, WRITE, 0);
    type Lay = Box<dyn Fn(&Front)>;
    let chain = |kind, middle: Vec<Entry>| -> Lay { Box::new(move |front| around(front, kind, &middle)) };
    let table = |entries: Vec<Entry>, len: usize| -> Lay {
        Box::new(move |front| indirect(front, &entries, u32::try_from(len).unwrap()))
    };
    let lone = |entries: Vec<Entry>| -> Lay {
        Box::new(move |front| {
            around(front, IN, &[]);
            for (index, &(at, len, flags, next)) in (0..).zip(&entries) {
                front.describe(index, at, len, flags, next);
            }
        })
    };
    let table_of: Vec<(&str, Lay, Fate)> = vec![
        ("a read beyond guest memory", chain(IN, vec![(end, 4096, NEXT | WRITE, 2)]), Answered(IO_ERROR)),
        ("a read across its end", chain(IN, vec![(end - 512, 4096, NEXT | WRITE, 2)]), Answered(IO_ERROR)),
        (
            "a read at the end of all addresses",
            chain(IN, vec![(u64::MAX - 511, 4096, NEXT | WRITE, 2)]),
            Answered(IO_ERROR),
        ),
        ("a read at address 0", chain(IN, vec![(0, 4096, NEXT | WRITE, 2)]), Answered(IO_ERROR)),
        ("a write from beyond", chain(OUT, vec![(end, 4096, NEXT, 2)]), Answered(IO_ERROR)),
        (
            "a read of nearly 4 GiB",
            chain(IN, vec![(at, u32::MAX - 4095, NEXT | WRITE, 2)]),
            Answered(IO_ERROR),
        ),
        (
            "a read longer than what is allowed",
            chain(IN, vec![(at, 24 << 20, NEXT | WRITE, 2), (at, 24 << 20, NEXT | WRITE, 3)]),
            Answered(IO_ERROR),
        ),
        ("a read into memory to read", chain(IN, vec![(at, 4096, NEXT, 2)]), Answered(IO_ERROR)),
        ("a write out of memory to write", chain(OUT, vec![(at, 4096, NEXT | WRITE, 2)]), Answered(IO_ERROR)),
        ("a read of nothing", chain(IN, vec![]), Answered(IO_ERROR)),
        ("a write of nothing", chain(OUT, vec![(at, 0, NEXT, 2)]), Answered(IO_ERROR)),
        ("a read of odd length", chain(IN, vec![(at, 4097, NEXT | WRITE, 2)]), Answered(IO_ERROR)),
        ("an unknown kind", chain(77, vec![]), Answered(UNSUPPORTED)),
        ("a discard that was not offered", chain(11, vec![(at, 16, NEXT, 2)]), Answered(UNSUPPORTED)),
        ("zeroes without a range", chain(13, vec![]), Answered(IO_ERROR)),
        ("zeroes with half a range", chain(13, vec![(at, 8, NEXT, 2)]), Answered(IO_ERROR)),
        ("zeroes with two ranges", chain(13, vec![(at, 32, NEXT, 2)]), Answered(IO_ERROR)),
        ("a flush with data is a flush", chain(FLUSH, vec![(at, 4096, NEXT, 2)]), Answered(OK)),
        (
            "empty descriptors between",
            chain(IN, vec![(end, 0, NEXT, 2), (at, 4096, NEXT | WRITE, 3)]),
            Answered(OK),
        ),
        (
            "the same memory twice",
            chain(IN, vec![(at, 4096, NEXT | WRITE, 2), (at, 4096, NEXT | WRITE, 3)]),
            Answered(OK),
        ),
        ("data over the ring itself", chain(OUT, vec![(guest(0), 4096, NEXT, 2)]), Answered(OK)),
        ("a name longer than there is room for", chain(GET_ID, vec![(at, 3, NEXT | WRITE, 2)]), Answered(OK)),
        ("a name beyond guest memory", chain(GET_ID, vec![(end, 20, NEXT | WRITE, 2)]), Answered(IO_ERROR)),
        ("a loop", lone(vec![(guest(HEADER), 16, NEXT, 0)]), Stopped("a loop")),
        (
            "a loop of two",
            lone(vec![header, (at, 512, NEXT | WRITE, 2), (at, 512, NEXT | WRITE, 1)]),
            Stopped("a loop"),
        ),
        (
            "a next beyond the table",
            lone(vec![(guest(HEADER), 16, NEXT, RING)]),
            Stopped("goes on at descriptor 64"),
        ),
        (
            "memory to read after memory to write",
            lone(vec![(at, 512, NEXT | WRITE, 1), (guest(HEADER), 16, 0, 0)]),
            Stopped("comes after"),
        ),
        ("no status", lone(vec![(guest(HEADER), 16, 0, 0)]), Stopped("no place for the status")),
        (
            "a status beyond guest memory",
            lone(vec![header, (end, 1, WRITE, 0)]),
            Stopped("no place for the status"),
        ),
        ("no header", lone(vec![status]), Stopped("no request header")),
        ("half a header", lone(vec![(guest(HEADER), 8, NEXT, 1), status]), Stopped("no request header")),
        (
            "a header beyond guest memory",
            lone(vec![(end, 16, NEXT, 1), status]),
            Stopped("no request header"),
        ),
        ("nothing at all", lone(vec![(guest(HEADER), 0, 0, 0)]), Stopped("no place for the status")),
        (
            "more than 4 GiB",
            lone(vec![(guest(HEADER), 16, NEXT, 1), (at, u32::MAX, NEXT | WRITE, 2), status]),
            Stopped("4 GiB"),
        ),
        ("an indirect request", table(vec![header, (at, 4096, NEXT | WRITE, 2), status], 48), Answered(OK)),
        (
            "a header in two parts",
            table(
                vec![
                    (guest(HEADER), 6, NEXT, 1),
                    (guest(HEADER) + 6, 10, NEXT, 2),
                    (at, 4096, NEXT | WRITE, 3),
                    status,
                ],
                64,
            ),
            Answered(OK),
        ),
        (
            "a status behind the data",
            table(vec![header, (guest(STATUS) - 4096, 4097, WRITE, 0)], 32),
            Answered(OK),
        ),
        ("an empty indirect table", table(vec![], 0), Stopped("indirect table of 0")),
        ("an indirect table and a half", table(vec![header, status], 24), Stopped("indirect table of 24")),
        (
            "an indirect table of 4 GiB",
            table(vec![header, status], 0xffff_fff0),
            Stopped("indirect table of"),
        ),
        (
            "an indirect table of a whole ring's rings",
            table(vec![header, status], 16 * 4096),
            Stopped("indirect table of"),
        ),
        (
            "an indirect table in itself",
            table(vec![(guest(data(1)), 16, INDIRECT, 0)], 16),
            Stopped("within an indirect table"),
        ),
        ("a next beyond the indirect table", table(vec![header], 16), Stopped("goes on at descriptor 1")),
        (
            "a loop in an indirect table",
            table(vec![header, (at, 512, WRITE | NEXT, 1)], 32),
            Stopped("a loop"),
        ),
        (
            "an indirect table beyond guest memory",
            Box::new(move |front| front.describe(0, end, 32, INDIRECT, 0)),
            Stopped("not in guest memory"),
        ),
    ];

    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let (server, socket) = serve(&volume, &[]);
    for (what, lay, fate) in table_of {
        eprintln!("{what}");
        let mut front = Front::connect(&socket);
        lay(&front);
        front.offer(0);
        match fate {
            Answered(status) => {
                assert_eq!(front.next().0, 0, "{what}");
                assert_eq!(front.get(STATUS, 1), [status], "{what}");
                assert_eq!(front.does(FLUSH, 0, 0), OK, "after {what}");
            }
            Stopped(why) => {
                assert!(front.is_told_of_an_error(), "{what}");
                assert!(server.log().contains(why), "{what}: {why}\n{}", server.log());
                // Stopped and started again, as a driver does that resets its device, it is as good
                // as new.
                let base = front.link.get_vring_base(0).unwrap();
                assert_eq!(base, 1, "{what}: the chain was taken");
            }
        }
    }
    still_serves(&server, &socket);
    server.stop();
}

pub(crate) fn still_serves(server: &Server, socket: &std::path::Path) {
    let mut disk = Disk::connect(socket, 1);
    assert_eq!(disk.write(0, &[9; 4096]), 0, "{}", server.log());
    assert_eq!(disk.read(0, 4096).unwrap(), [9; 4096]);
}

#[test]
fn rings_that_make_no_sense() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let (server, socket) = serve(&volume, &[]);

    let mut front = Front::connect(&socket);
    front.store_u16(AVAILABLE + 2, RING + 1);
    front.kick.write(1).unwrap();
    assert!(front.is_told_of_an_error());
    assert!(server.log().contains("65 chains are offered"), "{}", server.log());
    drop(front);

    let mut front = Front::connect(&socket);
    front.offer(RING);
    assert!(front.is_told_of_an_error());
    assert!(server.log().contains("begins at descriptor 64"), "{}", server.log());
    drop(front);

    still_serves(&server, &socket);
    server.stop();
}

#[test]
fn a_ring_that_breaks_over_requests_under_way_ends_with_its_front_end() {
    let operator = Operator::new();
    let socket = operator.scratch.path("vm");
    let (_, server) = operator.open(&["--vhost-user", text(&socket)]);
    let mut front = Front::connect(&socket);
    assert_eq!(front.does(FLUSH, 0, 0), OK);
    operator.does("suspend image");
    for slot in 0..4 {
        front.ask(slot, IN, 8 * slot as u64, 4096);
    }
    let taken = || operator.status("image")["in_flight"].as_u64().unwrap() == 4;
    wait_until("all are taken", PATIENCE, taken);
    front.offer(RING);
    assert!(front.is_told_of_an_error());
    drop(front);
    // The requests end only once the front end has gone.
    operator.does("resume image");
    still_serves(&server, &socket);
    server.stop();
}

/// Lays an indirect table at `at`, of a request of `kind` whose header and status lie behind it.
fn lay_indirect(front: &Front, at: usize, kind: u32, middle: &[Entry]) {
    let (header, status) = (at + 0x200, at + 0x300);
    front.put(header, &request(kind, 0));
    let first = (guest(header), 16, NEXT, 1);
    let last = (guest(status), 1, WRITE, 0);
    let entries = std::iter::once(first).chain(middle.iter().copied()).chain([last]);
    let table: Vec<u8> =
        entries.flat_map(|(at, len, flags, next)| descriptor(at, len, flags, next)).collect();
    front.put(at, &table);
}

#[test]
fn what_is_refused_is_given_back_as_soon_as_what_is_served() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let (server, socket) = serve(&volume, &[]);
    let front = Front::connect(&socket);
    lay_indirect(&front, data(1), 77, &[]);
    for head in 0..RING {
        // The last chain breaks the ring, so all heads that are shown by then were handed over
        // before.
        let len = if head == RING - 1 { 24 } else { 32 };
        front.describe(head, guest(data(1)), len, INDIRECT, 0);
        front.store_u16(AVAILABLE + 4 + 2 * usize::from(head), head);
    }
    front.store_u16(AVAILABLE + 2, RING);
    front.kick.write(1).unwrap();
    assert!(within(PATIENCE, || front.error.read().is_ok()));
    assert_eq!(front.u16_at(USED + 2), 48, "in batches of 16");
    drop(front);
    still_serves(&server, &socket);
    server.stop();
}

/// Lays a ring that never rests, without a driver: the last of its chains reads a block that says
/// how many chains are offered next, and which block is read then; it is read into the ring itself.
/// The others are refused.
fn lay_a_mill(server: &Server, socket: &std::path::Path) -> Front {
    const TURNS: u64 = 65536 / RING as u64;
    let front = Front::connect(socket);
    let blocks = (0..TURNS).flat_map(|turn| {
        let offered = u16::try_from((turn + 2) * u64::from(RING) % 65536).unwrap();
        let mut block = vec![0; 4096];
        block[..2].copy_from_slice(&offered.to_le_bytes());
        block[2..10].copy_from_slice(&((turn + 1) % TURNS * 8).to_le_bytes());
        block
    });
    let blocks: Vec<u8> = blocks.collect();
    let mut nbd = crate::support::nbd::Client::connect(&server.socket()).unwrap();
    nbd.write(0, &blocks).unwrap();
    drop(nbd);
    lay_indirect(&front, data(1), 77, &[]);
    let (turn, rest) = (guest(data(2) + 0x200 + 8), guest(data(3)));
    let read = [
        (guest(AVAILABLE + 2), 2, NEXT | WRITE, 2),
        (turn, 8, NEXT | WRITE, 3),
        (rest, 4086, NEXT | WRITE, 4),
    ];
    lay_indirect(&front, data(2), IN, &read);
    for head in 0..RING {
        let (table, len) = if head == RING - 1 { (data(2), 80) } else { (data(1), 32) };
        front.describe(head, guest(table), len, INDIRECT, 0);
        front.store_u16(AVAILABLE + 4 + 2 * usize::from(head), head);
    }
    front.store_u16(AVAILABLE + 2, RING);
    front.kick.write(1).unwrap();
    // The ring has gone around more than once.
    let used = || front.u16_at(USED + 2);
    wait_until("the mill turns", PATIENCE, || used() > 3 * RING);
    front
}

/// Kills a server that makes a test wait for too long, so that a hang becomes a failure.
fn alarm(server: &Server) -> mpsc::Sender<()> {
    let (over, is_over) = mpsc::channel();
    let server = Pid::from_raw(i32::try_from(server.id()).unwrap()).unwrap();
    thread::spawn(move || {
        if is_over.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
            let _ = kill_process(server, Signal::KILL);
        }
    });
    over
}

#[test]
fn a_driver_that_never_rests_keeps_nobody_waiting() {
    // Requests are done as they are taken, or all together after that.
    for policy in ["inline", "adaptive"] {
        let scratch = Scratch::new();
        let volume = Volume::luks2(&scratch, "48M");
        let (server, socket) = serve(&volume, &["--policy", policy]);
        let mill = |server: &Server| lay_a_mill(server, &socket);
        let mut front = mill(&server);
        let _alarm = alarm(&server);
        front.share_memory().unwrap();
        let before = front.u16_at(USED + 2);
        let turns = || front.u16_at(USED + 2) != before;
        wait_until("it turns in its new memory", PATIENCE, turns);
        let base = front.link.get_vring_base(0).unwrap();
        assert_eq!(base, u32::from(front.u16_at(USED + 2)), "{policy}: what was taken is answered");
        drop(front);
        // The front end disconnects without stopping its ring.
        drop(mill(&server));
        still_serves(&server, &socket);
        // The server ends while it turns.
        front = mill(&server);
        server.stop();
        drop(front);
    }
}

#[test]
fn a_front_end_whose_counter_is_full_keeps_nobody_waiting() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let (server, socket) = serve(&volume, &[]);
    let full = || {
        // A counter at its limit, which makes writers wait.
        let call = EventFd::new(0).unwrap();
        call.write(u64::MAX - 1).unwrap();
        Front::connect_with(&socket, call)
    };
    let mut front = full();
    front.put(data(0), &[7; 4096]);
    assert_eq!(front.does(OUT, 0, 4096), OK);
    assert_eq!(front.does(FLUSH, 0, 0), OK, "the ring goes on");
    let alarm = alarm(&server);
    assert_eq!(front.link.get_vring_base(0).unwrap(), 2);
    drop(alarm);
    drop(front);
    // A front end that dies with requests in flight makes room for another.
    let mut front = full();
    front.ask(0, FLUSH, 0, 0);
    drop(front);
    still_serves(&server, &socket);
    let mut front = full();
    front.put(data(0), &[8; 4096]);
    assert_eq!(front.does(OUT, 8, 4096), OK);
    // The last flush comes, and the server ends.
    server.stop();
    drop(front);
    assert_eq!(volume.read(4096, 4096), [8; 4096]);
}
