//! A disk that another process takes over, under the hands of the machine that has it.

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use underseal_export::control::{self as wire, Asking, Given, Heard, Line, PROTOCOL, Reply, Request};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo};
use virtio_driver::VirtioFeatureFlags;

use crate::control::operator::Operator;
use crate::support::scratch::assert_same;
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::volume::{Volume, text};
use crate::support::{bytes, seed};
use crate::vhost_user::disk::{Ask, Disk};
use crate::vhost_user::front::{FLUSH, Front, IN, OUT, RING, SLOTS, USED, data};
use crate::vhost_user::resize::{capacity, is_told};

const OK: u8 = 0;

/// A driver notices less than this, on a busy machine too: far more than it takes.
const PAUSE: Duration = Duration::from_secs(5);

/// A new server, up to the offer, once no other one takes the volume.
fn taker(operator: &Operator) -> (Line, Heard<Given>) {
    let mut line = None;
    wait_until("nobody else takes over", PATIENCE, || {
        let mut client = wire::Client::connect(&operator.directory().join("image.sock"), PATIENCE).unwrap();
        line = match client.ask(&Request::HandOver { protocol: PROTOCOL }, None, PATIENCE).unwrap() {
            Reply::Refused(refusal) => {
                assert!(refusal.message.contains("just now"), "{refusal:?}");
                None
            }
            _ => Some(client.into_line().unwrap()),
        };
        line.is_some()
    });
    let line = line.unwrap();
    line.send(&Asking::Begin, &[], &[], soon()).unwrap();
    let heard = line.receive::<Given>(soon()).unwrap();
    assert!(matches!(heard.message, Given::Offer(_)), "{heard:?}");
    line.read(&mut vec![0; usize::try_from(heard.bytes).unwrap()], soon()).unwrap();
    (line, heard)
}

/// The number of the front end's descriptors that a paused server hands over, none without a front
/// end.
fn at_rest(line: &Line) -> Option<usize> {
    line.send(&Asking::Ready, &[], &[], soon()).unwrap();
    let heard = line.receive::<Given>(soon()).unwrap();
    assert!(matches!(heard.message, Given::Rests(0)), "{heard:?}");
    let heard = line.receive::<Given>(soon()).unwrap();
    let Given::Machine(agreed) = heard.message else { panic!("{heard:?}") };
    let wanted = agreed?.descriptors;
    let mut came = 0;
    while came < wanted {
        let heard = line.receive::<Given>(soon()).unwrap();
        assert!(matches!(heard.message, Given::Descriptors), "{heard:?}");
        came += heard.fds.len();
    }
    assert_eq!(came, wanted);
    Some(wanted)
}

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// Upgrades `times` times, each after 60 more requests.
fn upgrades(operator: &Operator, times: usize, count: &AtomicU64, ends: &AtomicBool) {
    let busy = || {
        let before = count.load(Ordering::Relaxed);
        wait_until("the disk is used", PATIENCE, || count.load(Ordering::Relaxed) > before + 60);
    };
    for _ in 0..times {
        busy();
        let before = operator.pid();
        operator.does("upgrade image");
        assert_ne!(operator.pid(), before);
    }
    busy();
    ends.store(true, Ordering::Relaxed);
}

/// Ends what waits for it, also when a test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_front_end_stays_while_new_processes_take_over() {
    const LEN: usize = 32 << 10;
    let operator = Operator::new();
    let socket = operator.scratch.path("vm");
    let log = operator.scratch.path("log");
    let options = ["--hand-over", "--vhost-user", text(&socket), "--log-file", text(&log)];
    let (volume, mut server) = operator.open(&options);
    let mut random = fastrand::Rng::with_seed(seed("a_front_end_stays_while_new_processes_take_over"));
    let mut front = Front::connect(&socket);
    let (ends, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let place = |slot: usize| (slot * LEN / 512) as u64;
    // Each slot writes, flushes and reads its block in a loop.
    let mut slots: Vec<(u64, u32, Instant)> = vec![(0, IN, Instant::now()); SLOTS];
    let mut longest = Duration::ZERO;
    thread::scope(|scope| {
        let upgrades = scope.spawn(|| {
            let _ends = Ends(&ends);
            upgrades(&operator, 6, &count, &ends);
        });
        for (slot, (seed, kind, since)) in slots.iter_mut().enumerate() {
            (*seed, *kind, *since) = (random.u64(..), OUT, Instant::now());
            front.put(data(slot), &bytes(*seed, LEN));
            front.ask(slot, OUT, place(slot), LEN);
        }
        let mut under_way = SLOTS;
        while under_way > 0 {
            let (head, _) = front.next();
            let slot = usize::from(head) / 3;
            let (seed, kind, since) = &mut slots[slot];
            assert_eq!(front.status(slot), OK, "{kind}");
            longest = longest.max(since.elapsed());
            count.fetch_add(1, Ordering::Relaxed);
            *since = Instant::now();
            match *kind {
                OUT => {
                    *kind = FLUSH;
                    front.ask(slot, FLUSH, 0, 0);
                }
                FLUSH => {
                    *kind = IN;
                    front.put(data(slot), &[0; LEN]);
                    front.ask(slot, IN, place(slot), LEN);
                }
                _ => {
                    assert_same(&front.get(data(slot), LEN), &bytes(*seed, LEN), "what was written");
                    if ends.load(Ordering::Relaxed) {
                        under_way -= 1;
                        continue;
                    }
                    (*seed, *kind) = (random.u64(..), OUT);
                    front.put(data(slot), &bytes(*seed, LEN));
                    front.ask(slot, OUT, place(slot), LEN);
                }
            }
        }
        upgrades.join().unwrap();
    });
    eprintln!("a request took {longest:?} at most, through 7 processes");
    assert!(longest < PAUSE, "{longest:?}");
    assert_eq!(front.take(), None, "answered twice");
    assert!(front.error.read().is_err(), "no ring stopped");
    assert!(server.wait().success(), "{}", server.log());
    assert_eq!(front.does(FLUSH, 0, 0), OK);
    drop(front);
    operator.does("close image");
    assert!(!socket.exists());
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(log.contains("handed over") && !log.contains("refused") && !log.contains("ERROR"), "{log}");
    for (slot, (seed, ..)) in slots.iter().enumerate() {
        assert_same(&volume.read((slot * LEN) as u64, LEN), &bytes(*seed, LEN), "the image");
    }
}

/// Writes and reads on each of several rings, some requests at a time; all are answered, in less
/// than a pause.
fn load(disk: &mut Disk, rings: usize, seed: u64, ends: &AtomicBool, count: &AtomicU64) -> Duration {
    const LEN: usize = 16 << 10;
    const DEEP: usize = 4;
    let mut longest = Duration::ZERO;
    let mut round = 0;
    let at = |ring: usize, deep: usize| (ring * DEEP + deep) * LEN;
    while !ends.load(Ordering::Relaxed) {
        round += 1;
        let filled = |ring, deep| bytes(seed ^ round ^ (at(ring, deep) as u64) << 20, LEN);
        for reads in [false, true] {
            let begun = Instant::now();
            let mut asked = VecDeque::new();
            for ring in 0..rings {
                for deep in 0..DEEP {
                    let (at, offset) = (at(ring, deep), at(ring, deep) as u64);
                    disk.put(at, &if reads { vec![0; LEN] } else { filled(ring, deep) });
                    let ask = if reads {
                        Ask::Read { offset, at, len: LEN }
                    } else {
                        Ask::Write { offset, at, len: LEN }
                    };
                    disk.submit(ring, deep, ask);
                    asked.push_back(ring);
                }
            }
            while let Some(ring) = asked.pop_front() {
                assert_eq!(disk.next(ring).1, 0, "ring {ring}");
                count.fetch_add(1, Ordering::Relaxed);
            }
            longest = longest.max(begun.elapsed());
            for (ring, deep) in (0..rings).flat_map(|ring| (0..DEEP).map(move |deep| (ring, deep))) {
                assert_same(&disk.get(at(ring, deep), LEN), &filled(ring, deep), "what was written");
            }
        }
    }
    longest
}

#[test]
fn many_rings_stay_with_and_without_event_indices() {
    // The second case has more descriptors than one message takes.
    let flavours = [(8, VirtioFeatureFlags::RING_EVENT_IDX), (40, VirtioFeatureFlags::empty())];
    for (rings, features) in flavours {
        let operator = Operator::new();
        let socket = operator.scratch.path("vm");
        let queues = rings.to_string();
        let options = ["--hand-over", "--vhost-user", text(&socket), "--vhost-user-queues", &queues];
        let (_volume, mut server) = operator.open(&options);
        let mut disk = Disk::connect_with(&socket, rings, features);
        let (ends, count) = (AtomicBool::new(false), AtomicU64::new(0));
        let longest = thread::scope(|scope| {
            let upgrades = scope.spawn(|| {
                let _ends = Ends(&ends);
                upgrades(&operator, 6, &count, &ends);
            });
            let longest = load(&mut disk, rings, seed("many_rings"), &ends, &count);
            upgrades.join().unwrap();
            longest
        });
        eprintln!("four requests on each of {rings} rings took {longest:?} at most, through 7 processes");
        assert!(longest < PAUSE, "{longest:?}");
        assert!(server.wait().success(), "{}", server.log());
        drop(disk);
        operator.does("close image");
    }
}

#[test]
fn rings_go_on_when_nobody_takes_them() {
    let operator = Operator::new();
    let socket = operator.scratch.path("vm");
    let (_volume, server) = operator.open(&["--hand-over", "--vhost-user", text(&socket)]);
    let mut front = Front::connect(&socket);
    for round in 0..3_u8 {
        front.put(data(0), &[round + 1; 4096]);
        assert_eq!(front.does(OUT, 0, 4096), OK);
        // Something is under way when it begins.
        for slot in 1..SLOTS {
            front.ask(slot, IN, 2048 * slot as u64, 1 << 20);
        }
        let (line, offer) = taker(&operator);
        // The socket, the memory to track requests with, guest memory, three of the ring.
        assert_eq!(at_rest(&line), Some(6));
        let mut answered: Vec<_> = std::iter::from_fn(|| front.take()).collect();
        let next = front.u16_at(USED + 2);
        // Requests and messages that arrive during the pause wait.
        front.ask(0, IN, 0, 4096);
        let link = front.link.clone();
        let call = front.call.try_clone().unwrap();
        let says = thread::spawn(move || link.set_vring_call(0, &call).unwrap());
        thread::sleep(Duration::from_millis(100));
        assert_eq!(front.u16_at(USED + 2), next, "a ring at rest answers nothing");
        assert!(!says.is_finished());
        if round == 2 {
            // A new server that hangs.
            let begun = Instant::now();
            answered.push(front.next());
            eprintln!("a process that hung kept a request waiting for {:?}", begun.elapsed());
            line.take().unwrap_err();
        }
        drop((line, offer));
        while answered.len() < SLOTS {
            answered.push(front.next());
        }
        says.join().unwrap();
        let mut heads: Vec<_> = answered.into_iter().map(|(head, _)| usize::from(head)).collect();
        heads.sort_unstable();
        assert_eq!(heads, (0..SLOTS).map(|slot| 3 * slot).collect::<Vec<_>>(), "each is answered once");
        assert!((0..SLOTS).all(|slot| front.status(slot) == OK));
        assert_eq!(front.get(data(0), 4096), [round + 1; 4096]);
        assert_eq!(operator.pid(), server.id());
    }
    // A ring that is stopped and started anew is as it was, too.
    let base = front.link.get_vring_base(0).unwrap();
    front.start_ring(base.try_into().unwrap()).unwrap();
    assert_eq!(front.does(FLUSH, 0, 0), OK);
    // A server that is signalled meanwhile ends.
    let (line, offer) = taker(&operator);
    assert_eq!(at_rest(&line), Some(6));
    server.stop();
    line.take().unwrap_err();
    drop((line, offer, front));
}

#[test]
fn a_ring_at_rest_is_not_touched() {
    let operator = Operator::new();
    let socket = operator.scratch.path("vm");
    let (_volume, server) = operator.open(&["--hand-over", "--vhost-user", text(&socket)]);
    for connect in [Front::connect, Front::connect_with_flags] {
        let mut front = connect(&socket);
        assert_eq!(front.does(FLUSH, 0, 0), OK);
        wait_until("it wants to be kicked", PATIENCE, || front.u16_at(USED) == 0);
        let (line, offer) = taker(&operator);
        assert!(at_rest(&line).is_some());
        let used = |front: &Front| front.get(USED, 6 + 8 * usize::from(RING));
        let before = used(&front);
        let _ = front.call.read();
        let head = front.lay(0, FLUSH, 0, 0);
        front.offer(head);
        thread::sleep(Duration::from_millis(200));
        assert_eq!(used(&front), before);
        assert_eq!(front.kick.read().unwrap(), 1, "the next process would have to hear it");
        assert!(front.call.read().is_err());
        drop((line, offer));
        // The ring continues without a kick, since the kick was taken away.
        assert_eq!(front.next().0, head);
        assert_eq!(front.does(FLUSH, 0, 0), OK);
    }
    server.stop();
}

#[test]
fn who_stops_in_the_middle_of_a_message_or_takes_memory_away_is_in_the_way() {
    use std::io::Write;
    use std::os::fd::{AsRawFd, BorrowedFd};
    let operator = Operator::new();
    let socket = operator.scratch.path("vm");
    let (_volume, server) = operator.open(&["--hand-over", "--vhost-user", text(&socket)]);
    let mut front = Front::connect(&socket);
    // SAFETY: the front end's socket is open for as long as `front` is.
    let raw = unsafe { BorrowedFd::borrow_raw(front.link.as_raw_fd()) };
    let mut raw = UnixStream::from(raw.try_clone_to_owned().unwrap());
    let message = [1_u32, 1, 0].map(u32::to_ne_bytes).concat();
    raw.write_all(&message[..5]).unwrap();
    operator.is_refused("upgrade image", 1, "does not come to rest");
    assert_eq!(operator.pid(), server.id());
    assert_eq!(front.does(FLUSH, 0, 0), OK);
    raw.write_all(&message[5..]).unwrap();
    let mut reply = [0; 20];
    std::io::Read::read_exact(&mut raw, &mut reply).unwrap();
    // A message that the server has not read yet goes over with the socket.
    operator.does("upgrade image");
    assert_eq!(front.does(FLUSH, 0, 0), OK);
    assert!(front.link.get_features().is_ok());
    front.cut(0);
    front.kick.write(1).unwrap();
    let before = operator.pid();
    operator.is_refused("upgrade image", 6, "its file ends before");
    assert_eq!(operator.pid(), before);
    drop((front, raw));
    assert_eq!(Front::connect(&socket).does(FLUSH, 0, 0), OK);
    // A front end that has hung up delays no upgrade, whatever is left to read.
    for _ in 0..4 {
        let mut gone = UnixStream::connect(&socket).unwrap();
        gone.write_all(&message.repeat(500)).unwrap();
        drop(gone);
        operator.does("upgrade image");
    }
    assert_eq!(Front::connect(&socket).does(FLUSH, 0, 0), OK);
    operator.does("close image");
}

#[test]
fn everything_that_was_agreed_goes_on() {
    let operator = Operator::new();
    let socket = operator.scratch.path("vm");
    let (_volume, server) = operator.open(&["--hand-over", "--vhost-user", text(&socket)]);
    // No front end is connected yet.
    operator.does("upgrade image");
    assert!(!operator.status("image")["addresses"].to_string().is_empty());
    // A front end that has only asked for features.
    let link = Frontend::connect(&socket, 1).unwrap();
    link.get_features().unwrap();
    operator.does("upgrade image");
    link.get_features().unwrap();
    drop(link);
    let mut front = Front::connect(&socket);
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    front.link.set_backend_request_fd(&theirs).unwrap();
    drop(theirs);
    front.put(data(0), &[7; 4096]);
    assert_eq!(front.does(OUT, 0, 4096), OK);
    for _ in 0..2 {
        operator.does("upgrade image");
        assert_eq!(front.does(IN, 0, 4096), OK);
    }
    // Memory that the front end says to have elsewhere now: the ring is where it was.
    let region = front.region();
    let elsewhere = region.userspace_addr + (1 << 40);
    front.link.set_mem_table(&[VhostUserMemoryRegionInfo { userspace_addr: elsewhere, ..region }]).unwrap();
    for _ in 0..2 {
        assert_eq!(front.does(IN, 0, 4096), OK);
        operator.does("upgrade image");
    }
    // The server takes messages, answers those that want it, and reports another size.
    assert!(!is_told(&mut ours, Duration::from_millis(100)));
    operator.does("resize image --size 16M");
    assert!(is_told(&mut ours, PATIENCE));
    assert_eq!(capacity(&mut front.link), 16 << 20);
    operator.does("upgrade image");
    assert_eq!(capacity(&mut front.link), 16 << 20);
    front.share_memory().unwrap();
    front.link.set_vring_call(0, &front.call).unwrap();
    front.link.set_vring_enable(0, false).unwrap();
    operator.does("upgrade image");
    front.ask(0, IN, 0, 4096);
    thread::sleep(Duration::from_millis(300));
    assert_eq!(front.take(), None, "a ring that is not enabled is not served");
    front.link.set_vring_enable(0, true).unwrap();
    assert_eq!(front.next().0, 0);
    assert_eq!(front.get(data(0), 4096), [7; 4096]);
    // A ring that made no sense stays so, until it is described anew.
    front.offer(9999);
    assert!(front.is_told_of_an_error());
    operator.does("upgrade image");
    let base = front.link.get_vring_base(0).unwrap();
    let used = front.u16_at(USED + 2);
    assert_eq!(u32::from(used), base, "what made no sense was not taken");
    drop(front);
    // The next one comes to the process that is there then, while it is suspended none does.
    assert_eq!(Front::connect(&socket).does(FLUSH, 0, 0), OK);
    operator.does("suspend image");
    operator.is_refused("upgrade image", 1, "suspended");
    operator.does("resume image");
    operator.does("close image");
    assert!(!socket.exists());
    drop(server);
}

#[test]
fn a_disk_that_is_only_read_stays_so() {
    let operator = Operator::new();
    let socket = operator.scratch.path("vm");
    let volume = Volume::luks2(&operator.scratch, "48M");
    let server = operator.serve(&volume, &["--hand-over", "--read-only", "--vhost-user", text(&socket)]);
    let mut disk = Disk::connect(&socket, 2);
    let noise = disk.read(0, 4096).unwrap();
    operator.does("upgrade image");
    assert_eq!(disk.read(0, 4096).unwrap(), noise);
    assert!(disk.has(virtio_driver::VirtioBlkFeatureFlags::RO));
    assert_ne!(disk.write(0, &[1; 4096]), 0);
    assert_eq!(disk.read(0, 4096).unwrap(), noise);
    drop(disk);
    operator.does("close image");
    drop(server);
}

#[test]
fn who_leaves_meanwhile_makes_room() {
    let operator = Operator::new();
    let socket = operator.scratch.path("vm");
    let (_volume, server) = operator.open(&["--hand-over", "--vhost-user", text(&socket)]);
    for upgraded in [false, true] {
        let mut front = Front::connect(&socket);
        front.ask(0, IN, 0, 4096);
        let (line, offer) = taker(&operator);
        assert!(at_rest(&line).is_some());
        drop(front);
        drop((line, offer));
        if upgraded {
            operator.does("upgrade image");
        }
        assert_eq!(Front::connect(&socket).does(FLUSH, 0, 0), OK);
    }
    for round in 0..8 {
        let front = Front::connect(&socket);
        let upgrade = operator.command("upgrade image").stdout(Stdio::null()).spawn();
        thread::sleep(Duration::from_millis(8 * round));
        drop(front);
        let mut next = Front::connect(&socket);
        assert_eq!(next.does(FLUSH, 0, 0), OK);
        assert!(upgrade.unwrap().wait().unwrap().success());
        assert_eq!(next.does(FLUSH, 0, 0), OK);
    }
    operator.does("close image");
    drop(server);
}
