use std::cell::Cell;

use underseal_volume::luks2::{BeginOptions, NewKey, Passphrase};
use underseal_volume::reencrypt::{Direction, Protection};
use underseal_volume::{ActivateOptions, Cost, FormatOptions, NewHeader, Pbkdf, Volume};

use super::*;

pub(super) const SIZE: u64 = 17 << 20;

/// So many steps.
struct Steps(Cell<u32>);

impl Foreground for Steps {
    fn claim(&self, range: Range<u64>) -> underseal_volume::Result<Box<dyn Claim + '_>> {
        NoStep.claim(range)
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

/// A file with a volume that has begun to get another key.
pub(super) fn begun() -> (File, VolumeKey) {
    let file = tempfile::tempfile().unwrap();
    file.set_len(SIZE).unwrap();
    let passphrase = Key::new(b"a passphrase").unwrap();
    let pbkdf = Pbkdf { cost: Cost::Iterations(1000), ..Pbkdf::pbkdf2() };
    let new =
        NewHeader::prepare(SIZE, &passphrase, FormatOptions { pbkdf, ..FormatOptions::luks2() }).unwrap();
    new.write(&file).unwrap();
    let Header::Luks2(mut header) = Header::read(&file).unwrap() else { panic!("another version") };
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
    };
    let slot = Passphrase { slot: 0, passphrase: &passphrase, new: header.like_keyslot(0).unwrap() };
    let key = header.begin_reencryption(&file, new.into_key(), &[slot], SIZE, &options).unwrap();
    (file, key)
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
    let kept = Kept::Header { apart: None, allow_null: false };
    let place = Place::new(Where::File(file.try_clone().unwrap()), kept);
    let now = held(read, &file, &place).unwrap();
    assert_eq!(forms(&activated(&now, &key)), 2, "the old map would be used");
    // From now on nobody else takes any, where that can be locked at all.
    if place.lock().is_some() {
        let e = Ledger::resume(&file, &key, SIZE, &options).map(drop).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Busy);
    }
}
