//! A volume that is reencrypted under its requests: no acknowledged byte is lost, whatever
//! operation interferes.

use std::fs::File;
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use underseal_cipher::{Key, SectorCipher, SectorSize, build};
use underseal_datapath::{ErrorKind, Mapping, Pace, Rate, ServedVolume};
use underseal_device::{FileDevice, OpenOptions};
use underseal_volume::reencrypt::{
    self, Direction, Foreground, Ledger, Mode, Options, Outcome, Plan, Progress, Protection,
};
use underseal_volume::{Hash, Segment, Stored, Target, Volume};

use super::*;

/// Longer than any request takes, also on a busy machine.
const LONG: Duration = Duration::from_secs(120);
const WHOLE: u64 = 4 << 20;

/// A ledger in memory.
struct Kept {
    plan: Plan,
    progress: Progress,
    area: Vec<u8>,
    finished: bool,
}

fn to_usize(n: u64) -> usize {
    usize::try_from(n).unwrap()
}

impl Ledger for Kept {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn progress(&self) -> Progress {
        self.progress
    }

    fn secure(&mut self) -> underseal_volume::Result<()> {
        Ok(())
    }

    fn write_area(&mut self, at: u64, bytes: &[u8]) -> underseal_volume::Result<()> {
        self.area[to_usize(at)..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn sync_area(&mut self) -> underseal_volume::Result<()> {
        Ok(())
    }

    fn read_area(&self, at: u64, bytes: &mut [u8]) -> underseal_volume::Result<()> {
        bytes.copy_from_slice(&self.area[to_usize(at)..][..bytes.len()]);
        Ok(())
    }

    fn record(&mut self, progress: Progress) -> underseal_volume::Result<()> {
        self.progress = progress;
        Ok(())
    }

    fn finish(&mut self, _data: &(dyn Target + Sync)) -> underseal_volume::Result<()> {
        self.finished = true;
        Ok(())
    }
}

fn cipher(spec: &str, key: u8, sector: SectorSize) -> Arc<dyn SectorCipher> {
    let len = if spec.contains("xts") { 64 } else { 32 };
    let key = Key::new(&[key, !key, 3, 4].repeat(len / 4)).unwrap();
    build(&spec.parse().unwrap(), &key, sector).unwrap()
}

/// A volume on a file, before and after its reencryption.
struct Case {
    file: tempfile::NamedTempFile,
    old: Arc<dyn SectorCipher>,
    new: Arc<dyn SectorCipher>,
    /// The sector size that clients rely on.
    sectors: SectorSize,
}

impl Case {
    fn new(old: Arc<dyn SectorCipher>, new: Arc<dyn SectorCipher>) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(WHOLE).unwrap();
        Self { file, old, new, sectors: SectorSize::S512 }
    }

    fn open(&self, cipher: &Arc<dyn SectorCipher>) -> Arc<Mapping> {
        let volume = Volume::new(vec![Segment::stored(0, WHOLE, 0, 0, cipher.clone())]).unwrap();
        let device = FileDevice::open(self.file.path(), OpenOptions { unlocked: true, ..Default::default() });
        Arc::new(Mapping::new(volume, Arc::new(device.unwrap())).unwrap().with_sectors(self.sectors))
    }

    fn bytes(&self) -> File {
        File::options().read(true).write(true).open(self.file.path()).unwrap()
    }

    fn kept(&self, direction: Direction, protection: Protection) -> Kept {
        let form = |cipher: &Arc<dyn SectorCipher>| Stored {
            device: 0,
            lower: 0,
            iv_offset: 0,
            cipher: cipher.clone(),
            cipher_parameters: None,
        };
        let plan = Plan {
            mode: Mode::Reencrypt,
            direction,
            size: WHOLE,
            old: form(&self.old),
            new: form(&self.new),
            moved: None,
            protection,
            area: 1 << 20,
            hot_zone: 128 << 10,
            alignment: 4096,
        };
        plan.check().unwrap();
        Kept { plan, progress: Progress::default(), area: vec![0; 1 << 20], finished: false }
    }

    fn plain(&self) -> Vec<u8> {
        read(&mut open(&self.open(&self.new)), 0, to_usize(WHOLE))
    }
}

/// A small generator: the same numbers in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// Writes and reads every `of`th sector until it is stopped; returns the contents of these sectors.
fn use_it(
    mapping: &Arc<Mapping>,
    (number, of): (u64, u64),
    stop: &AtomicBool,
    rounds: &AtomicU64,
) -> Vec<(u64, u8)> {
    let mut queue = open(mapping);
    let mut dice = Dice(number + 1);
    let own = WHOLE / SECTOR / of;
    let mut model = vec![0_u8; to_usize(own)];
    let mut sure = vec![false; model.len()];
    while !stop.load(SeqCst) {
        // Several requests at once, for different sectors.
        let first = dice.below(own);
        let batch: Vec<_> = (0..8).map(|i| (first + i * 5) % own).collect();
        for (tag, index) in batch.iter().enumerate() {
            let offset = (index * of + number) * SECTOR;
            let fill = u8::try_from(dice.below(255) + 1).unwrap();
            submit_write(&mut queue, tag as u64, offset, to_usize(SECTOR), fill);
            (model[to_usize(*index)], sure[to_usize(*index)]) = (fill, true);
        }
        succeed(&mut queue);
        for _ in 0..8 {
            let index = dice.below(own);
            let found = read(&mut queue, (index * of + number) * SECTOR, to_usize(SECTOR));
            if sure[to_usize(index)] {
                let expected = model[to_usize(index)];
                assert!(found.iter().all(|byte| *byte == expected), "sector {index} of {number}");
            }
        }
        rounds.fetch_add(1, SeqCst);
    }
    let sure = model.iter().zip(sure).enumerate().filter(|(_, (_, sure))| *sure);
    sure.map(|(index, (fill, _))| ((index as u64 * of + number) * SECTOR, *fill)).collect()
}

/// Reencrypts a volume beside three queues with a policy, and calls `meddle` again and again.
fn under_load(case: &Case, text: &str, mut kept: Kept, meddle: impl Fn(&Mapping, &Pace, u64) + Sync) {
    let mapping = case.open(&case.old);
    mapping.set_policy(policy(text)).unwrap_or_else(|e| panic!("{text}: {e}"));
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let written = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for number in 0..3 {
            let (mapping, stop, rounds, written) = (&mapping, &stop, &rounds, &written);
            scope.spawn(move || {
                let own = use_it(mapping, (number, 3), stop, rounds);
                written.lock().unwrap().extend(own);
            });
        }
        while rounds.load(SeqCst) < 3 {
            thread::sleep(Duration::from_millis(1));
        }
        // The reencryption does not rest, so that `meddle` meets its steps.
        let pace = Arc::new(Pace::new(Rate::Full));
        let users = ServedVolume::new(mapping.clone(), SectorSize::S4096, pace.clone(), LONG).unwrap();
        let is_over = AtomicBool::new(false);
        let outcome = thread::scope(|inner| {
            let (mapping, pace, over, meddle) = (&mapping, &pace, &is_over, &meddle);
            let meddling = inner.spawn(move || {
                for turn in 0.. {
                    if over.load(SeqCst) {
                        break;
                    }
                    meddle(mapping, pace, turn);
                    thread::sleep(Duration::from_millis(1));
                }
            });
            let outcome = reencrypt::run(&case.bytes(), &mut kept, &users, &Options::default());
            over.store(true, SeqCst);
            meddling.join().unwrap();
            outcome
        });
        // The clients run for a while under the new key alone.
        let then = rounds.load(SeqCst);
        while rounds.load(SeqCst) < then + 3 {
            thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, SeqCst);
        assert_eq!(outcome.unwrap(), Outcome::Finished, "{text}");
    });
    assert!(kept.finished);
    assert_eq!(mapping.volume().unwrap().segments().len(), 1, "{text}");
    drop(mapping);
    let found = case.plain();
    for (offset, fill) in written.into_inner().unwrap() {
        let sector = &found[to_usize(offset)..][..to_usize(SECTOR)];
        assert!(sector.iter().all(|byte| *byte == fill), "{text}: byte {offset}");
    }
}

const CHECKSUM: Protection = Protection::Checksum { hash: Hash::Sha256, block: 4096 };

#[test]
fn every_acknowledged_byte_is_there_under_every_policy() {
    let keys =
        || (cipher("aes-xts-plain64", 1, SectorSize::S4096), cipher("aes-xts-plain64", 2, SectorSize::S4096));
    for (number, text) in POLICIES.into_iter().enumerate() {
        let (old, new) = keys();
        let case = Case::new(old, new);
        let direction = if number % 2 == 0 { Direction::Forward } else { Direction::Backward };
        let protection = if number % 3 == 0 { Protection::Journal } else { CHECKSUM };
        under_load(&case, text, case.kept(direction, protection), |_, _, _| {});
    }
}

#[test]
fn another_cipher_and_smaller_sectors_come_under_load() {
    // A cipher that is not local replaces a local one.
    let old = cipher("aes-xts-plain64", 1, SectorSize::S4096);
    let new = cipher("aes-cbc-essiv:sha256", 2, SectorSize::S512);
    let case = Case::new(old.clone(), new.clone());
    under_load(&case, "adaptive", case.kept(Direction::Forward, CHECKSUM), |_, _, _| {});
    // Larger sectors, where clients rely on the larger size.
    let mut back = Case::new(new, old);
    let refused = ServedVolume::new(back.open(&back.old), SectorSize::S4096, Arc::default(), LONG);
    assert_eq!(refused.err().map(|e| e.kind()), Some(ErrorKind::Unsupported), "512 bytes were promised");
    back.sectors = SectorSize::S4096;
    under_load(&back, "adaptive", back.kept(Direction::Backward, CHECKSUM), |_, _, _| {});
}

#[test]
fn suspending_pausing_and_other_policies_do_not_disturb_it() {
    let (old, new) =
        (cipher("aes-xts-plain64", 1, SectorSize::S4096), cipher("aes-xts-plain64", 2, SectorSize::S4096));
    let case = Case::new(old, new);
    under_load(&case, "adaptive", case.kept(Direction::Forward, CHECKSUM), |mapping, pace, turn| {
        match turn % 5 {
            0 => {
                mapping.suspend(LONG).unwrap();
                thread::sleep(Duration::from_millis(2));
                mapping.resume().unwrap();
            }
            1 => {
                pace.pause();
                thread::sleep(Duration::from_millis(2));
                pace.go_on();
            }
            2 => pace.set_rate(Rate::Limit(NonZeroU64::new(1 << 30).unwrap())),
            3 => pace.set_rate(Rate::GiveWay),
            _ => mapping.set_policy(policy(POLICIES[to_usize(turn) % 10])).unwrap(),
        }
    });
}

#[test]
fn what_was_stopped_goes_on_and_each_time_it_is_served_as_it_stands() {
    let (old, new) =
        (cipher("aes-xts-plain64", 1, SectorSize::S4096), cipher("aes-xts-plain64", 2, SectorSize::S4096));
    let case = Case::new(old, new);
    let mut kept = case.kept(Direction::Forward, CHECKSUM);
    let mapping = case.open(&case.old);
    let mut queue = open(&mapping);
    submit_write(&mut queue, 0, 0, to_usize(WHOLE), 7);
    succeed(&mut queue);
    drop(queue);
    let mut stops = 0;
    loop {
        let pace = Arc::new(Pace::new(Rate::Full));
        let users = ServedVolume::new(mapping.clone(), SectorSize::S4096, pace, LONG).unwrap();
        let outcome =
            reencrypt::run(&case.bytes(), &mut kept, &Steps(&users, AtomicU64::new(5)), &Options::default());
        drop(users);
        assert!(read(&mut open(&mapping), 0, to_usize(WHOLE)).iter().all(|byte| *byte == 7));
        // Another process opens the volume, and knows only the progress.
        let now = kept.plan.volume(kept.progress).unwrap();
        let device = FileDevice::open(case.file.path(), OpenOptions { unlocked: true, ..Default::default() });
        let other = Arc::new(Mapping::new(now, Arc::new(device.unwrap())).unwrap());
        assert!(read(&mut open(&other), 0, to_usize(WHOLE)).iter().all(|byte| *byte == 7));
        match outcome.unwrap() {
            Outcome::Finished => break,
            Outcome::Stopped => stops += 1,
        }
    }
    assert_eq!(stops, 6, "32 steps, five at a time");
}

/// Stops after a number of steps.
struct Steps<'u>(&'u ServedVolume, AtomicU64);

impl Foreground for Steps<'_> {
    fn claim(&self, range: Range<u64>) -> underseal_volume::Result<Box<dyn reencrypt::Claim + '_>> {
        self.0.claim(range)
    }

    fn claims_ahead(&self) -> bool {
        self.0.claims_ahead()
    }

    fn pace(&self, done: u64, left: u64) -> reencrypt::Pace {
        match self.1.fetch_sub(1, SeqCst) {
            0 => reencrypt::Pace::Stop,
            _ => self.0.pace(done, left),
        }
    }
}

#[test]
fn a_range_that_nobody_can_read_fails_until_it_is_made_good() {
    let (old, new) =
        (cipher("aes-xts-plain64", 1, SectorSize::S4096), cipher("aes-xts-plain64", 2, SectorSize::S4096));
    let case = Case::new(old, new);
    let mapping = case.open(&case.old);
    let users = ServedVolume::new(mapping.clone(), SectorSize::S4096, Arc::default(), LONG).unwrap();
    let mut queue = open(&mapping);
    submit_write(&mut queue, 0, 0, to_usize(WHOLE), 7);
    succeed(&mut queue);
    users.claim(0..1 << 20).unwrap().give_up();
    queue.submit(1, Request::Read { offset: 4096, len: 4096 }).unwrap();
    assert!(finish(&mut queue)[0].result.is_err());
    assert_eq!(read(&mut queue, 1 << 20, 4096), [7; 4096]);
    // The bytes as encrypted with the new key.
    let claim = users.claim(0..1 << 20).unwrap();
    let mut bytes = vec![9; 1 << 20];
    case.new.encrypt(0, (&mut bytes[..]).into());
    case.bytes().write_all_at(&bytes, 0).unwrap();
    let kept = case.kept(Direction::Forward, CHECKSUM);
    claim.relay(kept.plan.volume(Progress { done: 1 << 20, hot: None }).unwrap()).unwrap();
    drop(claim);
    assert_eq!(read(&mut queue, 4096, 4096), [9; 4096]);
    assert_eq!(read(&mut queue, 1 << 20, 4096), [7; 4096]);
}
