//! Many simultaneous requests on stacks of devices, compared with a plain copy in memory.

#[path = "../../device/tests/queue/mod.rs"]
mod queue;
#[path = "../../device/tests/server/mod.rs"]
mod server;

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use queue::Queue;
use server::{Behaviour, Server};
use underseal_device::{
    Blocking, Channel, Device, ErrorKind, FileDevice, Io, IoKind, NbdDevice, OpenOptions, RamDevice,
    RbdDevice, StripeDevice, Zones,
};
use underseal_device_lab::{
    Fault, FaultDevice, Medium, ModelDevice, Profile, RecorderDevice, Rule, ZonedDevice,
};
use underseal_nbd_protocol::TransmissionFlags as Flags;
use underseal_testing::skip;

const SIZE: usize = 512 << 10;
const BLOCK: usize = 4096;
const DEPTH: u32 = 8;

fn ram() -> Arc<dyn Device> {
    Arc::new(RamDevice::new(SIZE as u64))
}

fn file(folder: &Path, name: &str, direct: bool) -> Arc<dyn Device> {
    let path = folder.join(name);
    File::create(&path).unwrap().set_len(SIZE as u64).unwrap();
    Arc::new(FileDevice::open(&path, OpenOptions { direct, ..Default::default() }).unwrap())
}

fn model(inner: Arc<dyn Device>, profile: Profile) -> Arc<dyn Device> {
    Arc::new(ModelDevice::new(inner, &profile.scaled(0.001)))
}

fn short(inner: Arc<dyn Device>) -> Arc<dyn Device> {
    let device = FaultDevice::with_volatile_cache(inner, 11, 4096);
    device.control().add(Rule::new(Fault::Delay(Duration::from_micros(100))).chance(0.2));
    device.control().add(Rule::new(Fault::Short).chance(0.5));
    Arc::new(device)
}

fn stripe(members: Vec<Arc<dyn Device>>, chunk: u64) -> Arc<dyn Device> {
    Arc::new(StripeDevice::new(members, chunk).unwrap())
}

/// Servers outlive the devices on top of them.
struct Remote {
    device: NbdDevice,
    _server: Server,
}

impl Device for Remote {
    fn geometry(&self) -> underseal_device::Geometry {
        self.device.geometry()
    }

    fn channel(&self, depth: u32) -> underseal_device::Result<Box<dyn Channel>> {
        self.device.channel(depth)
    }

    fn name(&self) -> &str {
        self.device.name()
    }
}

fn remote(behaviour: Behaviour) -> Arc<dyn Device> {
    let server = Server::start(behaviour);
    let device = NbdDevice::open(server.uri("&unflushed=trust").parse().unwrap(), false).unwrap();
    Arc::new(Remote { device, _server: server })
}

/// Returns servers of all kinds that a client must support.
fn remotes() -> Vec<(&'static str, Arc<dyn Device>)> {
    let plain = || Behaviour::plain(SIZE);
    let single = || plain().without(Flags::CAN_MULTI_CONN);
    vec![
        ("NBD", remote(plain())),
        ("NBD, one connection", remote(Behaviour { reorders: true, ..single() })),
        ("NBD, simple replies", remote(Behaviour { structured: false, ..plain().without(Flags::SEND_FUA) })),
        (
            "NBD in pieces",
            remote(Behaviour { pieces: Some(4096), blocks: Some([4096, 8192, 12_288]), ..plain() }),
        ),
        ("NBD that breaks", remote(Behaviour { dies_after: Some(61), reorders: true, ..plain() })),
        (
            "NBD that breaks, one connection",
            remote(Behaviour { dies_after: Some(47), ..single().without(Flags::SEND_FUA) }),
        ),
        (
            "stripe of NBD",
            stripe(vec![remote(plain()), remote(Behaviour { reorders: true, ..single() })], 8192),
        ),
        ("model of NBD", model(remote(single()), Profile::nvme())),
    ]
}

fn devices(folder: &Path) -> Vec<(&'static str, Arc<dyn Device>)> {
    let zones = Zones { size: 65_536, conventional: 64 };
    let rotating = |name| model(file(folder, name, true), Profile::rotating_disk());
    let quick = || model(ram(), Profile::nvme());
    let mut devices = vec![
        ("rotating", rotating("rotating")),
        ("rotating, plain", model(ram(), Profile::rotating_disk().without_scheduler())),
        ("SSD", model(ram(), Profile::sata_ssd())),
        (
            "stripe of files",
            stripe((0..3).map(|i| file(folder, &format!("member {i}"), true)).collect(), 4096),
        ),
        (
            "stripe of stripes",
            stripe(vec![stripe(vec![quick(), short(ram())], 8192), rotating("striped")], 16_384),
        ),
        ("short", short(file(folder, "short", false))),
        ("zoned", Arc::new(ZonedDevice::new(short(ram()), zones, true).unwrap())),
        ("recorder", Arc::new(RecorderDevice::new(stripe(vec![short(quick()), quick()], 4096), 1 << 10))),
    ];
    devices.extend(remotes());
    devices
}

#[derive(Debug, Clone, Copy)]
enum What {
    Read,
    Write { durable: bool },
    Zero,
    Flush,
    Prefetch,
}

fn what() -> impl Strategy<Value = What> {
    prop_oneof![
        4 => Just(What::Read),
        6 => any::<bool>().prop_map(|durable| What::Write { durable }),
        1 => Just(What::Zero),
        1 => Just(What::Flush),
        1 => Just(What::Prefetch),
    ]
}

/// Returns simultaneous requests; each has its own part of the device.
fn batch() -> impl Strategy<Value = Vec<(What, usize, usize)>> {
    prop::collection::vec((what(), 0usize..15, 1usize..16), DEPTH as usize).prop_map(|requests| {
        let part = SIZE / BLOCK / DEPTH as usize;
        let place = |(i, (what, at, len)): (usize, (What, usize, usize))| {
            (what, (i * part + at) * BLOCK, len.min(part - at) * BLOCK)
        };
        requests.into_iter().enumerate().map(place).collect()
    })
}

fn play(device: &dyn Device, batches: &[Vec<(What, usize, usize)>], name: &str) {
    let mut queue = Queue::new(device, DEPTH);
    let mut model = vec![0u8; SIZE];
    for (number, batch) in (1u8..).zip(batches) {
        // The buffer's bytes before and behind the range must stay.
        let around = BLOCK;
        for (slot, &(what, at, len)) in (0u32..).zip(batch) {
            let offset = at as u64;
            let mut buffer = || {
                let mut buffer = queue.arena.alloc(len + 2 * around).unwrap();
                buffer.fill(number);
                (buffer, around..around + len)
            };
            let io = match what {
                What::Read => {
                    let (buffer, range) = buffer();
                    Io::Read { offset, buffer, range }
                }
                What::Write { durable } => {
                    let (mut buffer, range) = buffer();
                    buffer[range.clone()]
                        .iter_mut()
                        .zip(0u32..)
                        .for_each(|(b, i)| *b = number ^ i.to_le_bytes()[1]);
                    model[at..at + len].copy_from_slice(&buffer[range.clone()]);
                    Io::Write { offset, buffer, range, durable }
                }
                What::Zero => {
                    model[at..at + len].fill(0);
                    Io::Zero { offset, len: len as u64, punch: true }
                }
                What::Flush => Io::Flush,
                What::Prefetch => Io::Prefetch { offset, len: len as u64 },
            };
            queue.start(slot, io);
        }
        let mut over = queue.drain();
        over.sort_by_key(|done| done.slot);
        assert!(over.iter().map(|done| done.slot).eq(0..DEPTH), "{name}: each request ends once");
        for (done, &(what, at, len)) in over.into_iter().zip(batch) {
            done.result.unwrap();
            assert_eq!(done.buffer.is_some(), matches!(what, What::Read | What::Write { .. }), "{name}");
            let Some(buffer) = done.buffer else { continue };
            let (before, rest) = buffer.split_at(around);
            let (inside, behind) = rest.split_at(len);
            assert!(inside == &model[at..at + len], "{name}: {what:?} at {at} + {len}");
            assert!(before.iter().chain(behind).all(|&b| b == number), "{name}: {what:?} at {at} + {len}");
            queue.arena.free(buffer);
        }
    }
    let mut now = vec![0; SIZE];
    Blocking::new(device).unwrap().read(0, &mut now).unwrap();
    assert!(now == model, "{name}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn requests_in_flight_together_are_each_done_once(batches in prop::collection::vec(batch(), 1..8)) {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for (name, device) in devices(folder.path()) {
            play(&*device, &batches, name);
        }
    }
}

#[test]
fn several_queues_share_a_device() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for (name, device) in devices(folder.path()) {
        share(&*device, name);
    }
}

fn share(device: &dyn Device, name: &str) {
    std::thread::scope(|scope| {
        for part in 0..4usize {
            scope.spawn(move || {
                let mut io = Blocking::new(device).unwrap();
                let quarter = SIZE / 4;
                let at = |i: usize| (part * quarter + i * 8192 % quarter) as u64;
                for i in 0..24usize {
                    let fill = i.to_le_bytes()[0] + 1;
                    io.write(at(i), &[fill; 8192], i % 5 == 0).unwrap();
                    let mut back = [0; 8192];
                    io.read(at(i), &mut back).unwrap();
                    assert_eq!(back, [fill; 8192], "{name}");
                    if i % 7 == 0 {
                        io.flush().unwrap();
                    }
                }
            });
        }
    });
}

/// An image on the given cluster, removed at the end.
struct Clustered {
    device: Option<RbdDevice>,
    conf: String,
    name: String,
}

impl Clustered {
    fn new(name: &str) -> Option<Self> {
        let Ok(conf) = std::env::var("UNDERSEAL_TEST_CEPH_CONF") else {
            skip("a Ceph cluster", "UNDERSEAL_TEST_CEPH_CONF does not name the configuration of one");
            return None;
        };
        let mut this = Self { device: None, conf, name: format!("rbd/{name}-{}", std::process::id()) };
        this.rbd(&["create", "--size", &format!("{SIZE}B"), &this.name]);
        this.device = Some(this.open().unwrap());
        Some(this)
    }

    fn open(&self) -> underseal_device::Result<RbdDevice> {
        RbdDevice::open(&format!("rbd:{}:conf={}", self.name, self.conf).parse()?, false, None)
    }

    fn rbd(&self, args: &[&str]) {
        let done = Command::new("rbd").args(["--conf", &self.conf]).args(args).output();
        let done = done.expect("apt-get install ceph-common");
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

impl Drop for Clustered {
    fn drop(&mut self) {
        self.device = None;
        let rm = ["--conf", &self.conf, "rm", "--no-progress", &self.name];
        let _ = Command::new("rbd").args(rm).output();
    }
}

#[test]
fn an_image_on_a_cluster_keeps_the_same_laws() {
    let Some(image) = Clustered::new("laws") else { return };
    let device = image.device.as_ref().unwrap();
    let laws = |batches: Vec<_>| {
        Blocking::new(device).unwrap().zero(0, SIZE as u64).unwrap();
        play(device, &batches, "RBD");
        Ok(())
    };
    let config = ProptestConfig { source_file: Some(file!()), ..ProptestConfig::with_cases(24) };
    TestRunner::new(config).run(&prop::collection::vec(batch(), 1..8), laws).unwrap();
    share(device, "RBD");
    assert_eq!(image.open().err().map(|e| e.kind()), Some(ErrorKind::Locked));
}

/// A queue that is dropped with requests in progress leaves them their memory.
#[test]
fn requests_on_a_cluster_outlive_their_queue() {
    let Some(image) = Clustered::new("queues") else { return };
    let device = image.device.as_ref().unwrap();
    for round in 0..50u8 {
        let mut queue = Queue::new(device, DEPTH);
        for slot in 0..DEPTH {
            let mut buffer = queue.arena.alloc(65_536).unwrap();
            buffer.fill(round);
            let offset = u64::from(slot) * 65_536;
            queue.start(
                slot,
                match slot % 2 {
                    0 => Io::Write { offset, buffer, range: 0..65_536, durable: false },
                    _ => Io::Read { offset, buffer, range: 0..65_536 },
                },
            );
        }
        drop(queue);
    }
    let mut now = vec![0; 65_536];
    let mut io = Blocking::new(device).unwrap();
    io.flush().unwrap();
    io.read(0, &mut now).unwrap();
    assert!(now.iter().all(|byte| *byte == now[0]), "whole writes, and nobody else's memory");
}

#[test]
fn a_stripes_request_fails_with_its_first_error_and_gives_its_memory_back() {
    let faults = FaultDevice::new(ram(), 1);
    let control = faults.control();
    let device = stripe(vec![ram(), model(Arc::new(faults), Profile::nvme())], 4096);
    let mut queue = Queue::new(&*device, DEPTH);
    control.add(Rule::new(Fault::Error(28)).on(IoKind::Write).within(8192..12_288));
    for durable in [false, true] {
        let mut buffer = queue.arena.alloc(128 << 10).unwrap();
        buffer.fill(5);
        queue.start(3, Io::Write { offset: 0, buffer, range: 0..128 << 10, durable });
        let done = queue.drain().pop().unwrap();
        assert_eq!(done.result.unwrap_err().errno(), Some(28));
        let buffer = done.buffer.expect("the memory comes back");
        assert_eq!(&buffer[..], vec![5; 128 << 10]);
        queue.arena.free(buffer);
    }
    control.clear();
    control.add(Rule::new(Fault::EIO).on(IoKind::Flush));
    assert!(Blocking::new(&*device).unwrap().flush().is_err(), "every member is flushed");
}

#[test]
fn what_is_in_flight_when_the_power_is_cut_fails() {
    // Longer than a busy machine delays this thread.
    let mut profile = Profile::nvme();
    if let Medium::Flash(flash) = &mut profile.medium {
        flash.read_latency = Duration::from_secs(2);
    }
    let slow = ModelDevice::new(ram(), &profile);
    let faults = FaultDevice::with_volatile_cache(Arc::new(slow), 3, 4096);
    let control = faults.control();
    let mut queue = Queue::new(&faults, DEPTH);
    for slot in 0..4 {
        let mut buffer = queue.arena.alloc(4096).unwrap();
        buffer.fill(1);
        let offset = u64::from(slot) * 4096;
        queue.start(slot, Io::Write { offset, buffer, range: 0..4096, durable: false });
    }
    assert_eq!(queue.in_flight, 4);
    control.power_cut().unwrap();
    let over = queue.drain();
    assert_eq!(over.len(), 4);
    for done in over {
        assert_eq!(done.result.unwrap_err().errno(), Some(5));
        queue.arena.free(done.buffer.expect("the memory comes back"));
    }
    control.power_on();
    Blocking::new(&faults).unwrap().flush().unwrap();
    assert_eq!(control.unflushed(), 0);
}

#[test]
fn writes_that_are_waited_for_together_are_all_there_and_a_failure_is_told() {
    let faults = FaultDevice::new(ram(), 4);
    let control = faults.control();
    let mut io = Blocking::deep(&faults, DEPTH).unwrap();
    let bytes: Vec<u8> = (0_u32..).flat_map(u32::to_le_bytes).take(SIZE).collect();
    // The last first; one is longer than a request, and their number exceeds the queue's depth.
    let big = SIZE - (300 << 10);
    let small = bytes[..big].chunks(BLOCK).enumerate().map(|(n, part)| ((n * BLOCK) as u64, part));
    let parts: Vec<_> = small.rev().chain([(big as u64, &bytes[big..])]).collect();
    control.add(Rule::new(Fault::Delay(Duration::from_micros(200))).chance(0.5));
    control.add(Rule::new(Fault::Error(28)).on(IoKind::Write).within(8192..12_288));
    assert_eq!(io.write_all(parts.clone()).unwrap_err().errno(), Some(28));
    control.clear();
    io.write(0, &vec![0; SIZE], false).unwrap();
    control.add(Rule::new(Fault::Delay(Duration::from_micros(200))).chance(0.5));
    io.write_all(parts).unwrap();
    let mut now = vec![0; SIZE];
    io.read(0, &mut now).unwrap();
    assert!(now == bytes, "each is where it belongs");
}
