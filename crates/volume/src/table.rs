//! Device-mapper tables: the input of `dmsetup`, and its output.
//!
//! ```text
//!   0 2048 crypt aes-xts-plain64 KEY 0 /dev/sda 0 1 allow_discards
//!   |  |    |    \_______________________________________________/
//!   |  |    target: Crypt | Linear | Integrity | Striped | Delay | Verity | Zero | Error
//!   start, length in 512-byte sectors
//!
//!   below: 0 2000 integrity /dev/sda 0 28 J 0       several devices, as dmsetup prints them:
//!   above: 0 2000 crypt .. /dev/mapper/below 0 ..   a lower device has one integrity line
//! ```
//!
//! Several lines make one device of several segments. Errors begin with the kernel's words for the
//! same table and add the reason, which the kernel leaves out. The printed form has the order of
//! the kernel's `dmsetup table`.
//!
//! A table holds its keys: the caller wipes the text after parsing it.

mod base;
mod crypt;
mod integrity;
mod key;
mod key_text;
mod options;
mod several;
mod verity;
mod words;

pub use base::Base;
pub use crypt::Crypt;
pub use integrity::IntegrityLine;
pub use key::TableKey;
pub use key_text::KeyText;
pub use options::{CryptOptions, Integrity};
pub use several::{DelayLine, DevicePlace, Striped};
pub use verity::VerityLine;

use std::fmt;
use std::sync::Arc;

use underseal_cipher::SectorSize;
use words::Words;

use crate::{
    DispatchFlags, Error, ErrorKind, Result, Segment, SegmentKind, Stored, Volume, cipher_parameters,
};

/// A table of one or more lines, which begin at sector 0 and leave no gaps.
#[derive(Debug)]
pub struct Table {
    lines: Vec<Line>,
    /// Lower devices, which have lines of their own.
    below: Vec<(String, Line)>,
}

/// A line.
#[derive(Debug)]
pub struct Line {
    /// The beginning, in 512-byte sectors.
    pub start: u64,
    /// The length, in 512-byte sectors.
    pub len: u64,
    /// The target.
    pub target: Target,
}

/// The target of a line.
#[derive(Debug)]
pub enum Target {
    /// A range of a device, encrypted.
    Crypt(Box<Crypt>),
    /// A range of a device, unchanged.
    Linear {
        /// A file or block device.
        device: String,
        /// The beginning of the range on the device, in 512-byte sectors.
        offset: u64,
    },
    /// The data of dm-integrity's layout on a device.
    Integrity(Box<IntegrityLine>),
    /// Ranges of several devices in turn.
    Striped(Box<Striped>),
    /// A device with a delay.
    Delay(Box<DelayLine>),
    /// A device that is checked against a tree of hashes on each read.
    Verity(Box<VerityLine>),
    /// Zeros; writes are dropped.
    Zero,
    /// Every request fails.
    Error,
}

/// The room on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// The size in bytes.
    pub size: u64,
    /// The number of bytes beside each block; may be 0.
    pub tuple: usize,
}

impl Room {
    /// Enough for every line, before the device is known.
    const ANY: Self = Self { size: u64::MAX, tuple: 0 };
}

/// The largest number of lines in a table.
const MAX_LINES: usize = 65536;
/// The largest sector at a byte offset of 63 bits.
const MAX_SECTORS: u64 = i64::MAX as u64 >> 9;

impl Table {
    /// Parses a table. Empty lines and lines that begin with `#` are skipped.
    ///
    /// # Errors
    /// `BadOption`, in the kernel's words and with the line's number, for a malformed line, and for
    /// a line that does not begin at the end of the previous line.
    pub fn parse(text: &str) -> Result<Self> {
        let mut named: Vec<(&str, usize, Line)> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if named.len() == MAX_LINES {
                return Err(bad(format!("a table has at most {MAX_LINES} lines")).within(LineNumber(number)));
            }
            let (name, line) = name_of(line);
            named.push((name, number, Line::parse(line).map_err(|e| e.within(LineNumber(number)))?));
        }
        let below = below(&mut named)?;
        let mut lines: Vec<Line> = Vec::with_capacity(named.len());
        for (_, number, line) in named {
            let end = lines.last().map_or(0, |last| last.start + last.len);
            if line.start != end {
                let why = format!("Gap in table: it begins at sector {}, not at {end}", line.start);
                return Err(bad(why).within(LineNumber(number)));
            }
            lines.push(line);
        }
        if lines.is_empty() {
            return Err(bad("the table has no line"));
        }
        has_one_layer_each(&lines, &below)?;
        Ok(Self { lines, below })
    }

    /// Returns the lines, in order.
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// Returns the length in 512-byte sectors.
    pub fn sectors(&self) -> u64 {
        self.lines.last().map_or(0, |last| last.start + last.len)
    }

    /// Returns warnings about an accepted table: weak choices, and parts that the kernel would not
    /// open.
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

    /// Builds every line's cipher and drops it, to check the table's keys independently of its
    /// devices.
    ///
    /// # Errors
    /// The kinds of [`Table::volume`], except those about the devices.
    pub fn check(&self) -> Result<()> {
        self.volume(&vec![u64::MAX; self.slots().len()]).map(drop)
    }

    /// Returns the table's volume on its [`bases`](Table::bases) of `sizes` bytes. Keys with a
    /// keyring's name are fetched from the kernel's keyring. A linear line is a segment under the
    /// null cipher.
    ///
    /// # Errors
    /// `BadOption` when the kernel refuses cipher, key or the lines' order; `TooSmall` when a line
    /// ends beyond its device.
    pub fn volume(&self, sizes: &[u64]) -> Result<Volume> {
        self.volume_on(&sizes.iter().map(|size| Room { size: *size, tuple: 0 }).collect::<Vec<_>>())
    }

    /// The same on devices that keep bytes beside their blocks. A crypt line may use a part of
    /// these bytes, as in the kernel.
    ///
    /// # Errors
    /// The kinds of [`Table::volume`].
    pub fn volume_on(&self, rooms: &[Room]) -> Result<Volume> {
        let slots = self.slots();
        let mut segments = Vec::with_capacity(self.lines.len());
        let (mut discards, mut dispatch) = (true, DispatchFlags::default());
        for (number, line) in self.lines.iter().enumerate() {
            if let Target::Crypt(crypt) = &line.target {
                discards &= crypt.options.allow_discards;
                dispatch = dispatch.or(crypt.options.dispatch);
            }
            let slot = self.slot(number);
            let device = slot.and_then(|slot| slots.iter().position(|other| *other == slot));
            let room = device.and_then(|device| rooms.get(device)).copied();
            segments.push(line.segment(device.unwrap_or(0), room.unwrap_or(Room::ANY))?);
        }
        self.is_on_blocks(&segments)?;
        Ok(Volume::new(segments)?.with_discards(discards).with_dispatch(dispatch))
    }

    /// Requests are multiples of the largest sector of all lines, so they must not cut another
    /// line's sectors.
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

    /// Returns the table's text, in the form of `dmsetup table`, with zeros for keys unless `keys`
    /// is true.
    pub fn print(&self, keys: bool) -> KeyText {
        // In a stack every line has a name.
        let name = if self.below.is_empty() { "" } else { "volume" };
        let below = self.below.iter().map(|(name, line)| (name.as_str(), line));
        let mut text = KeyText::default();
        for (name, line) in below.chain(self.lines.iter().map(|line| (name, line))) {
            let end = if text.is_empty() { "" } else { "\n" };
            let colon = if name.is_empty() { "" } else { ": " };
            text.extend([end, name, colon, &line.print(keys)]);
        }
        text
    }
}

impl Line {
    /// Parses a line.
    ///
    /// # Errors
    /// The kinds of [`Table::parse`].
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
            "integrity" => Target::Integrity(Box::new(IntegrityLine::parse(words)?)),
            "striped" => Target::Striped(Box::new(Striped::parse(words, len)?)),
            "delay" => Target::Delay(Box::new(DelayLine::parse(words)?)),
            "verity" => Target::Verity(Box::new(VerityLine::parse(words)?)),
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

    /// Returns the line as a segment on the device with this number.
    fn segment(&self, device: usize, Room { size, tuple }: Room) -> Result<Segment> {
        let stored = |lower, iv_offset, cipher, cipher_parameters| {
            SegmentKind::Stored(Stored { device, lower: lower << 9, iv_offset, cipher, cipher_parameters })
        };
        let (offset, kind) = match &self.target {
            Target::Crypt(crypt) => {
                let cipher_parameters = crypt.cipher_parameters(tuple);
                let cipher = crypt.build(&cipher_parameters)?;
                (
                    crypt.offset,
                    stored(crypt.offset, crypt.iv_offset, cipher, Some(Arc::new(cipher_parameters))),
                )
            }
            Target::Linear { offset, .. } => {
                (*offset, stored(*offset, 0, cipher_parameters::null(SectorSize::S512)?, None))
            }
            Target::Integrity(_) | Target::Striped(_) | Target::Delay(_) | Target::Verity(_) => {
                (0, stored(0, 0, cipher_parameters::null(SectorSize::S512)?, None))
            }
            Target::Zero => (0, SegmentKind::Zero),
            Target::Error => (0, SegmentKind::Error),
        };
        let end = offset.checked_add(self.len).filter(|end| *end <= MAX_SECTORS && *end <= size >> 9);
        if end.is_none() {
            let device = self.target.devices().first().copied().unwrap_or_default();
            let name = crate::text::printable(device);
            let len = self.len;
            let why = format!("start={offset}, len={len}, dev_size={} sectors of 512 bytes", size >> 9);
            return Err(Error::new(ErrorKind::TooSmall, format!("{name} too small for target: {why}")));
        }
        Ok(Segment { start: self.start << 9, len: self.len << 9, kind })
    }

    /// Returns the line's text, with zeros for the key unless `keys` is true.
    pub fn print(&self, keys: bool) -> KeyText {
        let mut text = KeyText::default();
        text.push(&format!("{} {} {}", self.start, self.len, self.target.name()));
        if !matches!(self.target, Target::Zero | Target::Error) {
            text.push(" ");
        }
        match &self.target {
            Target::Crypt(crypt) => crypt.print(&mut text, keys),
            Target::Linear { device, offset } => text.push(&format!("{} {offset}", words::escape(device))),
            Target::Integrity(layer) => layer.print(&mut text, keys),
            Target::Striped(striped) => text.push(&striped.print()),
            Target::Delay(delay) => text.push(&delay.print()),
            Target::Verity(verity) => text.push(&verity.print()),
            Target::Zero | Target::Error => {}
        }
        text
    }
}

impl Target {
    /// Returns the only device of the target, by its name in the line.
    pub fn device(&self) -> Option<&str> {
        match self {
            Self::Crypt(crypt) => Some(&crypt.device),
            Self::Linear { device, .. } => Some(device),
            Self::Integrity(layer) => Some(&layer.device),
            Self::Striped(_) | Self::Delay(_) | Self::Verity(_) | Self::Zero | Self::Error => None,
        }
    }

    /// Returns all devices of the target, by their names in the line.
    pub fn devices(&self) -> Vec<&str> {
        match self {
            Self::Crypt(_) | Self::Linear { .. } => self.device().into_iter().collect(),
            Self::Integrity(layer) => Base::Integrity(layer).devices(),
            Self::Striped(striped) => Base::Striped(striped, 0).devices(),
            Self::Delay(delay) => Base::Delay(delay, 0).devices(),
            Self::Verity(verity) => Base::Verity(verity).devices(),
            Self::Zero | Self::Error => Vec::new(),
        }
    }

    /// Returns the target's name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Crypt(_) => "crypt",
            Self::Linear { .. } => "linear",
            Self::Integrity(_) => "integrity",
            Self::Striped(_) => "striped",
            Self::Delay(_) => "delay",
            Self::Verity(_) => "verity",
            Self::Zero => "zero",
            Self::Error => "error",
        }
    }
}

/// The text without keys.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.print(false))
    }
}

/// The number of a line of the text, for messages.
struct LineNumber(usize);

impl fmt::Display for LineNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table line {}", self.0 + 1)
    }
}

/// Splits a line into the device's name, if any, and the rest.
fn name_of(line: &str) -> (&str, &str) {
    match line.split_once(": ") {
        Some((name, rest)) if !name.contains(char::is_whitespace) => (plain_name(name), rest.trim_start()),
        _ => ("", line),
    }
}

/// Returns the name of a device of the table, without the kernel's folder.
fn plain_name(name: &str) -> &str {
    name.strip_prefix("/dev/mapper/").unwrap_or(name)
}

/// Returns true when a line's device is the device with this name.
fn is_named(word: &str, name: &str) -> bool {
    plain_name(word) == name
}

/// Refuses layers on layers, and other lines on a layer's device: they would be taken for lines on
/// the layer, or write to its journal.
fn has_one_layer_each(lines: &[Line], below: &[(String, Line)]) -> Result<()> {
    let is_layer = |line: &&Line| matches!(line.target, Target::Integrity(_));
    let all = || below.iter().map(|(_, line)| line).chain(lines);
    for layer in all().filter(is_layer) {
        let device = layer.target.device().unwrap_or_default();
        let on_it = |line: &&Line| line.target.devices().contains(&device);
        let why = match () {
            () if below.iter().any(|(name, _)| is_named(device, name)) => {
                "an integrity line on an integrity line"
            }
            () if all().filter(is_layer).filter(on_it).count() > 1 => {
                "two integrity lines are on one device, each with a journal there"
            }
            () if all().filter(on_it).count() > 1 => "another line is on the device of an integrity line",
            () => continue,
        };
        return Err(bad(format!("{}: {why}", crate::text::printable(device))));
    }
    Ok(())
}

/// Removes the lower devices from the list, and returns them.
fn below(named: &mut Vec<(&str, usize, Line)>) -> Result<Vec<(String, Line)>> {
    let is_used = |name: &str| {
        let by = |line: &Line| line.target.device().is_some_and(|device| is_named(device, name));
        !name.is_empty() && named.iter().any(|(of, _, line)| *of != name && by(line))
    };
    let used: Vec<bool> = named.iter().map(|(name, ..)| is_used(name)).collect();
    let mut tops = named.iter().zip(&used).filter(|(_, used)| !**used).map(|((name, ..), _)| *name);
    let top = tops.next();
    if tops.any(|name| Some(name) != top) {
        return Err(bad("several devices: want one, and those that it lies on"));
    }
    let mut below: Vec<(String, Line)> = Vec::new();
    let mut uses = used.into_iter();
    for (name, number, line) in std::mem::take(named) {
        if !uses.next().unwrap_or(false) {
            named.push((name, number, line));
            continue;
        }
        let is_whole = line.start == 0 && below.iter().all(|(other, _)| other != name);
        if !is_whole || !matches!(line.target, Target::Integrity(_)) {
            let why = "a device's lower device can be another device, or one integrity line from sector 0 on";
            return Err(bad(why).within(LineNumber(number)));
        }
        below.push((name.into(), line));
    }
    Ok(below)
}

fn bad(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadOption, why)
}

/// Converts an error of the cipher layer, which already begins with the kernel's words.
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
