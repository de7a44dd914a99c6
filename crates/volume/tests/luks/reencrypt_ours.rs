//! Reencryptions started by underseal, of every kind, and disks that disappear or fail in the
//! middle.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use underseal_cipher::SectorSize;
use underseal_volume::luks2::{
    BeginOptions, DecryptOptions, EncryptOptions, Ledger, NewKey, NewVolume, Passphrase, ResumeOptions,
};
use underseal_volume::reencrypt::{Direction, Options, Outcome, Protection, run};
use underseal_volume::{FormatOptions, Hash, HeaderLock, LockTo, ReadAt, Result, Target, VolumeKey, format};

use crate::reencrypt::{Disk, Steps};
use crate::support::*;

pub(crate) const CHECKSUM: Protection = Protection::Checksum { hash: Hash::Sha256, block: 4096 };
pub(crate) const KIB: u64 = 1 << 10;
/// The size of the data.
pub(crate) const SIZE: u64 = 320 * KIB;
/// The beginning of the data behind a header in front.
pub(crate) const OFFSET: u64 = 512 * KIB;

pub(crate) fn options(detached: bool) -> FormatOptions {
    let sector_size = Some(SectorSize::S512);
    let options = FormatOptions { detached, key_size: Some(32), sector_size, ..FormatOptions::luks2() };
    let options = FormatOptions { pbkdf: underseal_volume::Pbkdf::pbkdf2(), ..options };
    cheap(FormatOptions {
        data_offset: Some(if detached { 0 } else { OFFSET }),
        keyslots_size: Some(OFFSET - 32 * KIB),
        ..options
    })
}

pub(crate) fn pattern(len: u64) -> Vec<u8> {
    let word = |i: u64| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 13).to_le_bytes();
    (0..len / 8).flat_map(word).collect()
}

/// A volume made by underseal, filled with [`pattern`].
pub(crate) fn volume(scratch: &Scratch, detached: bool) -> (Disk, VolumeKey) {
    let data = scratch.image("data", if detached { SIZE } else { OFFSET + SIZE });
    let header = if detached { scratch.image("header", 0) } else { data.clone() };
    let disk = Disk { data, header };
    let (_, key) =
        format(&open(&disk.header), size(&disk.data), &key(PASSPHRASE.as_bytes()), options(detached))
            .unwrap();
    write_plaintext(&disk.activate(&key).unwrap(), &disk.data, &pattern(SIZE));
    (disk, key)
}

pub(crate) fn begin(disk: &Disk, key: VolumeKey, change: impl FnOnce(&mut BeginOptions)) -> VolumeKey {
    let mut header = disk.read().unwrap();
    let mut options = BeginOptions {
        cipher: None,
        sector_size: None,
        key: NewKey::Random(None),
        direction: Direction::Forward,
        protection: CHECKSUM,
        shift: None,
        size: None,
        detached: disk.header != disk.data,
        allow_null: false,
        is_open: false,
    };
    change(&mut options);
    let (passphrase, new) = (crate::support::key(PASSPHRASE.as_bytes()), header.like_keyslot(0).unwrap());
    let passphrases = [Passphrase { slot: 0, passphrase: &passphrase, new }];
    let file = open(&disk.header);
    header.begin_reencryption(&file, key, &passphrases, size(&disk.data), &options).unwrap()
}

/// A file that disappears after a number of writes, counted over all files with the same counter,
/// or that fails a single write.
pub(crate) struct Dying<'c> {
    file: File,
    left: &'c AtomicU64,
    comes_back: bool,
}

impl ReadAt for Dying<'_> {
    fn size(&self) -> io::Result<u64> {
        ReadAt::size(&self.file)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        ReadAt::read_exact_at(&self.file, buf, offset)
    }

    fn lock_within(&self, to: LockTo, patience: Duration) -> Result<Option<HeaderLock<'_>>> {
        ReadAt::lock_within(&self.file, to, patience)
    }
}

impl Target for Dying<'_> {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        match self.left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)) {
            Ok(1) => {
                // A part of the last write arrives.
                Target::write_all_at(&self.file, &bytes[..bytes.len() / 1024 * 512], offset)?;
                Err(io::ErrorKind::BrokenPipe.into())
            }
            Ok(_) => Target::write_all_at(&self.file, bytes, offset),
            Err(_) if self.comes_back => Target::write_all_at(&self.file, bytes, offset),
            Err(_) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn sync_all(&self) -> io::Result<()> {
        if self.left.load(SeqCst) == 0 && !self.comes_back {
            Err(io::ErrorKind::BrokenPipe.into())
        } else {
            Ok(())
        }
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        Target::set_len(&self.file, size)
    }
}

/// Resumes until that many writes have been made. Returns true when the end was reached before.
pub(crate) fn die(disk: &Disk, key: &VolumeKey, writes: u64) -> bool {
    fail(disk, key, writes, false)
}

pub(crate) fn fail(disk: &Disk, key: &VolumeKey, writes: u64, comes_back: bool) -> bool {
    let left = AtomicU64::new(writes);
    let dying = |path: &Path| Dying { file: open(path), left: &left, comes_back };
    let (header, data) = (dying(&disk.header), dying(&disk.data));
    let options = ResumeOptions {
        detached: disk.header != disk.data,
        hot_zone: Some(64 * KIB),
        ..ResumeOptions::default()
    };
    let mut ledger = Ledger::resume(&header, key, size(&disk.data), &options).unwrap();
    let outcome =
        run(&data, &mut ledger, &Steps(Cell::new(u64::MAX)), &Options { workers: 1, ..Options::default() });
    outcome.is_ok_and(|outcome| outcome == Outcome::Finished)
}

/// A reencryption that underseal has started.
pub(crate) fn begun(scratch: &Scratch, kind: usize) -> Option<(Disk, VolumeKey, &'static str)> {
    let in_place = |change: fn(&mut BeginOptions), what| {
        let (disk, key) = volume(scratch, false);
        let key = begin(&disk, key, change);
        Some((disk, key, what))
    };
    let secret = key(PASSPHRASE.as_bytes());
    let decrypt = |protection| DecryptOptions {
        over_header: true,
        direction: Direction::Backward,
        protection,
        first: None,
        size: None,
        allow_null: false,
        is_open: false,
    };
    let encrypt = |format: FormatOptions, reduce| EncryptOptions {
        format,
        direction: Direction::Forward,
        protection: Protection::Journal,
        reduce,
        size: None,
    };
    match kind {
        0 => in_place(|_| (), "checksums"),
        1 => in_place(|o| o.protection = Protection::Journal, "journal"),
        2 => in_place(|o| o.direction = Direction::Backward, "backward"),
        3 => in_place(
            |o| {
                (o.sector_size, o.key) = (Some(SectorSize::S4096), NewKey::Keep);
                o.protection = Protection::Journal;
            },
            "larger sectors under the same key",
        ),
        4 => in_place(
            |o| (o.cipher, o.key) = (Some("aes-cbc-essiv:sha256".parse().unwrap()), NewKey::Random(Some(32))),
            "cipher",
        ),
        5 => {
            let (disk, key) = volume(scratch, true);
            let mut header = disk.read().unwrap();
            header
                .begin_decryption(&open(&disk.header), &open(&disk.data), &key, &decrypt(CHECKSUM))
                .unwrap();
            Some((disk, key, "decryption, header apart"))
        }
        6 => {
            let (disk, key) = volume(scratch, false);
            let to = scratch.image("exported", 0);
            let options = DecryptOptions { first: Some(64 * KIB), ..decrypt(Protection::Journal) };
            let mut header =
                disk.read().unwrap().export(&open(&disk.data), &open(&to), &key, &options).unwrap();
            let disk = Disk { header: to, data: disk.data };
            header.begin_decryption(&open(&disk.header), &open(&disk.data), &key, &options).unwrap();
            Some((disk, key, "decryption, header exported"))
        }
        7 => {
            let data = scratch.file("plain", &pattern(SIZE));
            let disk = Disk { header: scratch.image("header", 0), data };
            let new = NewVolume::prepare(SIZE, &secret, encrypt(options(true), None)).unwrap();
            new.write(&open(&disk.header)).unwrap();
            Some((disk, new.into_key(), "encryption, header apart"))
        }
        8 => {
            let image = [pattern(SIZE), vec![0; 360 << 10]].concat();
            let data = scratch.file("plain", &image);
            let keyslots_size = Some(144 * KIB);
            let format = FormatOptions { data_offset: None, keyslots_size, ..options(false) };
            let new = NewVolume::prepare(size(&data), &secret, encrypt(format, Some(360 * KIB))).unwrap();
            new.begin(&open(&data), None).unwrap();
            Some((Disk { header: data.clone(), data }, new.into_key(), "encryption, header in front"))
        }
        9 => {
            let data = scratch.file("plain", &pattern(SIZE));
            let disk = Disk { header: scratch.image("header", 0), data };
            let new = EncryptOptions { protection: Protection::None, ..encrypt(options(true), None) };
            let new = NewVolume::prepare(SIZE, &secret, new).unwrap();
            new.write(&open(&disk.header)).unwrap();
            Some((disk, new.into_key(), "encryption without protection"))
        }
        _ => None,
    }
}
