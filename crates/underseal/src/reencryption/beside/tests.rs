use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use underseal_device::{FileDevice, OpenOptions};
use underseal_volume::luks2;
use underseal_volume::reencrypt::Alone;
use underseal_volume::{ActivateOptions, ReadAt, Target, VolumeKey};

use super::super::Where;
use super::super::tests::{SIZE, begun};
use super::*;

/// A volume that is open in the middle of a reencryption.
fn open(file: &File, key: &VolumeKey) -> Beside {
    let volume = Header::read(file).unwrap().activate(key, SIZE, &ActivateOptions::default()).unwrap();
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let device = FileDevice::open(&path, OpenOptions { unlocked: true, ..OpenOptions::default() }).unwrap();
    let kept = Kept::Header { apart: None, allow_null: false };
    let place = Place::new(Where::File(file.try_clone().unwrap()), kept);
    Beside::new(Arc::new(Mapping::new(volume, Arc::new(device)).unwrap()), place, None)
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
fn the_right_key_is_known_also_after_an_end_that_failed() {
    let (file, key) = begun();
    let beside = open(&file, &key);
    let check = beside.key_check();
    assert!(check.is_none(), "it is the one that it was opened with");
    let mut ledger = luks2::Ledger::resume(&file, &key, SIZE, &Default::default()).unwrap();
    reencrypt::run(&file, &mut ledger, &Alone, &Options::default()).unwrap();
    drop(ledger);
    for ended in [Ended::Failed("the old keyslot was not wiped".into()), Ended::Stopped, Ended::Done] {
        let ended = Mutex::new(Some(ended));
        let run = Run { mode: Mode::Reencrypt, pace: Arc::default(), ended, has_ended: Condvar::new() };
        lock(&beside.runs).last = Some(Arc::new(run));
        let check = beside.key_check().expect("the header has the new key only");
        check.confirm(key.other().unwrap()).unwrap();
        assert!(check.confirm(key.key()).is_err());
    }
}

/// Its sync fails once.
struct Broken(Bytes, Mutex<bool>);

impl ReadAt for Broken {
    fn size(&self) -> io::Result<u64> {
        self.0.size()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buf, offset)
    }
}

impl Target for Broken {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync_all(&self) -> io::Result<()> {
        let fails = std::mem::replace(&mut *self.1.lock().unwrap(), false);
        if fails { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        self.0.set_len(size)
    }
}

#[test]
fn after_a_sync_of_the_data_that_failed_it_does_not_go_on_until_it_is_opened_again() {
    let (file, key) = begun();
    let beside = open(&file, &key);
    let data = beside.place.watched(Box::new(Broken(Box::new(file.try_clone().unwrap()), Mutex::new(true))));
    data.sync_all().unwrap_err();
    data.sync_all().unwrap();
    let (one, other) = (key.key(), key.other().unwrap());
    let refused = beside.start(one, other, Rate::Full).unwrap_err();
    assert!(refused.message.contains("a sync of the image failed"), "{refused:?}");
    assert!(refused.remedy.contains("open it again"), "{refused:?}");
    assert!(is_untouched(&file, &key));
    let again = open(&file, &key);
    again.start(one, other, Rate::Full).unwrap();
    again.end();
}
