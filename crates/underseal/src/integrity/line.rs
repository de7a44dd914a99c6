//! An integrity line of a table, as its layer's options.

use underseal_cipher::Key;
use underseal_integrity::{JournalCrypt, KeyedHash, OpenSettings, Recalculate, RunSettings, WriteMode};
use underseal_volume::table::IntegrityLine;

use crate::error::{Error, Result};

/// Returns the options of a line. The superblock decides the layout: `journal_sectors`,
/// `interleave_sectors` and padding only apply to new layers. Fails with `Usage` for unknown words,
/// or invalid values.
pub(crate) fn options(line: &IntegrityLine) -> Result<(OpenSettings, RunSettings)> {
    let mode = WriteMode::from_letter(line.mode).ok_or_else(|| bad("the mode", line.mode))?;
    let mut options = OpenSettings { start: line.start, tag_size: line.tag_size, ..OpenSettings::new(mode) };
    let mut settings = RunSettings::default();
    for word in &line.options {
        let (name, value) = word.split_once(':').map_or((word.as_str(), None), |(name, v)| (name, Some(v)));
        let number = || {
            let number = value.and_then(|value| value.parse::<u32>().ok());
            number.ok_or_else(|| bad("the number of the option", name))
        };
        match (name, value) {
            ("internal_hash", Some(value)) => options.hash = Some(hash(value)?),
            ("journal_mac", Some(value)) => options.journal_mac = Some(hash(value)?),
            ("journal_crypt", Some(value)) => {
                let (cipher, key) = named(value)?;
                let key = key.ok_or_else(|| bad("the key of the option", name))?;
                options.journal_crypt = Some(JournalCrypt::new(cipher, &key)?);
            }
            ("block_size", _) => options.block_size = Some(number()?),
            ("buffer_sectors", _) => options.buffer_sectors = number()?,
            ("sectors_per_bit", _) => options.sectors_per_bit = Some(number()?.into()),
            ("journal_watermark", _) => {
                let percent = u8::try_from(number()?).ok().filter(|percent| *percent <= 100);
                settings.watermark = percent.ok_or_else(|| bad("the number of the option", name))?;
            }
            ("commit_time", _) => settings.commit_time = std::time::Duration::from_millis(number()?.into()),
            ("bitmap_flush_interval", _) => {
                settings.bitmap_time = std::time::Duration::from_millis(number()?.into());
            }
            ("allow_discards", None) => options.allow_discards = true,
            ("recalculate", None) => options.recalculate = Recalculate::Begin,
            ("reset_recalculate", None) => options.recalculate = Recalculate::Reset,
            ("legacy_recalculate", None) => options.legacy_recalculate = true,
            // The caller opens this device: `IntegrityLine::meta_device`.
            ("meta_device", Some(_)) => {}
            ("journal_sectors" | "interleave_sectors", Some(_)) => drop(number()?),
            ("fix_padding" | "fix_hmac", None) => {}
            _ => return Err(bad("no option of the integrity target, or none that is known here", name)),
        }
    }
    Ok((options, settings))
}

fn hash(value: &str) -> Result<KeyedHash> {
    let (name, key) = named(value)?;
    Ok(KeyedHash::new(name, key.as_ref())?)
}

/// Splits a value into a name of the kernel's, and the hex key behind it.
fn named(value: &str) -> Result<(&str, Option<Key>)> {
    let Some((name, digits)) = value.split_once(':') else { return Ok((value, None)) };
    match underseal_volume::table::TableKey::parse(digits) {
        Ok(key) => Ok((name, Some(key.bytes()?))),
        Err(e) => Err(Error::usage(e.to_string())),
    }
}

fn bad(what: &str, value: impl std::fmt::Display) -> Error {
    Error::usage(format!("integrity line: {what}: {value}"))
}
