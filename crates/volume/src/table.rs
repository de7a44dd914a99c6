//! Device-mapper tables: what `dmsetup` is given, and what it prints.
//!
//! ```text
//!   0 2048 crypt aes-xts-plain64 KEY 0 /dev/sda 0 1 allow_discards
//!   |  |    |    \_______________________________________________/
//!   |  |    target: Crypt | Linear | Zero | Error
//!   start, length in 512-byte sectors
//! ```
//!
//! Several lines make one device of several segments. Refusals begin with the kernel's words for the same table and add
//! the reason, which it swallows. Printing gives the order of the kernel's `dmsetup table`.
//!
//! A table holds its keys: whoever read its text wipes the text.

mod crypt;
mod key;
mod options;
mod words;

pub use crypt::Crypt;
pub use key::TableKey;
pub use options::{CryptOptions, Integrity};

use std::fmt;
use std::sync::Arc;

use underseal_cipher::SectorSize;
use words::Words;

use crate::{DispatchFlags, Error, ErrorKind, Result, Segment, SegmentKind, Stored, Volume, recipe};

/// A table of one or more lines that follow each other from sector 0.
#[derive(Debug)]
pub struct Table {
    lines: Vec<Line>,
}

/// One line.
#[derive(Debug)]
pub struct Line {
    /// Where it begins, in 512-byte sectors.
    pub start: u64,
    /// How long it is, in 512-byte sectors.
    pub len: u64,
    /// What is there.
    pub target: Target,
}

/// What a line maps to.
#[derive(Debug)]
pub enum Target {
    /// An encrypted run of a device.
    Crypt(Box<Crypt>),
    /// A run of a device as it is.
    Linear {
        /// A file or block device.
        device: String,
        /// Where the run begins on it, in 512-byte sectors.
        offset: u64,
    },
    /// Zeros; writes are dropped.
    Zero,
    /// Every request fails.
    Error,
}

/// Lines that one table may have.
const MAX_LINES: usize = 65536;
/// Sectors that a byte offset of 63 bits can name.
const MAX_SECTORS: u64 = i64::MAX as u64 >> 9;

impl Table {
    /// Parses a table; empty lines and lines that begin with `#` are skipped.
    ///
    /// # Errors
    /// `BadOption`, in the kernel's words and with the line's number, for a line that is malformed or does not follow
    /// the one before it.
    pub fn parse(text: &str) -> Result<Self> {
        let mut lines: Vec<Line> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let at = |e: Error| e.within(format_args!("table line {}", number + 1));
            let parsed = Line::parse(line).map_err(at)?;
            let end = lines.last().map_or(0, |last| last.start + last.len);
            if parsed.start != end {
                let why = format!("Gap in table: it begins at sector {}, not at {end}", parsed.start);
                return Err(at(bad(why)));
            }
            if lines.len() == MAX_LINES {
                return Err(at(bad(format!("a table has at most {MAX_LINES} lines"))));
            }
            lines.push(parsed);
        }
        if lines.is_empty() {
            return Err(bad("the table has no line"));
        }
        Ok(Self { lines })
    }

    /// The lines, in order.
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// Its length in 512-byte sectors.
    pub fn sectors(&self) -> u64 {
        self.lines.last().map_or(0, |last| last.start + last.len)
    }

    /// What the user should know, though the table is taken: weak choices, and what the kernel would not open.
    pub fn warnings(&self) -> Vec<String> {
        let crypts = self.lines.iter().filter_map(|line| match &line.target {
            Target::Crypt(crypt) => Some(crypt.warnings()),
            _ => None,
        });
        let mut warnings: Vec<String> = Vec::new();
        for warning in crypts.flatten() {
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
        warnings
    }

    /// The devices that lines are on, as they name them, each once: their order is their number in [`Table::volume`].
    pub fn devices(&self) -> Vec<&str> {
        let mut devices = Vec::new();
        for device in self.lines.iter().filter_map(|line| line.target.device()) {
            if !devices.contains(&device) {
                devices.push(device);
            }
        }
        devices
    }

    /// Makes every line's cipher and drops it: whether the table's keys fit, whatever its devices are.
    ///
    /// # Errors
    /// As [`Table::volume`], but for what concerns the devices.
    pub fn check(&self) -> Result<()> {
        self.volume(&vec![u64::MAX; self.devices().len()]).map(drop)
    }

    /// The volume that the table describes on its [`devices`](Table::devices) of `sizes` bytes; keys are fetched from the
    /// kernel's keyring where the table says so. A linear line is a segment under the null cipher.
    ///
    /// # Errors
    /// `Unsupported` for authenticated modes; `BadOption` where the kernel refuses cipher, key or how lines follow each
    /// other; `TooSmall` when a line ends beyond its device.
    pub fn volume(&self, sizes: &[u64]) -> Result<Volume> {
        let devices = self.devices();
        let mut segments = Vec::with_capacity(self.lines.len());
        let (mut discards, mut dispatch) = (true, DispatchFlags::default());
        for line in &self.lines {
            if let Target::Crypt(crypt) = &line.target {
                discards &= crypt.options.allow_discards;
                dispatch = dispatch.or(crypt.options.dispatch);
            }
            let device =
                line.target.device().and_then(|name| devices.iter().position(|other| *other == name));
            let size = device.and_then(|device| sizes.get(device)).copied().unwrap_or(u64::MAX);
            segments.push(line.segment(device.unwrap_or(0), size)?);
        }
        self.is_on_blocks(&segments)?;
        Ok(Volume::new(segments)?.with_discards(discards).with_dispatch(dispatch))
    }

    /// Requests are multiples of the largest sector of all lines: they must not cut another line's sectors.
    fn is_on_blocks(&self, segments: &[Segment]) -> Result<()> {
        let sector = |segment: &Segment| segment.sector_size().bytes() as u64;
        let largest = segments.iter().map(sector).max().unwrap_or(512);
        for (line, segment) in self.lines.iter().zip(segments) {
            let is_last = segment.end() >> 9 == self.sectors();
            let block = sector(segment);
            if !segment.start.is_multiple_of(block) || (is_last && !segment.end().is_multiple_of(largest)) {
                let block = if is_last { largest } else { block };
                let why = format!("start sect {} len {}, sectors of {block} bytes", line.start, line.len);
                return Err(bad(format!("table line not aligned to h/w logical block size: {why}")));
            }
        }
        Ok(())
    }

    /// The table's text, as `dmsetup table` has it; with zeros for keys unless they are asked for.
    pub fn print(&self, keys: bool) -> String {
        let lines = self.lines.iter().map(|line| line.print(keys));
        lines.collect::<Vec<_>>().join("\n")
    }
}

impl Line {
    /// Parses one line.
    ///
    /// # Errors
    /// As [`Table::parse`].
    pub fn parse(line: &str) -> Result<Self> {
        let mut words = Words::split(line);
        let start = words.number("Invalid format", "the start")?;
        let len = words.number("Invalid format", "the length")?;
        if len == 0 {
            return Err(bad("Zero-length target: the length is 0"));
        }
        if start.checked_add(len).is_none_or(|end| end > MAX_SECTORS) {
            return Err(bad("Invalid format: the line ends beyond any device"));
        }
        let target = words.next().ok_or_else(|| bad("Not enough arguments: there is no target"))?;
        let target = match target.as_str() {
            "crypt" => Target::Crypt(Box::new(Crypt::parse(words, len)?)),
            "linear" => {
                let two = "Invalid argument count: want a device and a sector";
                let device = words.next().ok_or_else(|| bad(two))?;
                let offset = words.number("Invalid device sector", "the offset")?;
                words.end().map_err(|_| bad(two))?;
                Target::Linear { device: device.to_string(), offset }
            }
            "zero" => {
                words.end().map_err(|_| bad("No arguments required: zero takes none"))?;
                Target::Zero
            }
            "error" => Target::Error,
            other => {
                let why = format!("unknown target type: {}", crate::text::printable(other));
                return Err(Error::new(ErrorKind::Unsupported, why));
            }
        };
        Ok(Self { start, len, target })
    }

    /// The line as a segment on the device of this number and size in bytes.
    fn segment(&self, device: usize, size: u64) -> Result<Segment> {
        let stored = |lower, iv_offset, cipher, recipe| {
            SegmentKind::Stored(Stored { device, lower: lower << 9, iv_offset, cipher, recipe })
        };
        let (offset, kind) = match &self.target {
            Target::Crypt(crypt) => {
                let recipe = Some(Arc::new(crypt.recipe()));
                (crypt.offset, stored(crypt.offset, crypt.iv_offset, crypt.build()?, recipe))
            }
            Target::Linear { offset, .. } => {
                (*offset, stored(*offset, 0, recipe::null(SectorSize::S512)?, None))
            }
            Target::Zero => (0, SegmentKind::Zero),
            Target::Error => (0, SegmentKind::Error),
        };
        let end = offset.checked_add(self.len).filter(|end| *end <= MAX_SECTORS && *end <= size >> 9);
        if end.is_none() {
            let name = crate::text::printable(self.target.device().unwrap_or_default());
            let len = self.len;
            let why = format!("start={offset}, len={len}, dev_size={} sectors of 512 bytes", size >> 9);
            return Err(Error::new(ErrorKind::TooSmall, format!("{name} too small for target: {why}")));
        }
        Ok(Segment { start: self.start << 9, len: self.len << 9, kind })
    }

    /// The line's text; with zeros for the key unless it is asked for.
    pub fn print(&self, keys: bool) -> String {
        let head = format!("{} {} {}", self.start, self.len, self.target.name());
        match &self.target {
            Target::Crypt(crypt) => format!("{head} {}", crypt.print(keys)),
            Target::Linear { device, offset } => format!("{head} {} {offset}", words::escape(device)),
            Target::Zero | Target::Error => head,
        }
    }
}

impl Target {
    /// The device that it is on, as the line names it.
    pub fn device(&self) -> Option<&str> {
        match self {
            Self::Crypt(crypt) => Some(&crypt.device),
            Self::Linear { device, .. } => Some(device),
            Self::Zero | Self::Error => None,
        }
    }

    /// The target's name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Crypt(_) => "crypt",
            Self::Linear { .. } => "linear",
            Self::Zero => "zero",
            Self::Error => "error",
        }
    }
}

/// Without keys.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.print(false))
    }
}

fn bad(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadOption, why)
}

/// An error of the cipher layer: it begins with the kernel's words itself.
fn of_cipher(e: underseal_cipher::Error) -> Error {
    let kind = match e.kind() {
        underseal_cipher::ErrorKind::Unsupported => ErrorKind::Unsupported,
        underseal_cipher::ErrorKind::Memory => ErrorKind::Memory,
        _ => ErrorKind::BadOption,
    };
    Error::new(kind, e.to_string())
}

#[cfg(test)]
mod tests;
