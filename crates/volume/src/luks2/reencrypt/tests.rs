//! Volumes on disks in memory that are reencrypted, and the shared parts of the tests.

mod begin;
mod beside;
mod crashes;
mod ends;
mod forged;
mod headers;
mod records;
mod signs;
mod starts;
mod unwiped;

use underseal_cipher::{InOutBuf, Key, SectorSize};

use super::*;
use crate::reencrypt::{Alone, Options, Outcome, Protection, run};
use crate::storage::recorder::{Recorder, once};
use crate::{
    ActivateOptions, Cost, FormatOptions, Hash, NewHeader, Pbkdf, ReadAt, Result, Target, UnlockOptions,
    Volume, VolumeKey, storage,
};

const KIB: usize = 1 << 10;
const OFFSET: usize = 256 * KIB;
const DATA: usize = 16 * KIB;
/// Decryption over the header.
const DECRYPT: DecryptOptions = DecryptOptions {
    direction: Direction::Forward,
    protection: Protection::Journal,
    first: Some(8 * KIB as u64),
    size: None,
    over_header: true,
    allow_null: false,
    is_open: false,
};
const CHECKSUM: Protection = Protection::Checksum { hash: Hash::Sha256, block: 512 };

fn passphrase() -> Key {
    Key::new(b"passphrase").unwrap()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64 / 8).flat_map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 13).to_le_bytes()).collect()
}

/// Small parameters with short keys, for cases with many runs.
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
        is_open: false,
    }
}

fn begin(disk: &Recorder, header: &mut Header, key: VolumeKey, options: &BeginOptions) -> VolumeKey {
    let (passphrase, new) = (passphrase(), header.like_keyslot(0).unwrap());
    let passphrases = [Passphrase { slot: 0, passphrase: &passphrase, new }];
    header.begin_reencryption(disk, key, &passphrases, (OFFSET + DATA) as u64, options).unwrap()
}

/// Resumes the reencryption to its end, or recovers only.
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

/// Returns the number of keys that the passphrase opens.
fn opened(header: &Header, disk: &[u8]) -> u8 {
    let json = serde_json::to_vec(header.json()).unwrap();
    once(&[&json, &disk[32 * KIB..OFFSET]], || {
        let opened = header.unlock(disk, &passphrase(), &UnlockOptions::default());
        opened.map_or(0, |opened| 1 + u8::from(opened.key.other.is_some()))
    })
}

/// Encryption by moving data backward, so that there is room in front for a header.
fn in_front_options() -> EncryptOptions {
    EncryptOptions {
        format: format_options(),
        direction: Direction::Backward,
        protection: Protection::None,
        reduce: Some(2 * OFFSET as u64),
        size: None,
    }
}

/// An encryption with a header in front: the plain data, the device and the key. `room` is the
/// header's room for keyslots.
fn in_front(len: usize, room: Option<usize>) -> (Vec<u8>, Recorder, VolumeKey) {
    let plain = pattern(len);
    let device = Recorder::new([&plain[..], &vec![0; 2 * OFFSET]].concat());
    let format = FormatOptions { keyslots_size: room.map(|room| room as u64), ..format_options() };
    let options = EncryptOptions { format, ..in_front_options() };
    let new = NewVolume::prepare((len + 2 * OFFSET) as u64, &passphrase(), options).unwrap();
    new.write_in_front(&device).unwrap();
    (plain, device, new.into_key())
}

fn same(key: &VolumeKey) -> VolumeKey {
    let copy = |key: &Key| Key::new(key.as_bytes()).unwrap();
    let other = key.other.as_ref().map(|(digest, other)| (*digest, copy(other)));
    VolumeKey { key: copy(&key.key), digest: key.digest, other }
}
