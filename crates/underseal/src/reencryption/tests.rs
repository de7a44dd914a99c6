use std::cell::Cell;
use std::ops::Range;

use underseal_volume::luks2::{BeginOptions, NewKey, Passphrase};
use underseal_volume::reencrypt::{Alone, Claim, Direction, Foreground, Options, Pace, Protection};
use underseal_volume::{ActivateOptions, Cost, FormatOptions, NewHeader, Pbkdf, UnlockOptions, Volume};

use super::*;

pub(super) const SIZE: u64 = 17 << 20;
const PASSPHRASE: &[u8] = b"a passphrase";

/// Stops after this number of steps.
struct Steps(Cell<u32>);

impl Foreground for Steps {
    fn claim(&self, range: Range<u64>) -> underseal_volume::Result<Box<dyn Claim + '_>> {
        Alone.claim(range).map(|_| Box::new(Alone) as Box<dyn Claim>)
    }

    fn claims_ahead(&self) -> bool {
        false
    }

    fn pace(&self, _done: u64, _left: u64) -> Pace {
        let left = self.0.get();
        self.0.set(left.saturating_sub(1));
        if left == 0 { Pace::Stop } else { Pace::Go }
    }
}

/// A file with a volume.
fn formatted() -> (File, VolumeKey) {
    let file = tempfile::tempfile().unwrap();
    file.set_len(SIZE).unwrap();
    let passphrase = Key::new(PASSPHRASE).unwrap();
    let pbkdf = Pbkdf { cost: Cost::Iterations(1000), ..Pbkdf::pbkdf2() };
    let new =
        NewHeader::prepare(SIZE, &passphrase, FormatOptions { pbkdf, ..FormatOptions::luks2() }).unwrap();
    new.write(&file).unwrap();
    (file, new.into_key())
}

/// A file with a volume whose reencryption has begun.
pub(super) fn begun() -> (File, VolumeKey) {
    let (file, key) = formatted();
    let key = begin(&file, key);
    (file, key)
}

/// Begins a reencryption with a new key; returns both keys.
fn begin(file: &File, key: VolumeKey) -> VolumeKey {
    let Header::Luks2(mut header) = Header::read(file).unwrap() else { panic!("another version") };
    let passphrase = Key::new(PASSPHRASE).unwrap();
    let slot = *header.info().keyslots.first().map(|slot| &slot.number).unwrap();
    let options = BeginOptions {
        cipher: None,
        sector_size: None,
        key: NewKey::Random(None),
        direction: Direction::Forward,
        protection: Protection::Journal,
        shift: None,
        size: None,
        detached: false,
        allow_null: false,
        is_open: false,
    };
    let new = header.like_keyslot(slot).unwrap();
    let slot = Passphrase { slot, passphrase: &passphrase, new };
    header.begin_reencryption(file, key, &[slot], SIZE, &options).unwrap()
}

/// Completes a reencryption; returns the volume's key afterwards.
fn end(file: &File, key: &VolumeKey) -> VolumeKey {
    let mut ledger = Ledger::resume(file, key, SIZE, &ResumeOptions::default()).unwrap();
    reencrypt::run(file, &mut ledger, &reencrypt::Alone, &Options::default()).unwrap();
    drop(ledger);
    let new = Key::new(key.other().unwrap().as_bytes()).unwrap();
    Header::read(file).unwrap().volume_key(new, &UnlockOptions::default()).unwrap()
}

/// The files of an open volume.
fn opened(file: &File) -> Place {
    let kept = Kept::Header { apart: None, allow_null: false };
    Place::open(Where::File(NamedFile::opened(file.try_clone().unwrap())), kept, false)
}

fn activated(header: &Header, key: &VolumeKey) -> Volume {
    header.activate(key, SIZE, &ActivateOptions::default()).unwrap()
}

#[test]
fn steps_between_the_reading_of_a_header_and_its_use_are_seen() {
    let (file, key) = begun();
    let read = Header::read(&file).unwrap();
    let forms = |volume: &Volume| volume.segments().len();
    assert_eq!(forms(&activated(&read, &key)), 1);
    let options = ResumeOptions { hot_zone: Some(64 << 10), ..ResumeOptions::default() };
    let mut ledger = Ledger::resume(&file, &key, SIZE, &options).unwrap();
    reencrypt::run(&file, &mut ledger, &Steps(Cell::new(2)), &Options::default()).unwrap();
    drop(ledger);
    let place = opened(&file);
    let now = held(read, &file, &key, &place).unwrap();
    assert_eq!(forms(&activated(&now, &key)), 2, "the old map would be used");
    // From now on no other process can take the lock, where locks work at all.
    if place.lock().is_some() {
        let e = Ledger::resume(&file, &key, SIZE, &options).map(drop).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Busy);
    }
}

#[test]
fn a_volume_that_another_program_reencrypts_is_not_opened_and_an_open_one_not_reencrypted() {
    let (file, key) = formatted();
    let read = || Header::read(&file).unwrap();
    let alone = || ReencryptionLock::take(read().uuid(), LockTo::Change);
    let Some(theirs) = alone().unwrap() else {
        return underseal_testing::skip("the lock of reencryptions", "only root can take it");
    };
    let place = opened(&file);
    assert_eq!(held(read(), &file, &key, &place).unwrap_err().exit(), Exit::InUse);
    drop(theirs);
    held(read(), &file, &key, &place).unwrap();
    assert_eq!(alone().unwrap_err().kind(), ErrorKind::Busy);
    // The end of the reencryption does not drop the lock of the open volume.
    place.is_done();
    assert_eq!(alone().unwrap_err().kind(), ErrorKind::Busy);
    drop(place);
    drop(alone().unwrap());
}

#[test]
fn a_key_that_another_one_took_the_place_of_meanwhile_opens_nothing() {
    let (file, key) = formatted();
    let read = Header::read(&file).unwrap();
    let same = Key::new(key.key().as_bytes()).unwrap();
    let old = read.volume_key(same, &UnlockOptions::default()).unwrap();
    // The second reencryption stores its key's digest in the slot of the first.
    let mut now = key;
    for _ in 0..2 {
        now = end(&file, &begin(&file, now));
    }
    assert!(Header::read(&file).unwrap().activate(&old, SIZE, &ActivateOptions::default()).is_ok());
    let refused = held(read, &file, &old, &opened(&file)).unwrap_err();
    assert_eq!(refused.exit(), Exit::InUse);
}

#[test]
fn a_reencryption_that_fails_after_the_header_forgot_it_leaves_its_turn_to_others() {
    let (file, key) = begun();
    let place = opened(&file);
    let header = held(Header::read(&file).unwrap(), &file, &key, &place).unwrap();
    if place.lock().is_none() {
        return underseal_testing::skip("the lock of reencryptions", "only root can take it");
    }
    let turn = || ReencryptionLock::take_turn(header.uuid(), LockTo::Change);
    place.has_failed();
    assert_eq!(turn().unwrap_err().kind(), ErrorKind::Busy, "it can be gone on with");
    let mut ledger = place.resume(&file, &key, SIZE, None).unwrap();
    reencrypt::run(&file, &mut ledger, &reencrypt::Alone, &Options::default()).unwrap();
    drop(ledger);
    assert_eq!(turn().unwrap_err().kind(), ErrorKind::Busy);
    place.has_failed();
    drop(turn().unwrap());
    let alone = ReencryptionLock::take(header.uuid(), LockTo::Change);
    assert_eq!(alone.unwrap_err().kind(), ErrorKind::Busy, "it is open");
}
