use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use underseal_device::{
    Channel, Device, FileDevice, Finished, Geometry, Immediate, Io, OpenOptions, Ring, RingToken, Started,
};
use underseal_volume::{ActivateOptions, LockTo, VolumeKey};

use super::super::Where;
use super::super::tests::{SIZE, begun};
use super::*;

fn device(file: &File) -> FileDevice {
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    FileDevice::open(&path, OpenOptions { unlocked: true, ..OpenOptions::default() }).unwrap()
}

/// A volume that is open with an unfinished reencryption.
fn open(file: &File, key: &VolumeKey) -> OnlineReencryption {
    open_at(file, key, Where::Image(Arc::new(device(file))))
}

/// The same, whose reencryption uses the files in `place`.
fn open_at(file: &File, key: &VolumeKey, place: Where) -> OnlineReencryption {
    let volume = Header::read(file).unwrap().activate(key, SIZE, &ActivateOptions::default()).unwrap();
    let place = Place::open(place, Kept::Header { apart: None, allow_null: false }, false);
    OnlineReencryption::new(Arc::new(Mapping::new(volume, Arc::new(device(file))).unwrap()), place, None)
}

fn is_untouched(file: &File, key: &VolumeKey) -> bool {
    let volume = Header::read(file).unwrap().activate(key, SIZE, &ActivateOptions::default()).unwrap();
    volume.segments().len() == 1
}

#[test]
fn nothing_begins_once_the_volume_is_being_closed() {
    let (file, key) = begun();
    let beside = open(&file, &key);
    beside.end();
    let (one, other) = (Key::new(key.key().as_bytes()).unwrap(), key.other().unwrap());
    let refused = beside.start(&one, other, Rate::Full).unwrap_err();
    assert_eq!(refused.kind, RefusalKind::Busy, "{refused:?}");
    assert!(beside.status().is_none());
    assert!(is_untouched(&file, &key));
}

#[test]
fn of_two_beginnings_one_is_refused_at_once() {
    let (file, key) = begun();
    let beside = open(&file, &key);
    let beginning = beside.beginning.lock().unwrap();
    let (one, other) = (key.key(), key.other().unwrap());
    let refused = beside.start(one, other, Rate::Full).unwrap_err();
    assert!(refused.message.contains("begins just now"), "{refused:?}");
    drop(beginning);
    beside.start(one, other, Rate::Full).unwrap();
    beside.end();
}

#[test]
fn the_right_key_is_known_after_the_end_whatever_becomes_of_the_header() {
    let (file, key) = begun();
    let beside = open(&file, &key);
    assert!(beside.key_check().is_none(), "it is the one that it was opened with");
    let mut before = vec![0; 1 << 16];
    file.read_exact_at(&mut before, 0).unwrap();
    assert!(matches!(run_to_its_end(&beside, &key), Ok(Ended::Done)));
    // Another header is restored later, or its bytes are lost.
    for after in [before, vec![0; 1 << 16]] {
        file.write_all_at(&after, 0).unwrap();
        let check = beside.key_check().expect("the volume has the new key");
        check.confirm(key.other().unwrap()).unwrap();
        assert!(check.confirm(key.key()).is_err());
    }
}

/// The failing one of the two byte stores that [`Place::bytes`] returns, in their order.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Which {
    Data,
    Header,
}

/// A file whose first flush of the data, or of the header, fails.
struct Broken {
    device: FileDevice,
    which: Which,
    channels: AtomicUsize,
    fails: Arc<AtomicBool>,
}

impl Device for Broken {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn channel(&self, depth: u32) -> underseal_device::Result<Box<dyn Channel>> {
        let channel = self.device.channel(depth)?;
        let which = [Which::Data, Which::Header][self.channels.fetch_add(1, SeqCst) % 2];
        if which == self.which {
            Ok(Box::new(BrokenChannel(channel, self.fails.clone())))
        } else {
            Ok(channel)
        }
    }

    fn name(&self) -> &str {
        self.device.name()
    }
}

struct BrokenChannel(Box<dyn Channel>, Arc<AtomicBool>);

impl Channel for BrokenChannel {
    fn read_now(&mut self, offset: u64, data: &mut [u8]) -> Immediate {
        self.0.read_now(offset, data)
    }

    fn write_now(&mut self, offset: u64, data: &[u8]) -> Immediate {
        self.0.write_now(offset, data)
    }

    fn start(&mut self, ring: &mut Ring, slot: u32, io: Io) -> Started {
        if matches!(io, Io::Flush) && self.1.swap(false, SeqCst) {
            let failed = underseal_device::Error::new(underseal_device::ErrorKind::Flush, "flush failed");
            return Started::Finished(Finished::bare(slot, Err(failed)));
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

/// Runs the reencryption to its end, and returns the end.
fn run_to_its_end(beside: &OnlineReencryption, key: &VolumeKey) -> std::result::Result<Ended, Refusal> {
    beside.start(key.key(), key.other().unwrap(), Rate::Full)?;
    Ok(beside.last().unwrap().wait(underseal_testing::PATIENCE).expect("it ends"))
}

#[test]
fn after_a_sync_that_failed_it_does_not_go_on_until_it_is_opened_again() {
    for which in [Which::Data, Which::Header] {
        let (file, key) = begun();
        let fails = Arc::new(AtomicBool::new(true));
        let broken =
            Broken { device: device(&file), which, channels: AtomicUsize::new(0), fails: fails.clone() };
        let beside = open_at(&file, &key, Where::Device(Arc::new(broken)));
        let first = match run_to_its_end(&beside, &key) {
            Ok(Ended::Failed(why)) => why,
            Err(refused) => refused.message,
            Ok(other) => panic!("{other:?}"),
        };
        assert!(first.contains("cannot sync") && !fails.load(SeqCst), "{which:?}: {first}");
        assert!(beside.key_check().is_none(), "{which:?}: the volume has both keys");
        let refused = run_to_its_end(&beside, &key).unwrap_err();
        assert!(refused.message.contains("a sync of the image failed"), "{which:?}: {refused:?}");
        assert!(refused.remedy.contains("open it again"), "{refused:?}");
        // A step whose data were not synced is recovered when the volume is opened.
        drop(beside);
        if which == Which::Header {
            let again = open(&file, &key);
            assert!(matches!(run_to_its_end(&again, &key), Ok(Ended::Done)));
        }
    }
}

#[test]
fn one_that_is_under_way_keeps_its_header_for_itself() {
    let (file, key) = begun();
    let beside = open(&file, &key);
    let run = Run {
        mode: Mode::Reencrypt,
        pace: Arc::default(),
        ended: Mutex::default(),
        has_ended: Condvar::new(),
    };
    lock(&beside.runs).last = Some(Arc::new(run));
    // The header would refuse these keys, and is not asked.
    let wrong = Key::new(&[7; 64]).unwrap();
    let refused = beside.start(&wrong, &wrong, Rate::Full).unwrap_err();
    assert!(refused.message.contains("is being reencrypted already"), "{refused:?}");
}

#[test]
fn a_lock_is_given_back_by_no_other_user_of_the_file() {
    let (file, _) = begun();
    for place in [
        Where::Image(Arc::new(device(&file))),
        Where::File(underseal_volume::NamedFile::opened(file.try_clone().unwrap())),
    ] {
        let (one, other) = (place.bytes().unwrap(), place.bytes().unwrap());
        let held = one.lock(LockTo::Read).unwrap().unwrap();
        drop(other.lock(LockTo::Read).unwrap().unwrap());
        let foreign = underseal_device::open_again(&file, 0).unwrap();
        let alone = || rustix::fs::flock(&foreign, rustix::fs::FlockOperation::NonBlockingLockExclusive);
        alone().unwrap_err();
        drop(held);
        alone().unwrap();
    }
}
