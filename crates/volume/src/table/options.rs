//! The optional words of a crypt line.

use super::bad;
use super::words::{Words, number};
use crate::text::printable;
use crate::{DispatchFlags, Result};
use underseal_cipher::SectorSize;

/// A crypt line's options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CryptOptions {
    /// Discards pass to the device, and so show which blocks are in use.
    pub allow_discards: bool,
    /// Where and when the cipher runs.
    pub dispatch: DispatchFlags,
    /// Room beside each sector.
    pub integrity: Option<Integrity>,
    /// The size of an encryption sector.
    pub sector_size: SectorSize,
    /// IVs count sectors of `sector_size`.
    pub iv_large_sectors: bool,
    /// The number of bytes of the key that belong to the MAC.
    pub integrity_key_size: Option<u32>,
}

/// The `integrity` option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Integrity {
    /// The number of bytes beside each sector: 1 to 480.
    pub tag_size: u32,
    /// `aead`, or `none` when the room is only reserved.
    pub aead: bool,
}

/// The largest number of optional words. Kernels without `integrity_key_size` (before 6.11) accept
/// 8.
const MOST: u64 = 9;

impl Default for CryptOptions {
    fn default() -> Self {
        Self {
            allow_discards: false,
            dispatch: DispatchFlags::default(),
            integrity: None,
            sector_size: SectorSize::S512,
            iv_large_sectors: false,
            integrity_key_size: None,
        }
    }
}

impl CryptOptions {
    /// Parses `[<#opts> <opts>...]`, in a line of `len` sectors. Words beyond the count are
    /// ignored, as in the kernel.
    pub(super) fn parse(words: &mut Words, len: u64) -> Result<Self> {
        let mut options = Self::default();
        let Some(count) = words.next() else { return Ok(options) };
        let count = number(&count).filter(|n| *n <= MOST).ok_or_else(|| {
            bad(format!("Invalid number of feature args: {} is not a number to {MOST}", printable(&count)))
        })?;
        if (words.len() as u64) < count {
            let why = format!("not enough arguments for features: {count} promised, {} there", words.len());
            return Err(bad(format!("Invalid number of feature args: {why}")));
        }
        for _ in 0..count {
            options.word(&words.next().unwrap_or_default(), len)?;
        }
        Ok(options)
    }

    fn word(&mut self, word: &str, len: u64) -> Result<()> {
        let (name, value) = word.split_once(':').map_or((word, None), |(name, value)| (name, Some(value)));
        let unknown = |why: &str| bad(format!("Invalid feature arguments: {}: {why}", printable(word)));
        if value.is_none()
            && let Some((flag, _)) =
                self.flags().into_iter().find(|(_, known)| known.eq_ignore_ascii_case(name))
        {
            *flag = true;
            return Ok(());
        }
        // Names with a value are compared with case.
        match (name, value) {
            ("integrity", Some(value)) => self.integrity = Some(Integrity::parse(value)?),
            ("integrity_key_size", Some(value)) => {
                let size = number(value).and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
                self.integrity_key_size =
                    Some(size.ok_or_else(|| unknown("want a positive number of bytes"))?);
            }
            ("sector_size", Some(value)) => {
                let value = number(value).ok_or_else(|| unknown("want a number of bytes"))?;
                self.sector_size = sector_size(value)?;
                let units = self.sector_size.units();
                if !len.is_multiple_of(units) {
                    let why = format!("{len} sectors of 512 bytes are no sectors of {value}");
                    return Err(bad(format!("Device size is not multiple of sector_size feature: {why}")));
                }
            }
            _ => return Err(unknown("no option of the crypt target")),
        }
        Ok(())
    }

    /// Returns the words without a value.
    fn flags(&mut self) -> [(&mut bool, &'static str); 8] {
        [
            (&mut self.allow_discards, "allow_discards"),
            (&mut self.dispatch.same_cpu_crypt, "same_cpu_crypt"),
            (&mut self.dispatch.high_priority, "high_priority"),
            (&mut self.dispatch.submit_from_crypt_cpus, "submit_from_crypt_cpus"),
            (&mut self.dispatch.no_read_workqueue, "no_read_workqueue"),
            (&mut self.dispatch.no_write_workqueue, "no_write_workqueue"),
            (&mut self.dispatch.force_inline, "force_inline"),
            (&mut self.iv_large_sectors, "iv_large_sectors"),
        ]
    }

    /// Returns the words for values other than the defaults, in the kernel's order.
    pub(super) fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        for (is, name) in [
            (self.allow_discards, "allow_discards"),
            (self.dispatch.same_cpu_crypt, "same_cpu_crypt"),
            (self.dispatch.high_priority, "high_priority"),
            (self.dispatch.submit_from_crypt_cpus, "submit_from_crypt_cpus"),
            (self.dispatch.no_read_workqueue, "no_read_workqueue"),
            (self.dispatch.no_write_workqueue, "no_write_workqueue"),
            (self.dispatch.force_inline, "force_inline"),
        ] {
            words.extend(is.then(|| name.to_owned()));
        }
        if let Some(Integrity { tag_size, aead }) = self.integrity {
            words.push(format!("integrity:{tag_size}:{}", if aead { "aead" } else { "none" }));
        }
        if self.sector_size != SectorSize::S512 {
            words.push(format!("sector_size:{}", self.sector_size.bytes()));
        }
        words.extend(self.iv_large_sectors.then(|| "iv_large_sectors".to_owned()));
        words.extend(self.integrity_key_size.map(|size| format!("integrity_key_size:{size}")));
        words
    }
}

impl Integrity {
    fn parse(value: &str) -> Result<Self> {
        let bad =
            || bad("Invalid integrity arguments: want integrity:SIZE:aead or :none, SIZE from 1 to 480");
        let (size, kind) = value.split_once(':').ok_or_else(bad)?;
        let size = number(size).and_then(|n| u32::try_from(n).ok()).filter(|n| (1..=480).contains(n));
        let tag_size = size.ok_or_else(bad)?;
        let aead = kind.eq_ignore_ascii_case("aead");
        if aead || kind.eq_ignore_ascii_case("none") { Ok(Self { tag_size, aead }) } else { Err(bad()) }
    }
}

/// Accepts sizes beyond the kernel's 4096, up to 65536. The kernel keeps 16 bits of the number:
/// 66048 would become 512.
fn sector_size(bytes: u64) -> Result<SectorSize> {
    let size = u32::try_from(bytes).ok().and_then(|bytes| SectorSize::new(bytes).ok());
    size.ok_or_else(|| {
        bad(format!("Invalid feature value for sector_size: {bytes} is not a power of two from 512 to 65536"))
    })
}
