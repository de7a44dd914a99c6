//! Power cuts at every write of a start, of a whole reencryption and of its end: the data is there, and the passphrase opens it.

mod begin;
mod beside;
mod records;

use std::cell::Cell;
use std::ops::Range;

use serde_json::Value;
use underseal_cipher::{InOutBuf, Key, SectorSize};

use super::*;
use crate::reencrypt::{Alone, Options, Outcome, Protection, run};
use crate::storage::recorder::{Recorder, left_of, once};
use crate::{
    ActivateOptions, Cost, ErrorKind, FormatOptions, Hash, NewHeader, Pbkdf, ReadAt, Result, Target,
    UnlockOptions, Volume, VolumeKey, storage,
};

const KIB: usize = 1 << 10;
const OFFSET: usize = 256 * KIB;
const DATA: usize = 16 * KIB;
const CHECKSUM: Protection = Protection::Checksum { hash: Hash::Sha256, block: 512 };

fn passphrase() -> Key {
    Key::new(b"passphrase").unwrap()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64 / 8).flat_map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 13).to_le_bytes()).collect()
}

/// Small, with short keys: for what is tried with it many times.
fn format_options() -> FormatOptions {
    FormatOptions {
        cipher: "aes-cbc-essiv:sha256".parse().unwrap(),
        key_size: Some(16),
        sector_size: Some(SectorSize::S512),
        data_offset: Some(OFFSET as u64),
        pbkdf: Pbkdf { cost: Cost::Iterations(1000), ..Pbkdf::pbkdf2() },
        ..FormatOptions::luks2()
    }
}

fn read(on: &(impl ReadAt + ?Sized)) -> Option<Header> {
    Header::read(on).ok().flatten()
}

fn activate(header: &Header, key: &VolumeKey, size: usize, detached: bool) -> Result<Volume> {
    header.activate(key, size as u64, &ActivateOptions { detached, ..ActivateOptions::default() })
}

fn each_segment(volume: &Volume, disk: &mut [u8], mut each: impl FnMut(&crate::Segment, &mut [u8])) {
    for segment in volume.segments() {
        let (_, lower) = segment.lower(segment.start).unwrap();
        let lower = usize::try_from(lower).unwrap();
        each(segment, &mut disk[lower..lower + usize::try_from(segment.len).unwrap()]);
    }
}

fn plaintext(volume: &Volume, disk: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    each_segment(volume, &mut disk.to_vec(), |segment, bytes| {
        let (cipher, sector) = segment.cipher(segment.start).unwrap();
        cipher.decrypt(sector, InOutBuf::from(&mut *bytes));
        plain.extend_from_slice(bytes);
    });
    plain
}

/// A volume that is filled with a pattern.
fn disk() -> (Recorder, Header, VolumeKey) {
    let disk = Recorder::new(vec![0; OFFSET + DATA]);
    let new = NewHeader::prepare((OFFSET + DATA) as u64, &passphrase(), format_options()).unwrap();
    new.write(&disk).unwrap();
    let (header, key) = (read(&disk).unwrap(), new.into_key());
    let volume = activate(&header, &key, OFFSET + DATA, false).unwrap();
    let mut bytes = disk.bytes().clone();
    let plain = pattern(DATA);
    each_segment(&volume, &mut bytes, |segment, bytes| {
        let start = usize::try_from(segment.start).unwrap();
        bytes.copy_from_slice(&plain[start..start + bytes.len()]);
        let (cipher, sector) = segment.cipher(segment.start).unwrap();
        cipher.encrypt(sector, InOutBuf::from(bytes));
    });
    (Recorder::new(bytes), header, key)
}

fn change(protection: Protection) -> BeginOptions {
    BeginOptions {
        cipher: None,
        sector_size: None,
        key: NewKey::Random(None),
        direction: Direction::Forward,
        protection,
        shift: None,
        size: None,
        detached: false,
        allow_null: false,
    }
}

fn begin(disk: &Recorder, header: &mut Header, key: VolumeKey, options: &BeginOptions) -> VolumeKey {
    let (passphrase, new) = (passphrase(), header.like_keyslot(0).unwrap());
    let passphrases = [Passphrase { slot: 0, passphrase: &passphrase, new }];
    header.begin_reencryption(disk, key, &passphrases, (OFFSET + DATA) as u64, options).unwrap()
}

/// Goes on to the end, or recovers only.
fn go_on(
    disk: &(impl Target + Sync),
    data: &(impl Target + Sync),
    key: &VolumeKey,
    detached: bool,
) -> Result<Outcome> {
    let size = storage::size(data)?;
    let options = ResumeOptions { detached, hot_zone: Some(8 * KIB as u64), ..ResumeOptions::default() };
    let mut ledger = Ledger::resume(disk, key, size, &options)?;
    run(data, &mut ledger, &Alone, &Options { workers: 1, ..Options::default() })
}

/// How many keys the passphrase opens.
fn opened(header: &Header, disk: &[u8]) -> u8 {
    let json = serde_json::to_vec(header.json()).unwrap();
    once(&[&json, &disk[32 * KIB..OFFSET]], || {
        let opened = header.unlock(disk, &passphrase(), &UnlockOptions::default());
        opened.map_or(0, |opened| 1 + u8::from(opened.key.other.is_some()))
    })
}

#[test]
fn a_crash_at_the_start_leaves_the_old_volume_or_one_that_is_being_reencrypted() {
    let (disk, mut header, key) = disk();
    let before = disk.bytes().clone();
    let both = begin(&disk, &mut header, key, &change(CHECKSUM));
    let mut seen = [false; 2];
    disk.each_crash(before, |disk, at| {
        let header = read(disk).unwrap_or_else(|| panic!("{at}"));
        let begun = header.reencryption().unwrap_or_else(|e| panic!("{at}: {e}")).is_some();
        assert_eq!(opened(&header, disk), 1 + u8::from(begun), "{at}");
        let volume = activate(&header, &both, disk.len(), false).unwrap_or_else(|e| panic!("{at}: {e}"));
        assert!(plaintext(&volume, disk) == pattern(DATA), "{at}");
        seen[usize::from(begun)] = true;
    });
    assert_eq!(seen, [true; 2], "both sides of the start were seen");
}

#[test]
fn what_cannot_be_begun_is_refused_and_nothing_is_written() {
    type Change = fn(&mut BeginOptions);
    let refused: [(&str, ErrorKind, Change); 9] = [
        ("nothing would change", ErrorKind::BadOption, |o| o.key = NewKey::Keep),
        ("LUKS has 512 to 4096", ErrorKind::BadOption, |o| {
            o.sector_size = Some(SectorSize::new(8192).unwrap())
        }),
        ("does not fit", ErrorKind::BadOption, |o| o.key = NewKey::Random(Some(17))),
        ("does not fit", ErrorKind::BadOption, |o| {
            (o.cipher, o.key) = (Some("aes-xts-plain64".parse().unwrap()), NewKey::Keep);
        }),
        ("encrypts nothing", ErrorKind::NullCipher, |o| o.cipher = Some("cipher_null-ecb".parse().unwrap())),
        ("up to", ErrorKind::BadOption, |o| o.size = Some(DATA as u64 + 512)),
        ("device ends", ErrorKind::TooSmall, |o| {
            (o.shift, o.direction) = (Some(DATA as u64), Direction::Backward);
        }),
        ("backward", ErrorKind::BadOption, |o| o.shift = Some(4096)),
        ("tell old sectors", ErrorKind::BadLayout, |o| o.sector_size = Some(SectorSize::S4096)),
    ];
    for (why, kind, make) in refused {
        let (disk, mut header, key) = disk();
        let mut options = change(CHECKSUM);
        make(&mut options);
        let (passphrase, new) = (passphrase(), header.like_keyslot(0).unwrap());
        let passphrases = [Passphrase { slot: 0, passphrase: &passphrase, new }];
        let size = (OFFSET + DATA) as u64;
        let error = header.begin_reencryption(&disk, key, &passphrases, size, &options).unwrap_err();
        assert_eq!(error.kind(), kind, "{why}: {error}");
        assert!(error.to_string().contains(why), "{why}: {error}");
        assert!(disk.is_untouched(), "{why}");
    }
    let (disk, mut header, key) = disk();
    let size = (OFFSET + DATA) as u64;
    let error = header.begin_reencryption(&disk, same(&key), &[], size, &change(CHECKSUM)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadOption);
    let (passphrase, new) = (passphrase(), header.like_keyslot(0).unwrap());
    let passphrases = [Passphrase { slot: 3, passphrase: &passphrase, new }];
    let error =
        header.begin_reencryption(&disk, same(&key), &passphrases, size, &change(CHECKSUM)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoKeyslot);
    let other = VolumeKey::new(Key::new(&[7; 16]).unwrap(), 0);
    let error = header.begin_reencryption(&disk, other, &passphrases, size, &change(CHECKSUM)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKey);
    assert!(disk.is_untouched());
    begin(&disk, &mut header, same(&key), &change(CHECKSUM));
    let error = header.begin_reencryption(&disk, key, &passphrases, size, &change(CHECKSUM)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "once is enough: {error}");
}

#[test]
fn a_crash_anywhere_in_a_whole_reencryption_loses_nothing() {
    for (protection, direction) in
        [(CHECKSUM, Direction::Forward), (Protection::Journal, Direction::Backward)]
    {
        let (disk, mut header, key) = disk();
        let both = begin(&disk, &mut header, key, &BeginOptions { direction, ..change(protection) });
        let slot = Reencryption::parse(header.metadata()).unwrap().unwrap().slot;
        let areas = [0, slot].map(|slot| {
            let (_, area) = header.areas().into_iter().find(|(number, _)| *number == slot).unwrap();
            usize::try_from(area.start).unwrap()..usize::try_from(area.end).unwrap()
        });
        disk.forget_events();
        let before = disk.bytes().clone();
        assert_eq!(go_on(&disk, &disk, &both, false).unwrap(), Outcome::Finished);
        for Range { start, end } in areas {
            // What was in the old keyslot, at least, is wiped.
            let end = end.min(start + 64_000);
            assert_eq!(left_of(&before[start..end], &disk.bytes()[start..end]), 0, "{protection:?}");
        }
        let (seen, recovered) = ([(); 4].map(|()| Cell::new(0)), Cell::new(0));
        let mut states = 0;
        disk.each_crash(before, |disk, at| {
            // Many are alike, and what an update of a header alone may leave is tried elsewhere.
            states += 1;
            if states % 4 != 0 {
                return;
            }
            let header = read(disk).unwrap_or_else(|| panic!("{at}"));
            let status = header.reencryption().unwrap_or_else(|e| panic!("{at}: {e}"));
            let stage = status.map_or(3, |status| status.stage as usize);
            seen[stage].set(seen[stage].get() + 1);
            assert!(opened(&header, disk) > 0, "{at}");
            let right = once(&[&disk[..32 * KIB], &disk[160 * KIB..]], || {
                if stage != Stage::Hot as usize {
                    let volume =
                        activate(&header, &both, disk.len(), false).unwrap_or_else(|e| panic!("{at}: {e}"));
                    return plaintext(&volume, disk) == pattern(DATA);
                }
                recovered.set(recovered.get() + 1);
                let disk = Recorder::new(disk.to_vec());
                go_on(&disk, &disk, &both, false).unwrap_or_else(|e| panic!("{at}: {e}"));
                let header = read(&disk).unwrap();
                let volume = activate(&header, &both, disk.bytes().len(), false).unwrap();
                let bytes = disk.bytes().clone();
                header.reencryption().unwrap().is_none() && plaintext(&volume, &bytes) == pattern(DATA)
            });
            assert!(right, "{at}");
        });
        let seen = seen.map(|count| count.get());
        assert!(seen.iter().all(|&count| count > 5) && recovered.get() > 10, "{seen:?}, {recovered:?}");
    }
}

#[test]
fn a_crash_while_a_header_comes_in_front_of_plain_data_leaves_one_that_describes_it() {
    let (size, aside) = (DATA + 2 * OFFSET, OFFSET);
    let plain = pattern(size - 2 * OFFSET);
    let disk = Recorder::new([&plain[..], &vec![0; 2 * OFFSET + aside]].concat());
    let (device, file) = (disk.part(0..size as u64), disk.part(size as u64..(size + aside) as u64));
    let options = EncryptOptions {
        format: format_options(),
        direction: Direction::Backward,
        protection: Protection::None,
        reduce: Some(2 * OFFSET as u64),
        size: None,
    };
    let new = NewVolume::prepare(size as u64, &passphrase(), options).unwrap();
    let before = disk.bytes().clone();
    new.write_in_front(&device, &file).unwrap();
    let key = new.into_key();
    let (mut seen, mut again) = ([false; 3], 0);
    disk.each_crash(before, |disk, at| {
        let (device, file) = disk.split_at(size);
        let holds = |header: &Header, detached| {
            let volume = activate(header, &key, size, detached).unwrap_or_else(|e| panic!("{at}: {e}"));
            assert_eq!(header.reencryption().unwrap().map(|status| status.stage), Some(Stage::Clean), "{at}");
            assert!(plaintext(&volume, device) == plain, "{at}");
        };
        let headers = [read(device), read(file)];
        if headers.iter().all(Option::is_none) {
            // Nothing has been overwritten yet.
            assert!(device[..plain.len()] == plain, "{at}");
            seen[2] = true;
        }
        if let [None, Some(header)] = &headers {
            again += 1;
            if again % 32 == 1 {
                // A start that was cut off is gone on with.
                let (device, file) = (Recorder::new(device.to_vec()), Recorder::new(file.to_vec()));
                let header = header.put_in_front(&file, &device).unwrap_or_else(|e| panic!("{at}: {e}"));
                let volume = activate(&header, &key, size, false).unwrap();
                assert!(plaintext(&volume, &device.bytes()) == plain, "{at}");
            }
        }
        for (number, header) in
            headers.iter().enumerate().filter_map(|(i, header)| Some((i, header.as_ref()?)))
        {
            holds(header, number == 1);
            seen[number] = true;
        }
    });
    assert_eq!(seen, [true; 3]);
    let finished = Recorder::new(disk.bytes()[..size].to_vec());
    assert_eq!(go_on(&finished, &finished, &key, false).unwrap(), Outcome::Finished);
    let header = read(&finished).unwrap();
    let bytes = finished.bytes().clone();
    let volume = activate(&header, &key, size, false).unwrap();
    assert!(plaintext(&volume, &bytes)[..plain.len()] == plain);
    // No plaintext is left where it was moved to.
    assert_eq!(left_of(&plain, &bytes[size - OFFSET..]), 0);
}

/// An encryption whose header comes in front: the plain data, the device, the file that has the header meanwhile, and the key.
/// `room` is what the header has for keyslots.
fn in_front(len: usize, room: Option<usize>) -> (Vec<u8>, Recorder, Recorder, VolumeKey) {
    let plain = pattern(len);
    let device = Recorder::new([&plain[..], &vec![0; 2 * OFFSET]].concat());
    let file = Recorder::new(vec![0; OFFSET]);
    let options = EncryptOptions {
        format: FormatOptions { keyslots_size: room.map(|room| room as u64), ..format_options() },
        direction: Direction::Backward,
        protection: Protection::None,
        reduce: Some(2 * OFFSET as u64),
        size: None,
    };
    let new = NewVolume::prepare((len + 2 * OFFSET) as u64, &passphrase(), options).unwrap();
    new.write_in_front(&device, &file).unwrap();
    (plain, device, file, new.into_key())
}

#[test]
fn a_crash_while_a_header_is_exported_leaves_one_that_describes_the_data() {
    let (whole, header, key) = disk();
    let size = OFFSET + DATA;
    let disk = Recorder::new([whole.bytes().clone(), vec![0; OFFSET]].concat());
    let (device, file) = (disk.part(0..size as u64), disk.part(size as u64..(size + OFFSET) as u64));
    let options = DecryptOptions {
        direction: Direction::Forward,
        protection: Protection::Journal,
        first: Some(8 * KIB as u64),
        size: None,
        over_header: true,
        allow_null: false,
    };
    let before = disk.bytes().clone();
    let mut exported = header.export(&device, &file, &key, &options).unwrap();
    exported.begin_decryption(&file, &device, &key, &options).unwrap();
    let (mut seen, mut again) = ([false; 3], 0);
    disk.each_crash(before, |disk, at| {
        let (device, file) = disk.split_at(size);
        let holds = |header: &Header, detached| {
            let volume = activate(header, &key, size, detached).unwrap_or_else(|e| panic!("{at}: {e}"));
            assert!(plaintext(&volume, device) == pattern(DATA), "{at}");
        };
        if let Some(header) = read(device) {
            holds(&header, false);
            seen[0] = true;
            return;
        }
        let header = read(file).unwrap_or_else(|| panic!("{at}: no header is left"));
        holds(&header, true);
        let begun = header.reencryption().unwrap().is_some();
        seen[1 + usize::from(begun)] = true;
        again += 1;
        if again % 16 == 1 && !begun {
            // A start that was cut off is made again.
            let (device, file) = (Recorder::new(device.to_vec()), Recorder::new(file.to_vec()));
            let mut header = read(&file).unwrap();
            header.begin_decryption(&file, &device, &key, &options).unwrap_or_else(|e| panic!("{at}: {e}"));
            assert_eq!(go_on(&file, &device, &key, true).unwrap(), Outcome::Finished, "{at}");
            assert!(device.bytes()[..DATA] == pattern(DATA), "{at}");
        }
    });
    assert_eq!(seen, [true; 3]);
    assert_eq!(go_on(&file, &device, &key, true).unwrap(), Outcome::Finished);
    assert!(disk.bytes()[..DATA] == pattern(DATA));
}

/// Every number and every word somewhere in a document, by its path.
fn leaves(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            members.iter().for_each(|(name, value)| leaves(value, &format!("{path}/{name}"), found))
        }
        Value::Array(items) => {
            found.push(path.into());
            items.iter().enumerate().for_each(|(i, value)| leaves(value, &format!("{path}/{i}"), found));
        }
        _ => found.push(path.into()),
    }
}

fn same(key: &VolumeKey) -> VolumeKey {
    let copy = |key: &Key| Key::new(key.as_bytes()).unwrap();
    let other = key.other.as_ref().map(|(digest, other)| (*digest, copy(other)));
    VolumeKey { key: copy(&key.key), digest: key.digest, other }
}

/// Documents of reencryptions of all modes at some of their stages, with the keys.
fn documents() -> Vec<(Value, VolumeKey)> {
    use crate::reencrypt::{Ledger as _, Progress};
    let mut all = Vec::new();
    let document = |header: &Header| Value::Object(header.json().clone());
    let (on, mut header, key) = disk();
    let options = BeginOptions { direction: Direction::Backward, ..change(Protection::Journal) };
    let key = begin(&on, &mut header, key, &options);
    let mut ledger = Ledger::resume(&on, &key, (OFFSET + DATA) as u64, &ResumeOptions::default()).unwrap();
    for (done, hot) in [(4096, None), (4096, Some(8192)), (8192, Some(8192)), (16384, None)] {
        ledger.record(Progress { done, hot }).unwrap();
        all.push((document(ledger.header()), same(&key)));
    }
    let options = EncryptOptions {
        format: format_options(),
        direction: Direction::Backward,
        protection: Protection::None,
        reduce: Some(2 * OFFSET as u64),
        size: None,
    };
    let device = Recorder::new(vec![0; DATA + 2 * OFFSET]);
    let new = NewVolume::prepare(device.bytes().len() as u64, &passphrase(), options).unwrap();
    new.write_in_front(&device, &Recorder::new(vec![0; OFFSET])).unwrap();
    all.push((document(&read(&device).unwrap()), new.into_key()));
    let (on, header, key) = disk();
    let options = DecryptOptions {
        direction: Direction::Forward,
        protection: CHECKSUM,
        first: Some(8 * KIB as u64),
        size: None,
        over_header: true,
        allow_null: false,
    };
    let to = Recorder::new(vec![0; OFFSET]);
    let mut header = header.export(&on, &to, &key, &options).unwrap();
    header.begin_decryption(&to, &on, &key, &options).unwrap();
    all.push((document(&header), key));
    all
}

#[test]
fn what_an_attacker_writes_is_refused_or_makes_a_volume_within_its_device() {
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = move |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random >> 16).unwrap() % below
    };
    let (mut taken, mut refused) = (0, 0);
    for (document, key) in documents() {
        let mut places = Vec::new();
        leaves(&document, "", &mut places);
        let sizes = [0, 1 << 16, (OFFSET + DATA) as u64, 1 << 30, u64::MAX];
        for _ in 0..1500 {
            let mut forged = document.clone();
            for _ in 0..=next(3) {
                let Some(place) = forged.pointer_mut(&places[next(places.len())]) else { continue };
                let numbers = [
                    "0",
                    "512",
                    "8192",
                    "262144",
                    "270336",
                    "18446744073709551104",
                    "9223372036854775296",
                    "dynamic",
                ];
                *place = match next(6) {
                    0 => numbers[next(numbers.len())].into(),
                    1 => [0u64, 1, 512, 4096, 1 << 20, 1 << 31][next(6)].into(),
                    2 => ["linear", "crypt", "forward", "backward", "encrypt", "decrypt", "reencrypt"]
                        [next(7)]
                    .into(),
                    3 => ["checksum", "journal", "none", "datashift", "datashift-checksum"][next(5)].into(),
                    4 => serde_json::json!([next(6).to_string()]),
                    _ => serde_json::json!(
                        [["in-reencryption"], ["backup-final"], ["backup-moved-segment"]][next(3)]
                    ),
                };
            }
            let Value::Object(forged) = forged else { continue };
            let Ok(metadata) = Metadata::parse(forged, 16 << 10) else { continue };
            let Ok(Some(of)) = Reencryption::parse(&metadata) else { continue };
            shape::stage(&metadata, &of);
            for data_size in sizes {
                let given = shape::Given { data_size, hot_zone: None, allow_null: false, detached: true };
                // As if the attacker had the keys.
                let Ok((plan, progress)) = shape::read(&metadata, &of, &key, given) else {
                    refused += 1;
                    continue;
                };
                taken += 1;
                let volume = plan.volume(progress).unwrap();
                let ends = volume
                    .segments()
                    .iter()
                    .map(|segment| segment.lower(segment.start).unwrap().1 + segment.len);
                assert!(ends.max() <= Some(data_size), "{:?}", metadata.document);
            }
        }
    }
    assert!(taken > 100 && refused > 1000, "{taken} {refused}");
}

mod ends;
mod starts;
