//! The verity target's line: `<version> <device> <hash device> <data block> <hash block> <blocks>
//! <hash start> <algorithm> <root> <salt> [<#opts> <opts>...]`.

use super::bad;
use super::words::{Words, escape, number};
use crate::text::printable;
use crate::{Error, ErrorKind, Result};

/// A device under a tree of hashes on another device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerityLine {
    /// The format: 0 or 1.
    pub version: u32,
    /// The device with the data, by its name in the line.
    pub device: String,
    /// The device with the tree; may be the same device.
    pub hash_device: String,
    /// The size of a data block in bytes.
    pub data_block: u32,
    /// The size of a hash block in bytes.
    pub hash_block: u32,
    /// The number of data blocks under the tree.
    pub blocks: u64,
    /// The tree's first block on its device.
    pub hash_start: u64,
    /// The hash's name.
    pub algorithm: String,
    /// The hash of the tree's highest block.
    pub root: Vec<u8>,
    /// Bytes that are hashed with each block.
    pub salt: Vec<u8>,
    /// The reaction to a corrupted block: `ignore_corruption`, `restart_on_corruption` or
    /// `panic_on_corruption`. With `None` its read fails.
    pub on_corruption: Option<&'static str>,
    /// Blocks whose hash is that of zeros are not read.
    pub ignore_zero_blocks: bool,
    options: VerityWords,
}

/// The optional words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct VerityWords {
    /// The reaction to a corrupted block: `ignore_corruption`, `restart_on_corruption` or
    /// `panic_on_corruption`. With `None` its read fails.
    on_corruption: Option<&'static str>,
    /// Blocks whose hash is that of zeros are not read.
    ignore_zero_blocks: bool,
    /// A block need not be checked twice.
    check_at_most_once: bool,
    /// Blocks may be checked at the end of requests.
    try_verify_in_tasklet: bool,
}

/// A limit above the number of known options.
const MOST: u64 = 16;

impl VerityLine {
    /// Parses the rest of a line after `verity`.
    pub(super) fn parse(mut words: Words) -> Result<Self> {
        if words.len() < 10 {
            return Err(bad(
                "Not enough arguments: want version, devices, sizes, a hash, its root and a salt",
            ));
        }
        let narrow = |word: &str, kernel: &str| {
            let value = number(word).and_then(|value| u32::try_from(value).ok());
            value.ok_or_else(|| bad(format!("{kernel}: {}", printable(word))))
        };
        let mut next = || words.next().unwrap_or_default();
        let version = narrow(&next(), "Invalid version")?;
        let (device, hash_device) = (next().to_string(), next().to_string());
        let data_block = narrow(&next(), "Invalid data device block size")?;
        let hash_block = narrow(&next(), "Invalid hash device block size")?;
        let blocks = words.number("Invalid data blocks", "the number of blocks")?;
        let hash_start = words.number("Invalid hash start", "the tree's first block")?;
        let mut next = || words.next().unwrap_or_default();
        let algorithm = next().to_string();
        let root = hex(&next()).ok_or_else(|| bad("Invalid root digest"))?;
        let salt = match next().as_str() {
            "-" => Vec::new(),
            word => hex(word).ok_or_else(|| bad("Invalid salt"))?,
        };
        let options = VerityWords::parse(&mut words)?;
        let (on_corruption, ignore_zero_blocks) = (options.on_corruption, options.ignore_zero_blocks);
        Ok(Self {
            version,
            device,
            hash_device,
            data_block,
            hash_block,
            blocks,
            hash_start,
            algorithm,
            root,
            salt,
            on_corruption,
            ignore_zero_blocks,
            options,
        })
    }

    pub(super) fn print(&self) -> String {
        let salt = if self.salt.is_empty() { "-".to_owned() } else { digits(&self.salt) };
        let mut line = format!(
            "{} {} {} {} {} {} {} {} {} {salt}",
            self.version,
            escape(&self.device),
            escape(&self.hash_device),
            self.data_block,
            self.hash_block,
            self.blocks,
            self.hash_start,
            escape(&self.algorithm),
            digits(&self.root),
        );
        let words = self.options.words();
        if !words.is_empty() {
            line += &format!(" {} {}", words.len(), words.join(" "));
        }
        line
    }
}

impl VerityWords {
    fn parse(words: &mut Words) -> Result<Self> {
        const ON_CORRUPTION: [&str; 3] =
            ["ignore_corruption", "restart_on_corruption", "panic_on_corruption"];
        let mut options = Self::default();
        if words.len() == 0 {
            return Ok(options);
        }
        let count = words.number("Invalid number of feature args", "the number of options")?;
        if count > MOST || (words.len() as u64) < count {
            return Err(bad("Invalid number of feature args"));
        }
        for _ in 0..count {
            let word = words.next().unwrap_or_default();
            let lower = word.to_ascii_lowercase();
            let corruption = ON_CORRUPTION.into_iter().find(|known| *known == lower);
            match lower.as_str() {
                _ if corruption.is_some() => {
                    if options.on_corruption.is_some() {
                        return Err(bad("Conflicting error handling parameters"));
                    }
                    options.on_corruption = corruption;
                }
                "ignore_zero_blocks" => options.ignore_zero_blocks = true,
                "check_at_most_once" => options.check_at_most_once = true,
                "try_verify_in_tasklet" => options.try_verify_in_tasklet = true,
                _ => {
                    let why = format!("Unrecognized verity feature request: {}", printable(&word));
                    return Err(Error::new(ErrorKind::Unsupported, why));
                }
            }
        }
        Ok(options)
    }

    fn words(&self) -> Vec<&'static str> {
        let flags = [
            (self.ignore_zero_blocks, "ignore_zero_blocks"),
            (self.check_at_most_once, "check_at_most_once"),
            (self.try_verify_in_tasklet, "try_verify_in_tasklet"),
        ];
        let set = flags.into_iter().filter(|(is, _)| *is).map(|(_, word)| word);
        self.on_corruption.into_iter().chain(set).collect()
    }
}

/// Parses an even number of hex digits.
fn hex(word: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = word.as_bytes().as_chunks::<2>();
    if !rest.is_empty() || pairs.is_empty() {
        return None;
    }
    let digit = |c: u8| char::from(c).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
