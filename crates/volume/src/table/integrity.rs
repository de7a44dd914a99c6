//! The integrity target's line:
//! `<device> <reserved sectors> <tag size or -> <mode> <#opts> <opts>...`.

use std::fmt;

use zeroize::Zeroizing;

use super::words::{Words, escape, number};
use super::{KeyText, bad};
use crate::Result;
use crate::text::printable;

/// dm-integrity's layout on a device. The words are parsed when the device is opened.
pub struct IntegrityLine {
    /// A file or block device, by its name in the line.
    pub device: String,
    /// The number of sectors before the superblock.
    pub start: u64,
    /// The number of bytes of a tag. `None`, written `-`, stands for the hash's length.
    pub tag_size: Option<u16>,
    /// `J`, `B`, `D`, `R` or `I`.
    pub mode: char,
    /// The options: `name` or `name:value`. Some values end with a key.
    pub options: Vec<Zeroizing<String>>,
}

/// Options whose third part is a key.
const KEYED: [&str; 3] = ["internal_hash", "journal_crypt", "journal_mac"];
/// A limit above the number of known options.
const MOST: u64 = 32;

impl IntegrityLine {
    /// Parses the rest of a line after `integrity`.
    pub(super) fn parse(mut words: Words) -> Result<Self> {
        if words.len() < 5 {
            return Err(bad(
                "Invalid argument count: want a device, a sector, a tag size, a mode and options",
            ));
        }
        let device = words.next().unwrap_or_default().to_string();
        let start = words.number("Invalid starting offset", "the first sector")?;
        let word = words.next().unwrap_or_default();
        let tag_size = match word.as_str() {
            "-" => None,
            size => match number(size).and_then(|size| u16::try_from(size).ok()).filter(|size| *size > 0) {
                None => return Err(bad(format!("Invalid tag size: {}", printable(size)))),
                some => some,
            },
        };
        let word = words.next().unwrap_or_default();
        let mode = match word.as_str() {
            "J" | "B" | "D" | "R" | "I" => word.chars().next().unwrap_or('J'),
            other => {
                return Err(bad(format!("Invalid mode (expecting J, B, D, R, I): {}", printable(other))));
            }
        };
        let count = words.number("Invalid number of feature args", "the number of options")?;
        if count > MOST || count != words.len() as u64 {
            let there = words.len();
            return Err(bad(format!("Invalid number of feature args: {count} promised, {there} there")));
        }
        let options = std::iter::from_fn(|| words.next()).collect();
        Ok(Self { device, start, tag_size, mode, options })
    }

    /// Returns the value of an option, if present. The last of repeated options counts, as in the
    /// kernel.
    pub fn option(&self, name: &str) -> Option<&str> {
        let value = |word: &'_ Zeroizing<String>| {
            let (known, value) = word.split_once(':').unwrap_or((word.as_str(), ""));
            (known == name).then_some(value.len())
        };
        // The part after the colon.
        self.options.iter().rev().find_map(|word| Some(&word[word.len() - value(word)?..]))
    }

    /// Returns the device for superblock, journal and tags, by its name in the line, when
    /// [`device`](Self::device) holds data alone.
    pub fn meta_device(&self) -> Option<&str> {
        self.option("meta_device")
    }

    pub(super) fn print(&self, text: &mut KeyText, keys: bool) {
        let tag_size = self.tag_size.map_or("-".to_owned(), |size| size.to_string());
        let (device, start, mode, count) = (escape(&self.device), self.start, self.mode, self.options.len());
        text.push(&format!("{device} {start} {tag_size} {mode} {count}"));
        for word in &self.options {
            text.push(" ");
            // An option may be a key.
            text.push(&Zeroizing::new(if keys { escape(word) } else { escape(&shown(word)) }));
        }
    }
}

/// Returns an option with zeros for its key.
fn shown(word: &str) -> String {
    let mut parts = word.splitn(3, ':');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(name), Some(value), Some(key)) if KEYED.contains(&name) => {
            format!("{name}:{value}:{}", "0".repeat(key.len()))
        }
        _ => word.into(),
    }
}

/// The text without keys.
impl fmt::Debug for IntegrityLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = KeyText::default();
        self.print(&mut text, false);
        write!(f, "IntegrityLine({})", &*text)
    }
}
