//! A queue over devices of each kind, against a model of the disk.

#[path = "../../device/tests/server/mod.rs"]
mod server;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use server::{Behaviour, Server};
use underseal_cipher::{InOutBuf, Key, SectorCipher, SectorSize, build};
use underseal_datapath::{Completion, ErrorKind, Mapping, Queue, QueueOptions, Request};
use underseal_device::{
    Arena, Channel, DelayDevice, Delayed, Device, FileDevice, Geometry, NbdDevice, OpenOptions, RamDevice,
    StripeDevice, WindowDevice, Zones,
};
use underseal_device_lab::{Fault, FaultDevice, ModelDevice, Profile, RecorderDevice, Rule, ZonedDevice};
use underseal_nbd_protocol::TransmissionFlags as Flags;
use underseal_volume::{Segment, SegmentKind, Volume};

const SIZE: u64 = 1 << 20;
/// Where the volume's data begins on the device.
const LOWER: u64 = 64 << 10;

fn xts(fill: u8, sector: SectorSize) -> Arc<dyn SectorCipher> {
    let key = Key::new(&(0..64).map(|i| fill ^ i).collect::<Vec<u8>>()).unwrap();
    build(&"aes-xts-plain64".parse().unwrap(), &key, sector).unwrap()
}

fn null(sector: SectorSize) -> Arc<dyn SectorCipher> {
    build(&"cipher_null-ecb".parse().unwrap(), &Key::new(&[]).unwrap(), sector).unwrap()
}

fn segment(start: u64, len: u64, lower: u64, iv_offset: u64, cipher: Arc<dyn SectorCipher>) -> Segment {
    Segment::stored(start, len, lower, iv_offset, cipher)
}

/// Two segments under different keys, swapped on the device.
fn two_segments() -> Volume {
    let half = SIZE / 2;
    let (a, b) = (xts(1, SectorSize::S4096), xts(2, SectorSize::S512));
    Volume::new(vec![segment(0, half, LOWER + half, 0, a), segment(half, half, LOWER, 8, b)]).unwrap()
}

fn one_segment(cipher: Arc<dyn SectorCipher>) -> Volume {
    Volume::new(vec![segment(0, SIZE, LOWER, 0, cipher)]).unwrap()
}

fn queue(volume: Volume, device: Arc<dyn Device>) -> Queue {
    let mapping = Arc::new(Mapping::new(volume, device).unwrap());
    Queue::open(mapping, QueueOptions { depth: 8, max_request: 1 << 20 }).unwrap()
}

fn image(folder: &Path) -> PathBuf {
    let path = folder.join("image");
    File::create(&path).unwrap().set_len(LOWER + SIZE).unwrap();
    path
}

fn finish(queue: &mut Queue) -> Completion {
    loop {
        if let Some(completion) = queue.next_completion() {
            return completion;
        }
        queue.wait().unwrap();
    }
}

fn run(queue: &mut Queue, request: Request) -> Completion {
    queue.submit(7, request).expect("there is room");
    let completion = finish(queue);
    assert_eq!(completion.tag, 7);
    completion
}

fn write(queue: &mut Queue, offset: u64, bytes: &[u8], durable: bool) -> Completion {
    let mut data = queue.alloc(bytes.len()).unwrap();
    data.copy_from_slice(bytes);
    let mut completion = run(queue, Request::Write { offset, data, durable });
    queue.free(completion.buffer.take().unwrap());
    completion
}

fn read(queue: &mut Queue, offset: u64, len: usize) -> Vec<u8> {
    let completion = run(queue, Request::Read { offset, len });
    completion.result.unwrap();
    let buffer = completion.buffer.unwrap();
    let bytes = buffer.to_vec();
    queue.free(buffer);
    bytes
}

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(seed | 1) >> 3).to_le_bytes()[0]).collect()
}

/// A device that delays some requests.
fn delay(device: Arc<dyn Device>) -> Arc<dyn Device> {
    let after = |us| Delayed { device: device.clone(), delay: Duration::from_micros(us) };
    let reads = if device.geometry().memory_alignment > 1 { 0 } else { 20 };
    Arc::new(DelayDevice::new(after(reads), after(50), after(10)).unwrap())
}

/// The devices over which a queue must work in the same way.
fn devices(folder: &Path) -> Vec<(&'static str, Arc<dyn Device>)> {
    let file = |name: &str, direct| -> Arc<dyn Device> {
        let folder = folder.join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Arc::new(FileDevice::open(&image(&folder), OpenOptions { direct, ..Default::default() }).unwrap())
    };
    let ram = || -> Arc<dyn Device> { Arc::new(RamDevice::new(LOWER + SIZE)) };
    // A thousandth of the time: the order of events is the same.
    let model = |inner, profile: Profile| Arc::new(ModelDevice::new(inner, &profile.scaled(0.001)));
    let zones = Zones { size: LOWER, conventional: 1 << 10 };
    #[expect(clippy::cast_possible_truncation, reason = "a small volume")]
    let export = || Behaviour::plain((LOWER + SIZE) as usize);
    let pieces = vec![
        model(file("rotating", true), Profile::rotating_disk()) as Arc<dyn Device>,
        faulty(file("short", false)),
        Arc::new(RecorderDevice::new(ram(), 100)),
    ];
    vec![
        ("ram", ram()),
        ("cached", file("cached", false)),
        ("direct", file("direct", true)),
        ("rotating disk", model(ram(), Profile::rotating_disk())),
        ("rotating disk without scheduler", model(ram(), Profile::rotating_disk().without_scheduler())),
        ("SATA SSD", model(file("sata", true), Profile::sata_ssd())),
        ("NVMe", model(ram(), Profile::nvme())),
        ("stripe", Arc::new(StripeDevice::new(vec![ram(), ram()], 4096).unwrap())),
        ("window", Arc::new(WindowDevice::new(file("window", true), 0, LOWER + SIZE).unwrap())),
        ("delay", delay(ram())),
        ("delay of writes alone", delay(file("delay", true))),
        ("stripe of others", Arc::new(StripeDevice::new(pieces, 4096).unwrap())),
        ("conventional zones", Arc::new(ZonedDevice::new(file("zoned", true), zones, false).unwrap())),
        ("short transfers", faulty(ram())),
        ("recorder", Arc::new(RecorderDevice::new(faulty(file("recorder", true)), 100))),
        ("NBD", remote(Behaviour { pieces: Some(8192), reorders: true, ..export() })),
        ("NBD that breaks, on one connection", {
            let lacks = Flags::CAN_MULTI_CONN | Flags::SEND_FUA;
            remote(Behaviour { dies_after: Some(37), ..export().without(lacks) })
        }),
    ]
}

/// An NBD device, with its server.
struct Remote(NbdDevice, #[expect(dead_code, reason = "held")] Server);

impl Device for Remote {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn channel(&self, depth: u32) -> underseal_device::Result<Box<dyn Channel>> {
        self.0.channel(depth)
    }

    fn name(&self) -> &str {
        self.0.name()
    }
}

fn remote(behaviour: Behaviour) -> Arc<dyn Device> {
    let server = Server::start(behaviour);
    let device = NbdDevice::open(server.uri("&unflushed=trust").parse().unwrap(), false).unwrap();
    Arc::new(Remote(device, server))
}

/// Short transfers, delays, and a cache; every request succeeds in the end.
fn faulty(inner: Arc<dyn Device>) -> Arc<dyn Device> {
    let device = FaultDevice::with_volatile_cache(inner, 1, 4096);
    device.control().add(Rule::new(Fault::Delay(Duration::from_micros(50))).chance(0.1));
    device.control().add(Rule::new(Fault::Short).chance(0.5));
    Arc::new(device)
}

#[derive(Debug, Clone)]
enum Step {
    Write { at: usize, len: usize, durable: bool, in_place: bool, seed: u64 },
    Zeroes { at: usize, len: usize, durable: bool },
    Read { at: usize, len: usize },
    Flush,
}

/// Steps whose requests are multiples of `unit`, in bytes.
fn step(unit: usize) -> impl Strategy<Value = Step> {
    let all = (1 << 20) / unit;
    let range = move || {
        let range = (0..all - 1, 1..all / 6);
        range.prop_map(move |(at, len)| (at * unit, len.min(all - at) * unit))
    };
    prop_oneof![
        4 => (range(), any::<bool>(), any::<bool>(), any::<u64>())
            .prop_map(|((at, len), durable, in_place, seed)| Step::Write { at, len, durable, in_place, seed }),
        1 => (range(), any::<bool>()).prop_map(|((at, len), durable)| Step::Zeroes { at, len, durable }),
        4 => range().prop_map(|(at, len)| Step::Read { at, len }),
        1 => Just(Step::Flush),
    ]
}

/// Plays the steps on the volume's first [`SIZE`] bytes and on a copy in memory; the bytes of
/// `zeros` do not change.
fn behaves_as_a_disk(mut queue: Queue, zeros: std::ops::Range<usize>, steps: &[Step], name: &str) {
    let mut model = read(&mut queue, 0, 1 << 20);
    for step in steps {
        match *step {
            Step::Write { at, len, durable, in_place, seed } => {
                let mut data = bytes(len, seed);
                model[at..at + len].copy_from_slice(&data);
                if in_place {
                    queue.write_in_place(7, at as u64, &mut data, durable).unwrap();
                    let done = finish(&mut queue);
                    done.result.unwrap();
                    done.buffer.into_iter().for_each(|b| queue.free(b));
                } else {
                    write(&mut queue, at as u64, &data, durable).result.unwrap();
                }
            }
            Step::Zeroes { at, len, durable } => {
                model[at..at + len].fill(0);
                let (offset, len) = (at as u64, len as u64);
                let zeroes = Request::WriteZeroes { offset, len, durable, punch: true, fast: false };
                run(&mut queue, zeroes).result.unwrap();
            }
            Step::Read { at, len } => {
                assert_eq!(&read(&mut queue, at as u64, len)[..], &model[at..at + len], "{name}");
            }
            Step::Flush => run(&mut queue, Request::Flush).result.unwrap(),
        }
        model[zeros.clone()].fill(0);
    }
    assert!(read(&mut queue, 0, 1 << 20) == model, "{name}");
}

const QUARTER: u64 = SIZE / 4;

/// Encrypted, zero, unencrypted and differently encrypted segments over two devices; behind
/// [`SIZE`] every request fails.
fn mixed() -> Volume {
    let without = |start, len, kind| Segment { start, len, kind };
    Volume::new(vec![
        segment(0, QUARTER, LOWER, 0, xts(1, SectorSize::S4096)),
        without(QUARTER, QUARTER, SegmentKind::Zero),
        segment(2 * QUARTER, QUARTER, 0, 0, null(SectorSize::S512)).on_device(1),
        segment(3 * QUARTER, QUARTER, LOWER + QUARTER, 8, xts(2, SectorSize::S512)).on_device(1),
        without(SIZE, QUARTER, SegmentKind::Error),
    ])
    .unwrap()
}

fn mixed_queue(devices: Vec<Arc<dyn Device>>) -> Queue {
    let mapping = Arc::new(Mapping::over(mixed(), devices).unwrap());
    Queue::open(mapping, QueueOptions { depth: 8, max_request: 2 << 20 }).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn the_volume_behaves_as_a_disk(steps in prop::collection::vec(step(4096), 1..40)) {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for (name, device) in devices(folder.path()) {
            behaves_as_a_disk(queue(two_segments(), device), 0..0, &steps, name);
        }
    }

    #[test]
    fn any_bytes_are_written_with_the_sectors_around_them(steps in prop::collection::vec(step(1), 1..20)) {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for (name, device) in devices(folder.path()) {
            let mapping = Arc::new(Mapping::new(two_segments(), device).unwrap().with_bytes());
            let queue = Queue::open(mapping, QueueOptions { depth: 8, max_request: 1 << 20 }).unwrap();
            behaves_as_a_disk(queue, 0..0, &steps, name);
        }
    }

    #[test]
    fn segments_of_every_kind_on_several_devices_are_one_disk(steps in prop::collection::vec(step(4096), 1..40)) {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (quarter, devices) = (usize::try_from(QUARTER).unwrap(), devices(folder.path()));
        for (i, (name, first)) in devices.iter().enumerate() {
            let (second_name, second) = &devices[(i + 1) % devices.len()];
            let queue = mixed_queue(vec![first.clone(), second.clone()]);
            behaves_as_a_disk(queue, quarter..2 * quarter, &steps, &format!("{name}, {second_name}"));
        }
    }
}

#[test]
fn what_touches_an_error_segment_fails_and_nothing_else_does() {
    let ram = || Arc::new(RamDevice::new(LOWER + SIZE));
    let mut q = mixed_queue(vec![ram(), ram()]);
    let data = bytes(8192, 3);
    for (offset, fails) in [(SIZE, true), (SIZE - 4096, true), (SIZE - 8192, false)] {
        let outcome = |done: Completion| done.result.err().map(|e| e.kind());
        let expected = fails.then_some(ErrorKind::Lower);
        assert_eq!(outcome(write(&mut q, offset, &data, false)), expected, "{offset}");
        assert_eq!(outcome(write(&mut q, offset, &data, true)), expected, "{offset}");
        q.write_in_place(7, offset, &mut data.clone(), false).unwrap();
        assert_eq!(outcome(finish(&mut q)), expected, "{offset}");
        let done = run(&mut q, Request::Read { offset, len: 8192 });
        assert_eq!(done.result.err().map(|e| e.kind()), expected, "{offset}");
        q.free(done.buffer.expect("the memory comes back"));
        let zeroes = Request::WriteZeroes { offset, len: 8192, durable: true, punch: true, fast: false };
        if fails {
            assert_eq!(outcome(run(&mut q, zeroes)), expected, "{offset}");
        }
        assert_eq!(q.in_flight(), 0);
    }
    assert_eq!(read(&mut q, SIZE - 8192, 8192), data);
    run(&mut q, Request::Flush).result.unwrap();
}

#[test]
fn a_volume_without_any_device_reads_as_zeros() {
    let zero = Segment { start: 0, len: SIZE, kind: SegmentKind::Zero };
    let mapping = Arc::new(Mapping::over(Volume::new(vec![zero]).unwrap(), vec![]).unwrap());
    assert!(mapping.status(0, SIZE).is_some_and(|status| status.zero && status.len == SIZE));
    let mut q = Queue::open(mapping, QueueOptions::default()).unwrap();
    write(&mut q, 0, &[1; 4096], true).result.unwrap();
    run(&mut q, Request::Flush).result.unwrap();
    assert_eq!(read(&mut q, 0, 8192), [0; 8192]);
}

#[test]
fn ciphertext_lies_where_the_segments_say_under_their_iv_offsets() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = image(folder.path());
    let mut queue = queue(two_segments(), Arc::new(FileDevice::open(&path, OpenOptions::default()).unwrap()));
    let half = usize::try_from(SIZE / 2).unwrap();
    let plain = bytes(16384, 99);
    // A write across the border: the last two sectors of the first segment, the first of the
    // second.
    write(&mut queue, SIZE / 2 - 8192, &plain, true).result.unwrap();
    drop(queue);
    let disk = std::fs::read(&path).unwrap();
    let lower = usize::try_from(LOWER).unwrap();
    let mut expected = plain.clone();
    let (first, second) = expected.split_at_mut(8192);
    xts(1, SectorSize::S4096).encrypt((SIZE / 2 - 8192) >> 9, InOutBuf::from(first));
    xts(2, SectorSize::S512).encrypt(8, InOutBuf::from(second));
    assert_eq!(disk[lower + 2 * half - 8192..lower + 2 * half], expected[..8192]);
    assert_eq!(disk[lower..lower + 8192], expected[8192..]);
}

#[test]
fn bad_requests_fail_alone_and_by_kind() {
    let mut q = queue(one_segment(xts(1, SectorSize::S4096)), Arc::new(RamDevice::new(LOWER + SIZE)));
    for (offset, len, kind) in [
        (512, 4096, ErrorKind::Misaligned),
        (0, 512, ErrorKind::Misaligned),
        (0, 0, ErrorKind::Misaligned),
        (SIZE, 4096, ErrorKind::OutOfRange),
        (SIZE - 4096, 8192, ErrorKind::OutOfRange),
        (u64::MAX - 4095, 8192, ErrorKind::OutOfRange),
    ] {
        let failed = run(&mut q, Request::Read { offset, len });
        assert_eq!(failed.result.unwrap_err().kind(), kind, "{offset} + {len}");
        assert_eq!(q.in_flight(), 0);
    }
    let data = q.alloc(4096).unwrap();
    let failed = run(&mut q, Request::Write { offset: SIZE, data, durable: false });
    assert_eq!(failed.result.unwrap_err().kind(), ErrorKind::OutOfRange);
    q.free(failed.buffer.expect("the memory comes back"));
}

#[test]
fn a_read_only_volume_refuses_everything_that_writes() {
    let folder = tempfile::tempdir().unwrap();
    let options = OpenOptions { read_only: true, ..Default::default() };
    let device = FileDevice::open(&image(folder.path()), options).unwrap();
    let mut q = queue(one_segment(xts(1, SectorSize::S512)), Arc::new(device));
    assert_eq!(write(&mut q, 0, &[0; 512], false).result.unwrap_err().kind(), ErrorKind::ReadOnly);
    for request in [
        Request::Discard { offset: 0, len: 512, durable: false },
        Request::WriteZeroes { offset: 0, len: 512, durable: false, punch: false, fast: false },
    ] {
        assert_eq!(run(&mut q, request).result.unwrap_err().kind(), ErrorKind::ReadOnly);
    }
    run(&mut q, Request::Flush).result.unwrap();
}

#[test]
fn fast_zeroes_are_refused_under_a_cipher_and_punched_without_one() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = image(folder.path());
    let open = || Arc::new(FileDevice::open(&path, OpenOptions::default()).unwrap());
    let zeroes = || Request::WriteZeroes { offset: 0, len: 65536, durable: true, punch: true, fast: true };
    let mut encrypted = queue(one_segment(xts(1, SectorSize::S512)), open());
    assert_eq!(run(&mut encrypted, zeroes()).result.unwrap_err().kind(), ErrorKind::Unsupported);
    drop(encrypted);
    let device = open();
    let mapping = Arc::new(Mapping::new(one_segment(null(SectorSize::S512)), device).unwrap());
    let mut plain = Queue::open(mapping.clone(), QueueOptions::default()).unwrap();
    write(&mut plain, 0, &bytes(131_072, 5), false).result.unwrap();
    run(&mut plain, zeroes()).result.unwrap();
    assert_eq!(read(&mut plain, 0, 65536), vec![0; 65536]);
    let status = mapping.status(0, SIZE).unwrap();
    assert!(status.zero && status.hole, "{status:?}");
}

#[test]
fn a_read_fills_memory_of_the_exports_own_and_gives_it_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut arena = Arena::new(64 << 10).unwrap();
    for (name, device) in devices(folder.path()) {
        let mut queue = queue(two_segments(), device);
        let data = bytes(32 << 10, 77);
        // A write across both segments, and so in two pieces.
        let at = SIZE / 2 - (16 << 10);
        write(&mut queue, at, &data, false).result.unwrap();
        let mut own = arena.alloc(64 << 10).unwrap();
        own.fill(9);
        let rest = own.split_off(32 << 10);
        let completion = run(&mut queue, Request::ReadInto { offset: at, data: own });
        completion.result.unwrap();
        let mut own = completion.buffer.unwrap();
        assert!(own[..] == data[..], "{name}");
        own.join(rest);
        assert!(own.len() == 64 << 10 && own[32 << 10..].iter().all(|b| *b == 9), "{name}");
        // A refused request returns its memory, too.
        let rest = own.split_off(512);
        let refused = run(&mut queue, Request::ReadInto { offset: 0, data: own });
        assert_eq!(refused.result.unwrap_err().kind(), ErrorKind::Misaligned, "{name}");
        let mut own = refused.buffer.unwrap();
        own.join(rest);
        arena.free(own);
    }
}

#[test]
fn a_full_queue_gives_the_request_back_and_takes_it_later() {
    let mut q = queue(one_segment(xts(1, SectorSize::S512)), Arc::new(RamDevice::new(LOWER + SIZE)));
    // Twice the longest request is reserved: two fit, the third has to wait.
    for tag in 0..2 {
        q.submit(tag, Request::Read { offset: 0, len: 1 << 20 }).unwrap();
    }
    let refused = q.submit(2, Request::Read { offset: 0, len: 1 << 20 }).unwrap_err();
    let buffer = q.next_completion().unwrap().buffer.unwrap();
    q.free(buffer);
    q.submit(2, refused).unwrap();
    let mut data = [0; 512];
    assert!(q.write_in_place(3, 0, &mut data, false).is_err(), "no memory to go on with if it blocks");
}

#[test]
fn a_volume_that_does_not_fit_its_device_is_refused() {
    let error = |lower, size| {
        let volume = Volume::new(vec![segment(0, SIZE, lower, 0, null(SectorSize::S512))]).unwrap();
        Mapping::new(volume, Arc::new(RamDevice::new(size))).err().map(|e| e.kind())
    };
    assert_eq!(error(LOWER, LOWER + SIZE), None);
    assert_eq!(error(LOWER, LOWER + SIZE - 1), Some(ErrorKind::Layout));
}

/// Memory with requirements on alignment.
struct Particular(RamDevice);

impl Device for Particular {
    fn geometry(&self) -> Geometry {
        Geometry { memory_alignment: 4096, ..self.0.geometry() }
    }

    fn channel(&self, depth: u32) -> underseal_device::Result<Box<dyn Channel>> {
        self.0.channel(depth)
    }

    fn name(&self) -> &'static str {
        "particular"
    }
}

#[test]
fn a_device_gets_no_memory_that_it_cannot_take() {
    let over = |sector| {
        let device = Arc::new(Particular(RamDevice::new(LOWER + SIZE)));
        Mapping::new(one_segment(xts(1, sector)), device).err().map(|e| e.kind())
    };
    assert_eq!(over(SectorSize::S512), Some(ErrorKind::Layout));
    assert_eq!(over(SectorSize::S4096), None);
}

#[test]
fn a_queue_dropped_with_requests_in_flight_waits_for_them() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = image(folder.path());
    let options = OpenOptions { direct: true, ..Default::default() };
    let mut q =
        queue(one_segment(xts(1, SectorSize::S512)), Arc::new(FileDevice::open(&path, options).unwrap()));
    for tag in 0..8u64 {
        let mut data = q.alloc(4096).unwrap();
        data.fill(1);
        q.submit(tag, Request::Write { offset: tag * 4096, data, durable: false }).unwrap();
    }
    assert_eq!(q.in_flight(), 8);
    drop(q);
    let disk = std::fs::read(&path).unwrap();
    let lower = usize::try_from(LOWER).unwrap();
    for sector in disk[lower..lower + 32768].chunks(4096) {
        assert!(sector.iter().any(|&b| b != 0), "every write came down");
    }
}
