//! The core over disks in memory, which record the order of writes, lose power, and fail.

#![expect(clippy::cast_possible_truncation, reason = "the disks are small")]

mod crash;
mod cuts;
mod errors;
mod journal;
mod machine;
mod model;
mod world;

use std::time::Duration;

use underseal_cipher::Key;

use super::{Core, RunSettings};
use crate::{Disks, JournalCrypt, KeyedHash, NewSuperblock, OpenSettings, WriteMode};
use machine::Machine;

/// A volume for the tests.
#[derive(Clone)]
struct Case {
    name: &'static str,
    options: OpenSettings,
    format: NewSuperblock,
    /// Sections of the journal.
    sections: u64,
    meta: bool,
}

/// Bytes of an inline device's tuples.
const TUPLE: usize = 48;
/// Bytes of a volume without its journal.
const SIZE: usize = 96 << 10;

impl Case {
    fn new(
        name: &'static str,
        mode: WriteMode,
        hash: Option<KeyedHash>,
        block_size: u32,
        tag_size: Option<u16>,
    ) -> Self {
        let options = OpenSettings { hash, ..OpenSettings::new(mode) };
        let format =
            NewSuperblock { tag_size, block_size, interleave_sectors: Some(64), ..NewSuperblock::default() };
        Self { name, options, format, sections: 3, meta: false }
    }

    fn sections(self, sections: u64) -> Self {
        Self { sections, ..self }
    }

    fn with(mut self, change: impl FnOnce(&mut OpenSettings)) -> Self {
        change(&mut self.options);
        self
    }

    fn meta(self) -> Self {
        Self { meta: true, ..self }
    }

    /// Formats a volume, all of whose blocks are zeros with their tags.
    fn machine(&self) -> Machine {
        let inline = self.options.mode == WriteMode::Inline;
        let has_mac = self.options.journal_mac.is_some();
        let made = || self.options.hash.as_ref().unwrap().size() as u16;
        let tag_size = self.format.tag_size.unwrap_or_else(made);
        let log2 = (self.format.block_size / 512).ilog2() as u8;
        let section = crate::SectionShape::new(log2, tag_size, has_mac).unwrap();
        let journal = self.sections as usize * section.bytes();
        let before = self.options.start as usize * 512;
        let (data, meta) = match self.meta {
            true => (SIZE, SIZE + journal + before),
            false => (SIZE + journal + before, if inline { SIZE } else { 0 }),
        };
        let images = vec![vec![0; data], vec![0; meta]];
        let machine = Machine::new(images, self.meta, self.format.block_size);
        {
            let (data, other) = (machine.disk(0), machine.disk(1));
            let disks = Disks { data: &data, meta: self.meta.then_some(&other) };
            let journal_sectors = Some(self.sections * section.sectors() as u64);
            let format = NewSuperblock { journal_sectors, ..self.format.clone() };
            let superblock = format.superblock(&self.options, disks.sizes().unwrap()).unwrap();
            crate::format(&disks, &self.options, &superblock).unwrap();
        }
        // The tags of zeros are written without a journal.
        let mode = if inline { WriteMode::Inline } else { WriteMode::Direct };
        let direct = self.clone().with(|options| options.mode = mode);
        let core = direct.open(&machine);
        let mut way = machine.way();
        for block in 0..world::blocks(&core) {
            let data = vec![0; core.geometry().block_size()];
            let tags = world::handed_tag(&core, &data);
            let offset = block * data.len() as u64;
            core.write(&mut way, offset, &data, &tags).unwrap();
        }
        core.close(&mut way).unwrap();
        machine.forget();
        machine
    }

    fn open(&self, machine: &Machine) -> Core {
        self.try_open(machine)
            .unwrap_or_else(|e| panic!("{}: {}", self.name, underseal_error::with_causes(&e)))
    }

    fn try_open(&self, machine: &Machine) -> crate::Result<Core> {
        let (data, other) = (machine.disk(0), machine.disk(1));
        let disks = Disks { data: &data, meta: self.meta.then_some(&other) };
        let settings = RunSettings {
            tag_cache: 0,
            bitmap_time: Duration::ZERO,
            commit_time: Duration::from_secs(3600),
            ..RunSettings::default()
        };
        Core::open(&disks, &self.options, &settings, TUPLE)
    }
}

fn hash(name: &str) -> Option<KeyedHash> {
    Some(KeyedHash::new(name, None).unwrap())
}

fn keyed(name: &str) -> Option<KeyedHash> {
    Some(KeyedHash::new(name, Some(&key(7, 32))).unwrap())
}

fn key(byte: u8, len: usize) -> Key {
    Key::new(&vec![byte; len]).unwrap()
}

/// Volumes with a journal: blocks and tags of several sizes, journals of one section and more,
/// every protection of a journal.
fn journals() -> Vec<Case> {
    let j = WriteMode::Journal;
    vec![
        Case::new("512 crc32c in 255", j, hash("crc32c"), 512, Some(255)),
        Case::new("512 crc32c in 255, one section", j, hash("crc32c"), 512, Some(255)).sections(1),
        Case::new("512 crc32c", j, hash("crc32c"), 512, None).sections(1),
        Case::new("4096 sha256 in 200", j, hash("sha256"), 4096, Some(200)).sections(2),
        Case::new("4096 handed 200, five sections", j, None, 4096, Some(200)).sections(5),
        Case::new("1024 handed 255 with metadata apart", j, None, 1024, Some(255)).meta(),
        Case::new("512 hmac, mac, cbc", j, keyed("hmac(sha256)"), 512, Some(240)).with(|options| {
            options.journal_mac = keyed("hmac(sha256)");
            options.journal_crypt = Some(JournalCrypt::new("cbc(aes)", &key(3, 32)).unwrap());
        }),
        Case::new("2048 crc32c, ctr", j, hash("crc32c"), 2048, Some(230)).with(|options| {
            options.journal_crypt = Some(JournalCrypt::new("ctr(aes)", &key(4, 16)).unwrap());
        }),
        Case::new("512 crc32c from sector 96 on", j, hash("crc32c"), 512, Some(255)).with(|o| o.start = 96),
        Case::new("512 crc32c with discards", j, hash("crc32c"), 512, Some(252))
            .with(|o| o.allow_discards = true),
    ]
}

fn bitmaps() -> Vec<Case> {
    let b = WriteMode::Bitmap;
    let fine = |options: &mut OpenSettings| options.sectors_per_bit = Some(16);
    vec![
        Case::new("512 crc32c, bitmap", b, hash("crc32c"), 512, Some(255)).with(fine),
        Case::new("4096 sha256, bitmap", b, hash("sha256"), 4096, Some(200)).with(fine).meta(),
        Case::new("512 crc32c, bitmap from sector 96 on", b, hash("crc32c"), 512, Some(255)).with(
            |options| {
                fine(options);
                options.start = 96;
            },
        ),
        Case::new("512 crc32c, bitmap with discards", b, hash("crc32c"), 512, Some(255)).with(|options| {
            fine(options);
            options.allow_discards = true;
        }),
    ]
}

fn directs() -> Vec<Case> {
    let d = WriteMode::Direct;
    vec![
        Case::new("512 crc32c, direct", d, hash("crc32c"), 512, None).sections(1),
        Case::new("4096 handed 28, direct", d, None, 4096, Some(28)).sections(1),
        Case::new("512 sha256 with metadata apart, direct", d, hash("sha256"), 512, Some(180)).meta(),
    ]
}

fn inline() -> Case {
    Case::new("inline", WriteMode::Inline, hash("sha256"), 512, None)
}
