//! The crypt target's line: `<cipher> <key> <iv_offset> <device> <offset> [<#opts> <opts>...]`.

use std::sync::Arc;

use underseal_cipher::{CipherSpec, Integrity, IntegrityKind, SectorCipher, build_with, weak_key};

use super::words::{Words, escape};
use super::{CryptOptions, KeyText, TableKey, bad, of_cipher};
use crate::{CipherParameters, Result};

/// A range of a device, encrypted.
#[derive(Debug)]
pub struct Crypt {
    /// Cipher, chain mode and IV generator.
    pub cipher: CipherSpec,
    /// The volume key, or its place.
    pub key: TableKey,
    /// The number added to the sector number within the line, in 512-byte units.
    pub iv_offset: u64,
    /// A file or block device, by its name in the line.
    pub device: String,
    /// The beginning of the range on the device, in 512-byte sectors.
    pub offset: u64,
    /// The optional words.
    pub options: CryptOptions,
    /// The number of words beyond the count in the line.
    surplus: usize,
}

/// The largest sector size that a kernel with pages of 4 KiB accepts.
const KERNEL_SECTOR: usize = 4096;

impl Crypt {
    /// Parses the rest of a line of `len` sectors after `crypt`, in the kernel's order: options
    /// before the cipher.
    pub(super) fn parse(mut words: Words, len: u64) -> Result<Self> {
        if words.len() < 5 {
            return Err(bad(
                "Not enough arguments: want cipher, key, IV offset, device and its first sector",
            ));
        }
        let mut next = || words.next().unwrap_or_default();
        let (cipher, key, iv_offset, device, offset) = (next(), next(), next(), next(), next());
        let key = TableKey::parse(&key)?;
        let options = CryptOptions::parse(&mut words, len)?;
        let surplus = words.len();
        if options.integrity.as_ref().is_some_and(|i| i.aead) && !cipher.starts_with("capi:") {
            return Err(bad("Bad cipher specification: authenticated modes are written in the capi: form"));
        }
        let cipher: CipherSpec = cipher.parse().map_err(of_cipher)?;
        let units = options.sector_size.units();
        // With sectors of 512 bytes the word changes no byte, in any mode; probably the sector's
        // size is missing.
        if cipher.chain() == "hctr2" && options.iv_large_sectors && units == 1 {
            let why =
                "iv_large_sectors with hctr2 wants a sector_size above 512; without it, leave the word out";
            return Err(bad(format!("Invalid feature arguments: {why}")));
        }
        let sector = |kernel: &str, what: &str, word: &str| {
            let number = super::words::number(word);
            number.ok_or_else(|| bad(format!("{kernel}: {what} is {}", crate::text::printable(word))))
        };
        let iv_offset = sector("Invalid iv_offset sector", "the IV offset", &iv_offset)?;
        if !iv_offset.is_multiple_of(units) {
            let why = format!("{iv_offset} is no multiple of the sector size, {units} sectors of 512 bytes");
            return Err(bad(format!("Invalid iv_offset sector: {why}")));
        }
        let offset = sector("Invalid device sector", "the device's first sector", &offset)?;
        let block = units.min(KERNEL_SECTOR as u64 >> 9);
        if !offset.is_multiple_of(block) {
            let why = format!("the device's first sector, {offset}, is no multiple of {block}");
            return Err(bad(format!("Cannot calculate initial queue limits: {why}")));
        }
        Ok(Self { cipher, key, iv_offset, device: device.to_string(), offset, options, surplus })
    }

    /// Builds the cipher of a [`CipherParameters`]. The errors are in the kernel's words.
    pub(super) fn build(&self, cipher_parameters: &CipherParameters) -> Result<Arc<dyn SectorCipher>> {
        build_with(&cipher_parameters.options(&self.key.bytes()?)).map_err(of_cipher)
    }

    /// Returns the cipher's parameters without the key, on a device that keeps `tuple` bytes beside
    /// each sector. Unused bytes are zeros.
    pub(super) fn cipher_parameters(&self, tuple: usize) -> CipherParameters {
        let key_size = self.options.integrity_key_size.map(|size| size as usize);
        let beside = |asked: &super::Integrity| {
            let kind = if asked.aead { IntegrityKind::Aead } else { IntegrityKind::None };
            let bytes = asked.tag_size as usize;
            Integrity { bytes, tuple: tuple.max(bytes), kind, key_size, iv_offset: self.iv_offset }
        };
        CipherParameters {
            cipher: self.cipher.clone(),
            sector_size: self.options.sector_size,
            iv_large_sectors: self.options.iv_large_sectors,
            key_size: self.key.len(),
            integrity: self.options.integrity.as_ref().map(beside),
        }
    }

    pub(super) fn warnings(&self) -> Vec<String> {
        let name = self.cipher.as_written();
        let mut warnings: Vec<String> =
            self.cipher.weaknesses().into_iter().map(|why| format!("{name}: {why}")).collect();
        if let TableKey::Bytes(key) = &self.key {
            warnings.extend(weak_key(&self.cipher, key).map(|why| format!("{name}: {why}")));
        }
        let sector = self.options.sector_size.bytes();
        if sector > KERNEL_SECTOR {
            warnings.push(format!("sector_size:{sector}: a kernel opens it only where its page is as large"));
        }
        if self.surplus > 0 {
            let many = self.surplus;
            warnings
                .push(format!("options beyond their number: {many} are ignored, as the kernel ignores them"));
        }
        warnings
    }

    pub(super) fn print(&self, text: &mut KeyText, keys: bool) {
        text.extend([&*escape(self.cipher.as_written()), " ", &self.key.print(keys)]);
        text.push(&format!(" {} {} {}", self.iv_offset, escape(&self.device), self.offset));
        let options = self.options.words();
        if !options.is_empty() {
            text.push(&format!(" {} {}", options.len(), options.join(" ")));
        }
    }
}
