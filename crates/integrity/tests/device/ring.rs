//! Requests that wait in a ring, many at a time: over devices that are late, fail, and refuse.

use std::collections::HashMap;
use std::time::Instant;

use underseal_device::{Arena, Error, IoKind, monotonic};

use super::*;

/// Blocks whose tags fill 32 pages; 8 are in memory with the smallest cache.
const BLOCKS: u64 = 4000;
const BLOCK: usize = 512;
const HASH: &str = "sha256";
const DEPTH: u32 = 24;

/// A channel with many requests in flight, and a model of the blocks that only it writes.
struct Player {
    channel: Box<dyn Channel>,
    ring: Ring,
    arena: Arena,
    free: Vec<u32>,
    under_way: HashMap<u32, Played>,
    /// Each block's version; `None`: unknown.
    versions: Vec<Option<u64>>,
    dice: u64,
    /// The number of blocks that the player uses.
    span: u64,
    failed: u64,
    read: u64,
}

struct Played {
    first: u64,
    count: u64,
    version: Option<u64>,
}

impl Player {
    fn new(volume: &IntegrityDevice, seed: u64) -> Self {
        Self {
            channel: volume.channel(DEPTH).unwrap(),
            ring: Ring::new(DEPTH + 8).unwrap(),
            arena: Arena::new(4 << 20).unwrap(),
            free: (0..DEPTH).collect(),
            under_way: HashMap::new(),
            versions: vec![None; usize::try_from(BLOCKS).unwrap()],
            dice: seed,
            span: BLOCKS,
            failed: 0,
            read: 0,
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.dice >> 33) % bound
    }

    /// Sends a request for blocks without another request of this player in flight.
    fn act(&mut self, version: u64, writes: bool) {
        let count = 1 + self.below(9) / 2;
        let first = self.below(self.span - count);
        let meets = |p: &Played| p.first < first + count && first < p.first + p.count;
        if self.under_way.values().any(meets) {
            return;
        }
        let is_write = writes && self.below(2) == 0;
        self.submit(first, count, is_write.then_some(version));
    }

    fn submit(&mut self, first: u64, count: u64, version: Option<u64>) {
        while self.free.is_empty() {
            self.wait();
        }
        let slot = self.free.pop().unwrap();
        let len = usize::try_from(count).unwrap() * BLOCK;
        let (offset, range) = (first * BLOCK as u64, 0..len);
        let mut buffer = self.arena.alloc(len).unwrap();
        let io = if let Some(version) = version {
            let blocks = (first..).zip(buffer.chunks_exact_mut(BLOCK));
            blocks.for_each(|(number, bytes)| bytes.copy_from_slice(&block(BLOCK, number, version)));
            Io::Write { offset, buffer, range, durable: version.is_multiple_of(31) }
        } else {
            Io::Read { offset, buffer, range }
        };
        self.under_way.insert(slot, Played { first, count, version });
        if let Started::Finished(done) = self.channel.start(&mut self.ring, slot, io) {
            self.over(done);
        }
    }

    fn wait(&mut self) {
        self.ring.wait_until(Some(Instant::now() + underseal_testing::PATIENCE)).unwrap();
        let (mut over, mut some) = (Vec::new(), false);
        while let Some(completion) = self.ring.next_completion() {
            some = true;
            if completion.token.as_channel().is_some() {
                self.channel.woken(&mut self.ring, completion.token, completion.result, &mut over);
            } else {
                over.extend(self.channel.finish(&mut self.ring, completion.token, completion.result));
            }
        }
        assert!(some, "{} requests hang", self.under_way.len());
        over.into_iter().for_each(|done| self.over(done));
    }

    fn over(&mut self, done: Finished) {
        let Played { first, count, version } = self.under_way.remove(&done.slot).unwrap();
        let (buffer, blocks) = (done.buffer.unwrap(), first..first + count);
        match (done.result, version) {
            (Err(_), version) => {
                self.failed += 1;
                if version.is_some() {
                    blocks.for_each(|number| self.versions[usize::try_from(number).unwrap()] = None);
                }
            }
            (Ok(()), Some(_)) => {
                blocks.for_each(|number| self.versions[usize::try_from(number).unwrap()] = version);
            }
            (Ok(()), None) => {
                self.read += 1;
                for (number, bytes) in blocks.zip(buffer.chunks_exact(BLOCK)) {
                    if let Some(version) = self.versions[usize::try_from(number).unwrap()] {
                        assert!(
                            bytes == block(BLOCK, number, version),
                            "block {number} of version {version}"
                        );
                    }
                }
            }
        }
        self.arena.free(buffer);
        self.free.push(done.slot);
    }

    fn end(&mut self) {
        while !self.under_way.is_empty() {
            self.wait();
        }
    }

    /// Writes all blocks, and reads them.
    fn all(&mut self, version: u64) {
        self.end();
        for version in [Some(version), None] {
            (0..BLOCKS / 8).for_each(|number| self.submit(number * 8, 8, version));
            self.end();
        }
    }
}

fn late(device: Arc<dyn Device>) -> (Arc<FaultDevice>, Arc<underseal_device_lab::FaultControl>) {
    let faulty = Arc::new(FaultDevice::new(device, 5));
    let control = faulty.control();
    (faulty, control)
}

fn volume_on(device: Arc<dyn Device>, mode: WriteMode, tag_cache: usize) -> IntegrityDevice {
    let settings = RunSettings { tag_cache, workers: 2, journal_memory: 1 << 20, ..RunSettings::default() };
    IntegrityDevice::open(device, None, &options(mode, HASH), &settings).unwrap()
}

fn made(mode: WriteMode) -> Arc<dyn Device> {
    let below: Arc<dyn Device> = Arc::new(RamDevice::new(SIZE as u64));
    make(&*below, &options(mode, HASH), u32::try_from(BLOCK).unwrap(), None);
    let volume = volume_on(below.clone(), mode, 64 << 10);
    wait_until("tags are made anew", || volume.status().recalculated.is_none());
    volume.close().unwrap();
    below
}

const MODES: [WriteMode; 3] = [WriteMode::Direct, WriteMode::Bitmap, WriteMode::Journal];

#[test]
fn a_ring_full_of_requests_over_a_device_that_is_late_finds_what_it_wrote() {
    for (mode, tag_cache) in MODES.into_iter().flat_map(|mode| [(mode, 0), (mode, 1 << 20)]) {
        let below = made(mode);
        let (faulty, control) = late(below.clone());
        let volume = volume_on(faulty, mode, tag_cache);
        let delay = |micros| Rule::new(Fault::Delay(Duration::from_micros(micros)));
        control.add(delay(300).chance(0.3));
        control.add(delay(50).chance(0.8));
        control.add(Rule::new(Fault::Short).chance(0.2));
        let mut player = Player::new(&volume, 7);
        player.all(1);
        for version in 2..1500 {
            player.act(version, true);
            if version % 400 == 0 {
                volume.forget();
            }
        }
        player.end();
        assert!(player.failed == 0 && player.read > 300, "{mode:?}: {} read", player.read);
        let versions = player.versions.clone();
        drop(player);
        control.clear();
        volume.close().unwrap();
        drop(volume);
        let volume = volume_on(below, mode, tag_cache);
        let mut player = Player::new(&volume, 8);
        player.versions = versions;
        (0..BLOCKS / 8).for_each(|number| player.submit(number * 8, 8, None));
        player.end();
        assert_eq!((player.failed, volume.status().mismatches), (0, 0), "{mode:?}");
    }
}

#[test]
fn many_wait_at_a_time_however_few_threads_there_are() {
    let (faulty, control) = late(made(WriteMode::Direct));
    let volume = volume_on(faulty, WriteMode::Direct, 1 << 20);
    let mut player = Player::new(&volume, 7);
    player.all(1);
    let delay = Duration::from_millis(25);
    control.add(Rule::new(Fault::Delay(delay)));
    for version in [None, Some(2)] {
        let begun = monotonic();
        (0..u64::from(DEPTH)).for_each(|number| player.submit(number * 3, 1, version));
        player.end();
        let took = monotonic() - begun;
        assert!(took < delay * DEPTH / 2 / 2, "{took:?}, as if they had waited in threads");
    }
    assert_eq!(player.failed, 0);
}

#[test]
fn what_fails_below_is_told_and_keeps_nobody_from_the_blocks() {
    for mode in [WriteMode::Direct, WriteMode::Bitmap] {
        let (faulty, control) = late(made(mode));
        let volume = volume_on(faulty, mode, 0);
        let mut player = Player::new(&volume, 11);
        player.all(1);
        control.add(Rule::new(Fault::Delay(Duration::from_micros(80))).chance(0.6));
        control.add(Rule::new(Fault::EIO).on(IoKind::Read).chance(0.1));
        // The faults are in the range of the data: failures to write tags are final.
        let data = 2 << 20..SIZE as u64;
        control.add(Rule::new(Fault::EIO).on(IoKind::Write).within(data.clone()).chance(0.05));
        control.add(Rule::new(Fault::Torn).within(data).chance(0.05));
        for version in 2..800 {
            player.act(version, true);
        }
        player.end();
        assert!(player.failed > 20, "{}", player.failed);
        control.clear();
        let failed = player.failed;
        player.all(1000);
        assert_eq!(player.failed, failed, "{mode:?}");
    }
}

#[test]
fn what_is_in_the_journal_is_read_though_its_place_cannot_be() {
    let below = made(WriteMode::Journal);
    let volume = volume_on(below.clone(), WriteMode::Journal, 1 << 20);
    Player::new(&volume, 3).all(1);
    volume.close().unwrap();
    drop(volume);
    let mut all = vec![0; SIZE];
    Blocking::new(&*below).unwrap().read(0, &mut all).unwrap();
    let place = all.chunks(BLOCK).rposition(|bytes| bytes == block(BLOCK, 10, 1)).unwrap() * BLOCK;

    let (faulty, control) = late(below);
    let volume = volume_on(faulty, WriteMode::Journal, 1 << 20);
    let mut player = Player::new(&volume, 4);
    player.versions.fill(Some(1));
    player.submit(10, 1, Some(2));
    player.end();
    let unreadable = place as u64..(place + BLOCK) as u64;
    control.add(Rule::new(Fault::EIO).on(IoKind::Read).within(unreadable));
    player.submit(10, 1, None);
    player.submit(8, 5, None);
    player.end();
    assert_eq!((player.failed, player.read), (0, 2));
}

/// A device that refuses every second request, like a full ring.
struct Grudging(Arc<dyn Device>);

impl Device for Grudging {
    fn geometry(&self) -> underseal_device::Geometry {
        self.0.geometry()
    }

    fn channel(&self, depth: u32) -> underseal_device::Result<Box<dyn Channel>> {
        Ok(Box::new(GrudgingChannel(self.0.channel(depth)?, depth > 32, 0)))
    }

    fn name(&self) -> &str {
        self.0.name()
    }
}

/// A refusing channel, its state, and its number of requests.
struct GrudgingChannel(Box<dyn Channel>, bool, u64);

impl Channel for GrudgingChannel {
    fn read_now(&mut self, _offset: u64, _data: &mut [u8]) -> Immediate {
        Immediate::Blocked(0)
    }

    fn write_now(&mut self, _offset: u64, _data: &[u8]) -> Immediate {
        Immediate::Blocked(0)
    }

    fn start(&mut self, ring: &mut Ring, slot: u32, io: Io) -> Started {
        self.2 += 1;
        if self.1 && self.2 % 2 == 1 {
            let busy = Error::new(ErrorKind::Other, "no room").with_source(rustix::io::Errno::BUSY);
            return Started::Finished(Finished::of(slot, io, Err(busy)));
        }
        self.0.start(ring, slot, io)
    }

    fn finish(&mut self, ring: &mut Ring, token: RingToken, result: i32) -> Option<Finished> {
        self.0.finish(ring, token, result)
    }

    fn woken(&mut self, ring: &mut Ring, token: RingToken, result: i32, over: &mut Vec<Finished>) {
        self.0.woken(ring, token, result, over);
    }
}

#[test]
fn what_the_ring_has_no_room_for_is_started_again() {
    for mode in MODES {
        let volume = volume_on(Arc::new(Grudging(made(mode))), mode, 0);
        let mut player = Player::new(&volume, 3);
        player.all(1);
        (2..400).for_each(|version| player.act(version, true));
        player.end();
        assert_eq!((player.failed, volume.status().mismatches), (0, 0), "{mode:?}");
    }
}

#[test]
fn readers_meet_no_half_of_a_write_of_another_queue() {
    for (mode, tag_cache) in MODES.into_iter().flat_map(|mode| [(mode, 0), (mode, 1 << 20)]) {
        let (faulty, control) = late(made(mode));
        let volume = volume_on(faulty, mode, tag_cache);
        control.add(Rule::new(Fault::Delay(Duration::from_micros(60))).chance(0.5));
        Player::new(&volume, 1).all(1);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let volume = &volume;
                scope.spawn(move || {
                    let mut player = Player::new(volume, thread);
                    player.span = 100;
                    for version in 0..600 {
                        player.act(version * 3 + thread, true);
                        // The versions that other players wrote meanwhile are unknown.
                        player.versions.fill(None);
                    }
                    player.end();
                    assert_eq!(player.failed, 0, "{mode:?}");
                });
            }
        });
        assert_eq!(volume.status().mismatches, 0);
        volume.close().unwrap();
    }
}

/// The number of bytes without valid tags, if the volume stops now.
fn unverified(below: &dyn Device) -> u64 {
    let mut now = vec![0; SIZE];
    Blocking::new(below).unwrap().read(0, &mut now).unwrap();
    let copy = RamDevice::new(SIZE as u64);
    Blocking::new(&copy).unwrap().write(0, &now, false).unwrap();
    let options = options(WriteMode::Bitmap, HASH);
    IntegrityDevice::open_to_read(Arc::new(copy), None, &options, &RunSettings::default())
        .unwrap()
        .unverified()
}

#[test]
fn a_region_is_marked_while_a_write_is_in_the_ring_and_not_for_ever() {
    let below = made(WriteMode::Bitmap);
    let (faulty, control) = late(below.clone());
    let bitmap_time = Duration::from_millis(300);
    let settings = RunSettings { bitmap_time, ..RunSettings::default() };
    let volume = IntegrityDevice::open(faulty, None, &options(WriteMode::Bitmap, HASH), &settings).unwrap();
    let mut player = Player::new(&volume, 13);
    control.add(Rule::new(Fault::Delay(Duration::from_micros(200))).on(IoKind::Write));
    loop {
        // The first write goes to a thread, which writes the bit. The next goes through the ring,
        // if the bit is still set.
        let begun = monotonic();
        player.submit(0, 4, Some(1));
        player.end();
        player.submit(0, 4, Some(2));
        if monotonic() - begun < bitmap_time / 2 {
            break;
        }
        player.end();
    }
    // The write stays in the ring during several sweeps of the bits.
    let end = Instant::now() + Duration::from_millis(2500);
    while Instant::now() < end {
        assert!(unverified(&*below) > 0, "the tags are not below");
        std::thread::sleep(Duration::from_millis(100));
    }
    player.end();
    control.add(Rule::new(Fault::EIO).on(IoKind::Write).within(2 << 20..SIZE as u64).chance(0.1));
    (3..200).for_each(|version| player.act(version, true));
    player.end();
    assert!(player.failed > 0);
    control.clear();
    wait_until("the bits go", || unverified(&*below) == 0);
}
