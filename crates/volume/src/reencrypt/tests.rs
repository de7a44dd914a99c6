//! Whole reencryptions of small volumes, compared with a model of their contents.

mod crash;
mod engine;
pub(crate) mod faults;
mod plan;
mod records;
mod state_file;
mod unsynced;
mod users;

use std::sync::Arc;

use underseal_cipher::SectorSize;

use super::*;
use crate::storage::bytes::Bytes;
use crate::storage::{self, ReadAt, Target};
use crate::volume::Stored;
use crate::{CipherParameters, Hash, Key, Result, Volume, cipher_parameters};

/// A form of a volume.
#[derive(Debug, Clone, Copy)]
struct Form {
    /// `None` is plaintext.
    cipher: Option<&'static str>,
    sector: u32,
    lower: u64,
}

impl Form {
    fn cipher_parameters(self) -> Option<CipherParameters> {
        let cipher = self.cipher?.parse().unwrap();
        let sector_size = SectorSize::new(self.sector).unwrap();
        Some(CipherParameters {
            cipher,
            sector_size,
            iv_large_sectors: self.sector > 4096,
            key_size: 32,
            integrity: None,
        })
    }

    fn key(self, filler: u8) -> Option<Key> {
        let bytes: Vec<u8> = (0..32).map(|i| i ^ filler).collect();
        self.cipher.map(|_| Key::new(&bytes).unwrap())
    }

    fn stored(self, filler: u8) -> Stored {
        let cipher_parameters = self.cipher_parameters();
        let cipher = match (&cipher_parameters, self.key(filler)) {
            (Some(cipher_parameters), Some(key)) => cipher_parameters.build(&key).unwrap(),
            _ => cipher_parameters::null(SectorSize::S512).unwrap(),
        };
        let iv_offset = if cipher_parameters.is_some() { 128 } else { 0 };
        Stored {
            device: 0,
            lower: self.lower,
            iv_offset,
            cipher,
            cipher_parameters: cipher_parameters.map(Arc::new),
        }
    }
}

/// The forms of a volume, their places and the change.
#[derive(Debug, Clone, Copy)]
struct Shape {
    old: Form,
    new: Form,
    size: u64,
    moved: Option<Moved>,
    direction: Direction,
    protection: Protection,
    hot_zone: u64,
    alignment: u64,
}

const OLD: u8 = 0x10;
const NEW: u8 = 0x81;

impl Shape {
    fn plan(&self) -> Plan {
        let mode = match (self.old.cipher, self.new.cipher) {
            (None, _) => Mode::Encrypt,
            (_, None) => Mode::Decrypt,
            _ => Mode::Reencrypt,
        };
        let longest = self.moved.map_or(0, |moved| moved.len).max(self.hot_zone);
        Plan {
            mode,
            direction: self.direction,
            size: self.size,
            old: self.old.stored(OLD),
            new: self.new.stored(NEW),
            moved: self.moved,
            protection: self.protection,
            area: room(self.protection, longest),
            hot_zone: self.hot_zone,
            alignment: self.alignment,
        }
    }

    /// Returns the volume's first contents.
    fn plain(&self) -> Vec<u8> {
        (0..self.size / 8).flat_map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect()
    }

    /// Returns a disk with a volume in its old form, and other bytes in the rest.
    fn disk(&self, plain: &[u8]) -> Vec<u8> {
        let plan = self.plan();
        let disk = Bytes::new(vec![0xee; usize::try_from(plan.end()).unwrap()]);
        write(&plan.volume(Progress::default()).unwrap(), &disk, 0, plain);
        disk.into_inner()
    }
}

/// Reads from a volume on the given disk.
fn read(volume: &Volume, disk: &(impl ReadAt + ?Sized), at: u64, len: usize) -> Vec<u8> {
    let mut plain = vec![0; len];
    each_run(volume, at, &mut plain, |stored, place, sector, bytes| {
        disk.read_exact_at(bytes, place).unwrap();
        stored.cipher.decrypt(sector, bytes.into());
    });
    plain
}

fn write(volume: &Volume, disk: &(impl Target + ?Sized), at: u64, plain: &[u8]) {
    each_run(volume, at, &mut plain.to_vec(), |stored, place, sector, bytes| {
        stored.cipher.encrypt(sector, (&mut *bytes).into());
        disk.write_all_at(bytes, place).unwrap();
    });
}

fn each_run(
    volume: &Volume,
    mut at: u64,
    mut bytes: &mut [u8],
    mut one: impl FnMut(&Stored, u64, u64, &mut [u8]),
) {
    while !bytes.is_empty() {
        let segment = &volume.segments()[volume.segment_index(at).unwrap()];
        let len = bytes.len().min(usize::try_from(segment.end() - at).unwrap());
        let (run, rest) = bytes.split_at_mut(len);
        let (_, place) = segment.lower(at).unwrap();
        let (_, sector) = segment.cipher(at).unwrap();
        one(segment.as_stored().unwrap(), place, sector, run);
        (at, bytes) = (at + len as u64, rest);
    }
}

const XTS: Option<&str> = Some("aes-xts-plain64");
const CBC: Option<&str> = Some("aes-cbc-essiv:sha256");

const fn form(cipher: Option<&'static str>, sector: u32, lower: u64) -> Form {
    Form { cipher, sector, lower }
}

/// A change in place, from one form to another.
fn in_place(old: Form, new: Form, size: u64, protection: Protection) -> Shape {
    let alignment = u64::from(old.sector.max(new.sector));
    let alignment = match protection {
        Protection::Checksum { block, .. } => alignment.max(block),
        _ => alignment,
    };
    let (direction, hot_zone) = (Direction::Forward, 2 * alignment);
    Shape { old, new, size, moved: None, direction, protection, hot_zone, alignment }
}

/// Encryption by shift, with the first part moved to the end.
fn encrypt_shifted(shift: u64, rest: u64) -> Shape {
    let size = shift + rest;
    Shape {
        old: form(None, 512, 0),
        new: form(XTS, 512, shift),
        size,
        moved: Some(Moved { lower: size + shift, len: shift }),
        direction: Direction::Backward,
        protection: Protection::Source,
        hot_zone: shift,
        alignment: 512,
    }
}

/// Decryption by shift, with the first part moved to the start.
fn decrypt_shifted(shift: u64, moved: u64, size: u64, protection: Protection) -> Shape {
    Shape {
        old: form(XTS, 512, shift),
        new: form(None, 512, 0),
        size,
        moved: Some(Moved { lower: 0, len: moved }),
        direction: Direction::Forward,
        protection,
        hot_zone: shift,
        alignment: 512,
    }
}

/// A shift towards the end, without a moved part.
fn shifted(old: Form, new: Form, size: u64) -> Shape {
    let shift = new.lower.abs_diff(old.lower);
    let direction = if new.lower > old.lower { Direction::Backward } else { Direction::Forward };
    let alignment = u64::from(old.sector.max(new.sector));
    Shape {
        old,
        new,
        size,
        moved: None,
        direction,
        protection: Protection::Source,
        hot_zone: shift.max(alignment),
        alignment,
    }
}

fn checksum(block: u64) -> Protection {
    Protection::Checksum { hash: Hash::Sha256, block }
}

/// A ledger in memory. Its area and its records may be on a failing disk.
struct Notes<'a> {
    plan: Plan,
    progress: Progress,
    area: &'a dyn Target,
    /// Called before each record. An error keeps the record from being made.
    gate: &'a dyn Fn(Progress) -> Result<()>,
    finished: bool,
}

impl<'a> Notes<'a> {
    fn new(plan: Plan, area: &'a dyn Target, gate: &'a dyn Fn(Progress) -> Result<()>) -> Self {
        Self { plan, progress: Progress::default(), area, gate, finished: false }
    }
}

impl Ledger for Notes<'_> {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn progress(&self) -> Progress {
        self.progress
    }

    fn write_area(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        assert!(at + bytes.len() as u64 <= self.plan.area && self.progress.hot.is_none());
        storage::write(self.area, at, bytes)
    }

    fn sync_area(&mut self) -> Result<()> {
        storage::sync(self.area)
    }

    fn secure(&mut self) -> Result<()> {
        Ok(())
    }

    fn read_area(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        storage::read_into(self.area, at, bytes)
    }

    fn record(&mut self, progress: Progress) -> Result<()> {
        self.plan.check_progress(progress).unwrap();
        (self.gate)(progress)?;
        self.progress = progress;
        Ok(())
    }

    fn finish(&mut self, _data: &(dyn Target + Sync)) -> Result<()> {
        assert_eq!(self.progress, Progress { done: self.plan.size, hot: None });
        self.finished = true;
        Ok(())
    }
}
