//! The order of writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use underseal_cipher::{InOutBuf, SectorCipher, SectorSize};
use underseal_datapath::{ErrorKind, Mapping, Request};
use underseal_device::{Device, IoKind, RamDevice, Zones};
use underseal_device_lab::{Fault, FaultDevice, RecorderDevice, Rule, ZonedDevice};
use underseal_testing::skip;
use underseal_volume::{Segment, SegmentKind, Volume};

use super::*;

/// A cipher that encrypts one sector only after `others` other sectors.
struct LastOfAll {
    inner: Arc<dyn SectorCipher>,
    sector: u64,
    others: usize,
    encrypted: AtomicUsize,
}

impl LastOfAll {
    /// Returns `None` where there is one worker, which would wait for itself.
    fn new(offset: u64, others: usize) -> Option<Arc<Self>> {
        if thread::available_parallelism().map_or(1, usize::from) < 2 {
            skip("workers that encrypt out of order", "one processor, so one worker");
            return None;
        }
        let inner = xts(SectorSize::S4096);
        Some(Arc::new(Self { inner, sector: offset / 512, others, encrypted: AtomicUsize::new(0) }))
    }

    fn wait_for(&self, count: usize) {
        while self.encrypted.load(SeqCst) < count {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl SectorCipher for LastOfAll {
    fn sector_size(&self) -> SectorSize {
        self.inner.sector_size()
    }

    fn encrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>) {
        if first == self.sector {
            self.wait_for(self.others);
        }
        self.inner.encrypt(first, data);
        self.encrypted.fetch_add(1, SeqCst);
    }

    fn decrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>) {
        self.inner.decrypt(first, data);
    }
}

/// Submits writes to these sectors, of which the first is encrypted last. Returns the order in
/// which the device gets them.
fn order(policy_text: &str, sectors: &[u64]) -> Option<Vec<u64>> {
    let recorder = Arc::new(RecorderDevice::new(Arc::new(RamDevice::new(SIZE)), 1000));
    let cipher = LastOfAll::new(sectors[0] * SECTOR, sectors.len() - 1)?;
    let mapping = Arc::new(Mapping::new(volume(cipher.clone()), recorder.clone()).unwrap());
    mapping.set_policy(policy(policy_text)).unwrap();
    let mut queue = open(&mapping);
    for (tag, sector) in (0..).zip(sectors) {
        submit_write(&mut queue, tag, sector * SECTOR, 4096, 1);
    }
    cipher.wait_for(sectors.len());
    // The last worker returns its write before this thread looks at any.
    thread::sleep(Duration::from_millis(300));
    succeed(&mut queue);
    Some(recorder.take().iter().map(|record| record.offset / SECTOR).collect())
}

#[test]
fn writes_go_down_ready_sorted_or_as_they_came() {
    let came = [5, 9, 1, 7, 3, 8, 2];
    let Some(ready) = order("workers,order=ready", &came) else { return };
    // Each worker writes its piece.
    assert_eq!((ready.len(), ready.last()), (7, Some(&5)));
    assert_eq!(order("workers,order=sorted", &came).unwrap(), [1, 2, 3, 5, 7, 8, 9]);
    assert_eq!(order("workers,order=arrival", &came).unwrap(), came);
}

#[test]
fn zeros_and_failures_keep_their_place_in_the_order_of_arrival_and_let_the_others_go() {
    let inner = Arc::new(RecorderDevice::new(Arc::new(RamDevice::new(SIZE)), 100));
    let device = FaultDevice::new(inner.clone(), 1);
    device.control().add(Rule::new(Fault::EIO).on(IoKind::Write).within(2 * SECTOR..3 * SECTOR));
    let Some(cipher) = LastOfAll::new(9 * SECTOR, 2) else { return };
    let mapping = Arc::new(Mapping::new(volume(cipher), Arc::new(device)).unwrap());
    mapping.set_policy(policy("workers,order=arrival")).unwrap();
    let mut queue = open(&mapping);
    submit_write(&mut queue, 0, 9 * SECTOR, 4096, 1);
    let (offset, len) = (7 * SECTOR, SECTOR);
    let zeroes = Request::WriteZeroes { offset, len, durable: false, punch: false, fast: false };
    queue.submit(1, zeroes).unwrap();
    submit_write(&mut queue, 2, 2 * SECTOR, 4096, 1);
    submit_write(&mut queue, 3, SECTOR, 4096, 1);
    let failed: Vec<_> = finish(&mut queue).iter().map(|completion| completion.result.is_err()).collect();
    assert_eq!(failed, [false, false, true, false]);
    let went: Vec<_> = inner.take().iter().map(|record| record.offset / SECTOR).collect();
    assert_eq!(went, [9, 7, 1]);
}

#[test]
fn a_write_that_begins_where_nothing_is_stored_goes_down_too() {
    for text in POLICIES {
        let cipher = xts(underseal_cipher::SectorSize::S4096);
        let half = SIZE / 2;
        let zero = Segment { start: 0, len: half, kind: SegmentKind::Zero };
        let stored = Segment::stored(half, half, 0, 0, cipher);
        let device: Arc<dyn Device> = Arc::new(RamDevice::new(half));
        let mapping = Mapping::new(Volume::new(vec![zero, stored]).unwrap(), device).unwrap();
        let mapping = Arc::new(mapping);
        mapping.set_policy(policy(text)).unwrap();
        let mut queue = open(&mapping);
        for tag in 0..4 {
            submit_write(&mut queue, tag, half - 8192 + tag * 4096, 65536, 6);
        }
        succeed(&mut queue);
        let found = read(&mut queue, half - 4096, 8192);
        assert!(
            found[..4096].iter().all(|byte| *byte == 0) && found[4096..].iter().all(|byte| *byte == 6),
            "{text}"
        );
    }
}

fn zoned(declared: bool, cipher: Arc<dyn SectorCipher>) -> (Arc<ZonedDevice>, Arc<Mapping>) {
    let zones = Zones { size: 2 << 20, conventional: 1 };
    let device = Arc::new(ZonedDevice::new(Arc::new(RamDevice::new(SIZE)), zones, declared).unwrap());
    (device.clone(), Arc::new(Mapping::new(volume(cipher), device).unwrap()))
}

/// Fills two zones with writes of several lengths, as many at a time as the queue takes. Returns
/// the number of failures.
fn fill_zones(mapping: &Arc<Mapping>) -> usize {
    let mut queue = open(mapping);
    let mut at = [2 << 20, 4 << 20];
    let mut failed = 0;
    for tag in 0..96 {
        let zone = usize::try_from(tag % 2).unwrap();
        let len = [4096, 16384, 8192][usize::try_from(tag % 3).unwrap()];
        if queue.in_flight() == 48 {
            failed += finish(&mut queue).iter().filter(|completion| completion.result.is_err()).count();
        }
        submit_write(&mut queue, tag, at[zone], len, 4);
        at[zone] += len as u64;
    }
    failed + finish(&mut queue).iter().filter(|completion| completion.result.is_err()).count()
}

#[test]
fn the_writes_of_a_zone_arrive_in_order_under_every_policy_that_is_permitted() {
    let mut permitted = 0;
    for text in POLICIES {
        let (device, mapping) = zoned(true, xts(SectorSize::S4096));
        match mapping.set_policy(policy(text)) {
            Ok(()) => {
                assert_eq!((fill_zones(&mapping), device.violations()), (0, 0), "{text}");
                permitted += 1;
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Policy, "{text}");
                assert!(!text.contains("arrival") && !text.starts_with("inline"), "{text}: {e}");
                assert_eq!(mapping.policy(), underseal_datapath::Policy::INLINE, "as it was");
            }
        }
    }
    assert_eq!(permitted, 6);
}

#[test]
fn without_knowing_of_zones_writes_that_others_encrypt_break_their_order() {
    // The first write of a zone is encrypted after two others, one of which belongs to the same
    // zone.
    let Some(cipher) = LastOfAll::new(2 << 20, 2) else { return };
    let (device, mapping) = zoned(false, cipher);
    mapping.set_policy(policy("workers")).unwrap();
    assert!(fill_zones(&mapping) > 0);
    assert!(device.violations() > 0);
}
