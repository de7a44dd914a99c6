//! Disks in memory, and tables as options.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use underseal_cipher::Key;
use underseal_integrity::{Disk, Disks, JournalCrypt, KeyedHash, OpenSettings, Recalculate, WriteMode};

pub(crate) use crate::exercise::memory::Memory;

/// A volume in memory.
pub(crate) struct Image {
    pub(crate) data: Memory,
    pub(crate) meta: Option<Memory>,
}

impl Image {
    pub(crate) fn disks(&self) -> Disks<'_> {
        Disks { data: &self.data, meta: self.meta.as_ref().map(|meta| meta as &dyn Disk) }
    }
}

pub(crate) const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors");

/// The images of the manifest, by name.
pub(crate) fn images() -> serde_json::Map<String, Value> {
    let text = std::fs::read_to_string(Path::new(FOLDER).join("manifest.json")).unwrap();
    let manifest: Value = serde_json::from_str(&text).unwrap();
    manifest["images"].as_object().unwrap().clone()
}

pub(crate) fn unpack(name: &str) -> Image {
    let one = |file: String| {
        let path = Path::new(FOLDER).join(file);
        path.exists().then(|| {
            let packed = path.to_str().unwrap();
            let unpacked = Command::new("xz").args(["-dc", packed]).output().unwrap();
            assert!(unpacked.status.success(), "{packed}");
            Memory::new(unpacked.stdout)
        })
    };
    Image { data: one(format!("{name}.img.xz")).unwrap(), meta: one(format!("{name}.meta.img.xz")) }
}

/// The options of a table line, after `0 SECTORS integrity`.
pub(crate) fn options(table: &str) -> OpenSettings {
    let words: Vec<&str> = table.split(' ').collect();
    let mode = WriteMode::from_letter(words[6].chars().next().unwrap()).unwrap();
    let mut options = with(OpenSettings::new(mode), &words[8..]);
    options.start = words[4].parse().unwrap();
    options.tag_size = words[5].parse().ok();
    options
}

/// Adds these optional arguments.
pub(crate) fn with(mut options: OpenSettings, arguments: &[&str]) -> OpenSettings {
    let hash = |value: &str| {
        let (name, key) = value.split_once(':').unwrap_or((value, ""));
        KeyedHash::new(name, Some(&key_of(key))).unwrap()
    };
    for word in arguments {
        let (name, value) = word.split_once(':').unwrap_or((word, ""));
        match name {
            "internal_hash" => options.hash = Some(hash(value)),
            "journal_mac" => options.journal_mac = Some(hash(value)),
            "journal_crypt" => {
                let (name, key) = value.split_once(':').unwrap();
                options.journal_crypt = Some(JournalCrypt::new(name, &key_of(key)).unwrap());
            }
            "block_size" => options.block_size = value.parse().ok(),
            "buffer_sectors" => options.buffer_sectors = value.parse().unwrap(),
            "sectors_per_bit" => options.sectors_per_bit = value.parse().ok(),
            "allow_discards" => options.allow_discards = true,
            "recalculate" => options.recalculate = Recalculate::Begin,
            "legacy_recalculate" => options.legacy_recalculate = true,
            // The arguments for formatting.
            "journal_sectors" | "interleave_sectors" | "fix_padding" | "fix_hmac" | "meta_device" => {}
            other => panic!("{other}"),
        }
    }
    options
}

pub(crate) fn key_of(hex: &str) -> Key {
    Key::new(&hex::decode(hex).unwrap()).unwrap()
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    hex::encode(sha2::Sha256::digest(bytes))
}
