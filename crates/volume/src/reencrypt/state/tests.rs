use std::fs::File;

use proptest::prelude::*;
use underseal_cipher::SectorSize;

use super::*;
use crate::reencrypt::{Alone, Direction, Mode, Options, Outcome, Protection, run};
use crate::storage::bytes::Bytes;
use crate::volume::Stored;
use crate::{CipherParameters, Hash, info::hex};

const DATA: u64 = 8192;
const COPY: usize = 16 << 10;
const BEHIND: usize = 32 << 10;

fn key(filler: u8) -> Key {
    Key::new(&[[filler; 16], [filler ^ 1; 16]].concat()).unwrap()
}

fn stored(key: &Key) -> Stored {
    let cipher = "aes-xts-plain64".parse().unwrap();
    let cipher_parameters = CipherParameters {
        cipher,
        sector_size: SectorSize::S512,
        iv_large_sectors: false,
        key_size: key.len(),
        integrity: None,
    };
    let cipher = cipher_parameters.build(key).unwrap();
    Stored { device: 0, lower: 0, iv_offset: 7, cipher, cipher_parameters: Some(cipher_parameters.into()) }
}

fn plan() -> Plan {
    Plan {
        mode: Mode::Reencrypt,
        direction: Direction::Forward,
        size: DATA,
        old: stored(&key(1)),
        new: stored(&key(2)),
        moved: None,
        protection: Protection::Checksum { hash: Hash::Sha256, block: 512 },
        area: 64,
        hot_zone: 1024,
        alignment: 512,
    }
}

fn file() -> Bytes {
    Bytes::new(vec![0; BEHIND + 64])
}

fn created(on: &dyn Target) -> StateLedger<'_> {
    let (old, new) = (key(1), key(2));
    StateLedger::create(on, plan(), Keys { old: Some(&old), new: Some(&new) }, DATA, 3).unwrap()
}

fn unlock<'a>(on: &'a dyn Target, old: &Key, new: &Key, size: u64) -> Result<StateLedger<'a>> {
    State::read(on, LockTo::Change)?.unlock(Keys { old: Some(old), new: Some(new) }, size)
}

fn bytes(of: &Bytes) -> Vec<u8> {
    storage::read(of, 0, BEHIND + 64).unwrap()
}

/// Returns a copy of the document with another text, and the right checksum.
fn forge(copy: &[u8], from: &str, to: &str) -> Vec<u8> {
    let line = copy.iter().position(|&byte| byte == b'\n').unwrap() + 1;
    let (head, rest) = copy.split_at(line + "sha256:\n".len() + 64);
    let text = String::from_utf8(rest.to_vec()).unwrap();
    assert!(text.contains(from), "{from}");
    let mut rest = text.replacen(from, to, 1).into_bytes();
    rest.resize(copy.len() - head.len(), 0);
    let sum = format!("sha256:{}\n", hex(&Hash::Sha256.digest(&[&rest])));
    [&head[..line], sum.as_bytes(), &rest].concat()
}

#[test]
fn what_was_recorded_is_read_back_by_who_has_the_keys() {
    let on = file();
    let mut ledger = created(&on);
    let identity = ledger.about().identity;
    for progress in [Progress { done: 0, hot: Some(1024) }, Progress { done: 1024, hot: None }] {
        ledger.record(progress).unwrap();
        let again = unlock(&on, &key(1), &key(2), DATA).unwrap();
        assert_eq!((again.progress(), again.about().identity), (progress, identity));
        let (one, other) = (again.plan(), ledger.plan());
        assert_eq!(format!("{one:?}"), format!("{other:?}"));
    }
    let about = State::read(&on, LockTo::Read).unwrap().about();
    assert_eq!((about.done, about.size, about.hot), (1024, DATA, false));
    assert_eq!(about.new.as_deref(), Some("aes-xts-plain64"));
    // The file contains no key.
    let all = bytes(&on);
    assert!(!all.windows(8).any(|window| window == [1; 8] || window == [2; 8]));
}

#[test]
fn other_keys_and_other_devices_are_refused_by_name() {
    let on = file();
    created(&on);
    let refused = |old: &Key, new: &Key, size| {
        let Err(e) = unlock(&on, old, new, size) else { panic!("it was taken") };
        (e.kind(), e.to_string())
    };
    let (kind, why) = refused(&key(3), &key(2), DATA);
    assert!(kind == ErrorKind::WrongKey && why.contains("old key"), "{why}");
    let (kind, why) = refused(&key(1), &key(1), DATA);
    assert!(kind == ErrorKind::WrongKey && why.contains("new key"), "{why}");
    let (kind, why) = refused(&key(1), &Key::new(&[2; 64]).unwrap(), DATA);
    assert!(kind == ErrorKind::WrongKey && why.contains("32 bytes, not 64"), "{why}");
    let (kind, why) = refused(&key(1), &key(2), DATA + 512);
    assert!(
        kind == ErrorKind::BadLayout && why.contains("if it is the right one, make it 8192 bytes long again"),
        "{why}"
    );
    let (kind, why) = {
        let keys = Keys { old: None, new: Some(&key(2)) };
        let Err(e) = State::read(&on, LockTo::Change).unwrap().unlock(keys, DATA) else { panic!() };
        (e.kind(), e.to_string())
    };
    assert!(kind == ErrorKind::WrongKey && why.contains("none was given"), "{why}");
}

#[test]
fn what_somebody_without_the_keys_wrote_is_refused() {
    let on = file();
    created(&on).record(Progress { done: 1024, hot: None }).unwrap();
    let all = bytes(&on);
    for (from, to, kind) in [
        ("\"done\":\"1024\"", "\"done\":\"2048\"", ErrorKind::Untrusted),
        ("\"size\":\"8192\"", "\"size\":\"4096\"", ErrorKind::Untrusted),
        ("\"mode\":\"reencrypt\"", "\"mode\":\"decrypt\"", ErrorKind::Untrusted),
        ("aes-xts-plain64", "cipher_null-ecb", ErrorKind::Untrusted),
        ("\"iterations\":3", "\"iterations\":4", ErrorKind::WrongKey),
        ("\"iterations\":3", "\"iterations\":0", ErrorKind::BadHeader),
        ("\"iterations\":3", "\"iterations\":4294967295", ErrorKind::TooCostly),
        ("\"salt\":\"", "\"salt\":\"!", ErrorKind::BadHeader),
        ("\"version\":1", "\"version\":2", ErrorKind::Unsupported),
        ("\"version\":1", "\"version\":1,\"more\":1", ErrorKind::BadHeader),
        ("\"done\":\"1024\"", "\"done\":1024", ErrorKind::BadHeader),
        ("\"done\":\"1024\"", "\"done\":\"+1024\"", ErrorKind::BadHeader),
        ("\"done\":\"1024\"", "\"done\":\"99999999999999999999\"", ErrorKind::BadHeader),
        ("\"offset\":\"32768\"", "\"offset\":\"0\"", ErrorKind::BadHeader),
    ] {
        // Both copies, since a sound copy would count.
        let forged = forge(&all[COPY..2 * COPY], from, to);
        let on = Bytes::new([&forged[..], &forged, &all[2 * COPY..]].concat());
        let Err(e) = unlock(&on, &key(1), &key(2), DATA) else { panic!("{to} was taken") };
        assert_eq!(e.kind(), kind, "{to}: {e}");
        assert_eq!(bytes(&on)[..COPY], forged, "nothing is written");
    }
}

#[test]
fn of_two_copies_the_newer_sound_one_counts() {
    let on = file();
    let mut ledger = created(&on);
    ledger.record(Progress { done: 1024, hot: None }).unwrap();
    ledger.record(Progress { done: 2048, hot: None }).unwrap();
    let all = bytes(&on);
    let damage = |at: &[usize]| {
        let mut all = all.clone();
        at.iter().for_each(|&at| all[at] ^= 1);
        State::read(&Bytes::new(all), LockTo::Read).map(|state| state.about().done).map_err(|e| e.kind())
    };
    assert_eq!(damage(&[]), Ok(2048));
    for place in [0, 40, 100, 300, COPY - 1] {
        assert_eq!(damage(&[place]), Ok(1024), "{place}");
        assert_eq!(damage(&[COPY + place]), Ok(2048), "{place}");
    }
    assert_eq!(damage(&[300, COPY + 300]), Err(ErrorKind::BadHeader));
    assert_eq!(damage(&[0, COPY]), Err(ErrorKind::NoHeader));
    let short = Bytes::new(all[..COPY - 1].to_vec());
    assert_eq!(State::read(&short, LockTo::Read).map(|_| ()).unwrap_err().kind(), ErrorKind::NoHeader);
    let cut = Bytes::new(all[..BEHIND + 63].to_vec());
    assert_eq!(unlock(&cut, &key(1), &key(2), DATA).map(|_| ()).unwrap_err().kind(), ErrorKind::TooSmall);
}

#[test]
fn a_state_is_never_begun_over_another_nor_used_twice() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).open(folder.path().join("state")).unwrap()
    };
    let (one, two) = (open(), open());
    let ledger = created(&one);
    assert_eq!(one.metadata().unwrap().len(), AREA + 64);
    assert_eq!(State::read(&two, LockTo::Change).map(|_| ()).unwrap_err().kind(), ErrorKind::Locked);
    drop(ledger);
    let keys = (key(1), key(2));
    let keys = Keys { old: Some(&keys.0), new: Some(&keys.1) };
    let refused = StateLedger::create(&two, plan(), keys, DATA, 3).map(|_| ()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::BadOption);
    let swapped = Keys { old: keys.new, new: None };
    let refused = StateLedger::create(&file(), plan(), swapped, DATA, 3).map(|_| ()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::BadOption);
}

#[test]
fn nothing_of_the_area_is_left_when_all_is_new() {
    let on = file();
    let folder = tempfile::tempdir().unwrap();
    let disk =
        File::options().read(true).write(true).create_new(true).open(folder.path().join("disk")).unwrap();
    disk.set_len(DATA).unwrap();
    let mut ledger = created(&on);
    ledger.write_area(0, &[0x77; 64]).unwrap();
    assert_eq!(ledger.write_area(1, &[0; 64]).unwrap_err().kind(), ErrorKind::TooSmall);
    assert_eq!(ledger.read_area(u64::MAX, &mut [0; 1]).unwrap_err().kind(), ErrorKind::TooSmall);
    assert_eq!(run(&disk, &mut ledger, &Alone, &Options::default()).unwrap(), Outcome::Finished);
    let mut last = vec![0; 1024];
    storage::read_into(&disk, DATA - 1024, &mut last).unwrap();
    let hashes: Vec<u8> =
        last.chunks(512).flat_map(|block| Hash::Sha256.digest(&[block]).into_vec()).collect();
    let left = bytes(&on)[BEHIND..].to_vec();
    assert!(left != hashes && left != [0x77; 64]);
    // A second run does nothing.
    assert_eq!(run(&disk, &mut ledger, &Alone, &Options::default()).unwrap(), Outcome::Finished);
    assert_eq!(bytes(&on)[BEHIND..], left);
    assert!(State::read(&on, LockTo::Read).unwrap().about().finished);
}

#[test]
fn the_end_wipes_the_area_whatever_it_holds() {
    let (on, disk) = (file(), tempfile::tempfile().unwrap());
    disk.set_len(DATA).unwrap();
    let mut ledger = created(&on);
    ledger.write_area(0, &[0x77; 64]).unwrap();
    ledger.finish(&disk).unwrap();
    assert!(!bytes(&on)[BEHIND..].windows(8).any(|left| left == [0x77; 8]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_text_with_a_right_checksum_is_refused_without_harm(
        at in 0..900usize,
        with in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let on = file();
        created(&on);
        let all = bytes(&on);
        let copy = &all[..COPY];
        let line = copy.iter().position(|&byte| byte == b'\n').unwrap() + 1;
        let (head, rest) = copy.split_at(line + "sha256:\n".len() + 64);
        let mut rest = rest.to_vec();
        rest.splice(at..at + with.len(), with);
        let changed = rest != copy[head.len()..];
        let sum = format!("sha256:{}\n", hex(&Hash::Sha256.digest(&[&rest])));
        let forged = [&head[..line], sum.as_bytes(), &rest, &all[COPY..]].concat();
        let on = Bytes::new(forged);
        prop_assert_eq!(unlock(&on, &key(1), &key(2), DATA).is_err(), changed);
    }
}
