//! Volumes on devices that take only whole blocks, or no writes.

use super::*;

/// A device that takes whole blocks only, or no writes.
pub(super) struct Strict {
    pub(super) inner: Arc<dyn Device>,
    pub(super) block: u32,
    pub(super) read_only: bool,
}

impl Device for Strict {
    fn geometry(&self) -> Geometry {
        Geometry { block: self.block, read_only: self.read_only, ..self.inner.geometry() }
    }

    fn channel(&self, depth: u32) -> underseal_device::Result<Box<dyn Channel>> {
        let inner = self.inner.channel(depth)?;
        Ok(Box::new(StrictChannel { inner, block: self.block.into(), read_only: self.read_only }))
    }

    fn name(&self) -> &str {
        self.inner.name()
    }
}

struct StrictChannel {
    inner: Box<dyn Channel>,
    block: u64,
    read_only: bool,
}

impl StrictChannel {
    fn check(&self, offset: u64, len: usize) {
        assert!(
            offset.is_multiple_of(self.block) && (len as u64).is_multiple_of(self.block),
            "{len} bytes at {offset}"
        );
    }
}

impl Channel for StrictChannel {
    fn read_now(&mut self, offset: u64, data: &mut [u8]) -> Immediate {
        self.check(offset, data.len());
        self.inner.read_now(offset, data)
    }

    fn write_now(&mut self, offset: u64, data: &[u8]) -> Immediate {
        self.check(offset, data.len());
        assert!(!self.read_only, "a write to {offset}");
        self.inner.write_now(offset, data)
    }

    fn start(&mut self, ring: &mut Ring, slot: u32, io: Io) -> Started {
        if !matches!(io, Io::Flush) {
            let (offset, len) = io.extent();
            self.check(offset, usize::try_from(len).unwrap());
        }
        assert!(!self.read_only || matches!(io, Io::Read { .. }), "it is read-only");
        self.inner.start(ring, slot, io)
    }

    fn finish(&mut self, ring: &mut Ring, token: RingToken, result: i32) -> Option<Finished> {
        self.inner.finish(ring, token, result)
    }

    fn woken(&mut self, ring: &mut Ring, token: RingToken, result: i32, over: &mut Vec<Finished>) {
        self.inner.woken(ring, token, result, over);
    }
}

/// A volume with a journal to be replayed.
fn unclean(options: &OpenSettings) -> Arc<dyn Device> {
    let below: Arc<dyn Device> = Arc::new(RamDevice::new(SIZE as u64));
    make(&*below, options, 4096, None);
    drop(open(below.clone(), options));
    let faulty = Arc::new(FaultDevice::with_volatile_cache(below.clone(), 1, 512));
    let control = faulty.control();
    let volume = open(faulty, options);
    Blocking::new(&volume).unwrap().write(8 * 4096, &block(4096, 8, 8), true).unwrap();
    control.power_cut().unwrap();
    assert!(volume.close().is_err());
    drop(volume);
    control.power_on();
    below
}

#[test]
fn a_journal_is_replayed_on_a_device_that_takes_whole_blocks_only() {
    for size in [512, 4096] {
        let options = options(WriteMode::Journal, "crc32c");
        let strict = Strict { inner: unclean(&options), block: size, read_only: false };
        let volume = open(Arc::new(strict), &options);
        wait_until("tags are made anew", || volume.status().recalculated.is_none());
        let mut data = vec![0; 4096];
        Blocking::new(&volume).unwrap().read(8 * 4096, &mut data).unwrap();
        assert_eq!(data, block(4096, 8, 8));
    }
}

#[test]
fn who_only_reads_finds_what_a_replay_would_leave_and_nothing_is_written() {
    for mode in [WriteMode::Journal, WriteMode::Direct] {
        let written = options(WriteMode::Journal, "crc32c");
        let below = unclean(&written);
        let read = options(mode, "crc32c");
        let strict = Arc::new(Strict { inner: below.clone(), block: 512, read_only: true });
        let volume = IntegrityDevice::open_to_read(strict, None, &read, &RunSettings::default()).unwrap();
        assert!(volume.geometry().read_only);
        let mut way = Blocking::new(&volume).unwrap();
        // Blocks of the journal and others, in one request and in several.
        let mut data = vec![0; 16 * 4096];
        way.read(0, &mut data).unwrap();
        assert_eq!(data[8 * 4096..9 * 4096], block(4096, 8, 8), "{mode:?}");
        assert!(data[..8 * 4096].iter().chain(&data[9 * 4096..]).all(|byte| *byte == 0), "{mode:?}");
        let (mut channel, mut one) = (volume.channel(1).unwrap(), vec![0; 4096]);
        assert!(matches!(channel.read_now(8 * 4096, &mut one), Immediate::Done), "{mode:?}");
        assert_eq!(one, block(4096, 8, 8));
        assert!(way.write(0, &[1; 4096], false).is_err());
        volume.close().unwrap();
        // The journal is still there for a later opening with writes.
        let volume = open(below, &written);
        Blocking::new(&volume).unwrap().read(8 * 4096, &mut one).unwrap();
        assert_eq!(one, block(4096, 8, 8));
    }
}

#[test]
fn a_journal_that_is_torn_and_empty_keeps_nobody_from_reading() {
    let below: Arc<dyn Device> = Arc::new(RamDevice::new(SIZE as u64));
    let options = options(WriteMode::Journal, "crc32c");
    make(&*below, &options, 4096, None);
    // The first section was about to be written in round 1, and one of its sectors was, as its
    // commit id shows.
    let (mut way, at) = (Blocking::new(&*below).unwrap(), 4096 + 7 * 512);
    let mut sector = [0; 512];
    way.read(at, &mut sector).unwrap();
    sector[504..].iter_mut().for_each(|byte| *byte ^= 0x11 ^ 0x22);
    way.write(at, &sector, true).unwrap();
    let strict = || Arc::new(Strict { inner: below.clone(), block: 512, read_only: true });
    assert!(IntegrityDevice::open(strict(), None, &options, &RunSettings::default()).is_err());
    let volume = IntegrityDevice::open_to_read(strict(), None, &options, &RunSettings::default()).unwrap();
    let mut data = vec![1; 4096];
    Blocking::new(&volume).unwrap().read(0, &mut data).unwrap();
    assert_eq!(data, [0; 4096]);
}

#[test]
fn a_device_that_is_read_only_is_not_written() {
    let options = options(WriteMode::Journal, "crc32c");
    let read_only = |inner| Arc::new(Strict { inner, block: 512, read_only: true });
    let settings = RunSettings::default();
    assert!(IntegrityDevice::open(read_only(unclean(&options)), None, &options, &settings).is_err());
    let clean: Arc<dyn Device> = Arc::new(RamDevice::new(SIZE as u64));
    // A volume with tags that are still to be made.
    make(&*clean, &options, 4096, None);
    let volume = open(read_only(clean), &options);
    assert!(volume.geometry().read_only);
    let mut way = Blocking::new(&volume).unwrap();
    way.read(0, &mut [0; 4096]).unwrap();
    assert!(way.write(0, &[1; 4096], false).is_err());
    volume.close().unwrap();
}
