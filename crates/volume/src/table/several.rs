//! Lines on several devices: `striped`, which uses them in turn, and `delay`, which delays
//! requests.

use std::time::Duration;

use super::bad;
use super::words::{Words, escape, number};
use crate::Result;

/// A range of a device, from a sector on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevicePlace {
    /// A file or block device, by its name in the line.
    pub device: String,
    /// The beginning of the range on the device, in 512-byte sectors.
    pub offset: u64,
}

/// `striped <#stripes> <chunk sectors> [<device> <offset>]+`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Striped {
    /// The number of sectors on a device before the next device's turn.
    pub chunk: u64,
    /// The devices, in their order.
    pub stripes: Vec<DevicePlace>,
}

/// A limit above the number of devices in real lines.
const MOST: u64 = 128;

impl Striped {
    /// Parses the rest of a line of `len` sectors after `striped`.
    pub(super) fn parse(mut words: Words, len: u64) -> Result<Self> {
        if words.len() < 2 {
            return Err(bad("Not enough arguments: want stripes, chunk size, devices and sectors"));
        }
        let count = words.number("Invalid stripe count", "the number of stripes")?;
        if !(1..=MOST).contains(&count) {
            return Err(bad(format!("Invalid stripe count: {count} is not from 1 to {MOST}")));
        }
        let chunk = words.number("Invalid chunk_size", "the chunk size")?;
        if chunk == 0 || chunk > u64::from(u32::MAX) {
            return Err(bad(format!("Invalid chunk_size: {chunk} sectors")));
        }
        if !len.is_multiple_of(count) {
            return Err(bad("Target length not divisible by number of stripes"));
        }
        if !(len / count).is_multiple_of(chunk) {
            return Err(bad("Target length not divisible by chunk size"));
        }
        if words.len() as u64 != 2 * count {
            return Err(bad("Not enough destinations specified"));
        }
        let place = |_| place(&mut words, "Couldn't parse stripe destination");
        let stripes = (0..count).map(place).collect::<Result<_>>()?;
        Ok(Self { chunk, stripes })
    }

    pub(super) fn print(&self) -> String {
        let places = self.stripes.iter().map(|place| format!(" {}", place.print()));
        format!("{} {}{}", self.stripes.len(), self.chunk, places.collect::<String>())
    }
}

/// `delay <device> <offset> <ms> [<device> <offset> <ms> [<device> <offset> <ms>]]`: for reads, for
/// writes, for flushes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DelayLine {
    /// The groups of the line; missing groups are like the last.
    classes: Vec<(DevicePlace, Duration)>,
}

impl DelayLine {
    /// Parses the rest of a line after `delay`.
    pub(super) fn parse(mut words: Words) -> Result<Self> {
        if !matches!(words.len(), 3 | 6 | 9) {
            return Err(bad("Requires exactly 3, 6 or 9 arguments"));
        }
        let mut classes = Vec::new();
        while words.len() > 0 {
            let place = place(&mut words, "Invalid device sector")?;
            let word = words.next().unwrap_or_default();
            let delay = number(&word).and_then(|ms| u32::try_from(ms).ok());
            let delay = delay.ok_or_else(|| bad("Invalid delay"))?;
            classes.push((place, Duration::from_millis(delay.into())));
        }
        Ok(Self { classes })
    }

    /// Returns the place and the delay of reads, writes and flushes.
    pub fn classes(&self) -> [&(DevicePlace, Duration); 3] {
        let last = self.classes.len().saturating_sub(1);
        [0, 1, 2].map(|class| &self.classes[class.min(last)])
    }

    pub(super) fn print(&self) -> String {
        let class =
            |(place, delay): &(DevicePlace, Duration)| format!("{} {}", place.print(), delay.as_millis());
        self.classes.iter().map(class).collect::<Vec<_>>().join(" ")
    }
}

impl DevicePlace {
    fn print(&self) -> String {
        format!("{} {}", escape(&self.device), self.offset)
    }
}

/// Parses a device and a sector. `kernel` are the kernel's words for a bad sector.
fn place(words: &mut Words, kernel: &str) -> Result<DevicePlace> {
    let device = words.next().unwrap_or_default().to_string();
    Ok(DevicePlace { device, offset: words.number(kernel, "the first sector")? })
}
