//! The data behind the ioctl structure: tables, lists, versions, messages.
//!
//! ```text
//!   a target   start u64, length u64, status i32, next u32, type 16 bytes, its parameters as text
//!   a device   number u64, next u32, name; aligned to 8: event u32, flags u32; and a UUID
//!   a version  next u32, 3 x u32, name
//! ```
//!
//! `next` counts bytes from its own record, but in answers about tables from the first record
//! (include/uapi/linux/dm-ioctl.h).

use rustix::io::Errno;
use underseal_cipher::Key;

use crate::header::text;
use crate::{DeviceNumber, Error, Result};

/// The size of a target's record before its parameters.
const SPEC: usize = 40;
/// The size of a target's type with its zero.
const TYPE_LEN: usize = 16;
/// The offset of a device's name in its record.
const NAME_AT: usize = 12;
/// The alignment of records in bytes.
const ALIGN: usize = 8;

/// A line of a table.
pub struct Line {
    /// The beginning, in 512-byte sectors.
    pub start: u64,
    /// The length, in 512-byte sectors.
    pub len: u64,
    /// The target's type.
    pub target: String,
    /// The target's parameters: text, in locked memory since it may hold a key.
    pub params: Key,
}

impl Line {
    /// Returns a line.
    ///
    /// # Errors
    /// `ENOMEM` without memory for the parameters.
    pub fn new(start: u64, len: u64, target: &str, params: &str) -> Result<Self> {
        Ok(Self { start, len, target: target.into(), params: secret(params.as_bytes())? })
    }

    /// Returns a copy.
    ///
    /// # Errors
    /// `ENOMEM` without memory for the parameters.
    pub fn copy(&self) -> Result<Self> {
        Self::new(self.start, self.len, &self.target, self.params())
    }

    /// Returns the parameters.
    pub fn params(&self) -> &str {
        std::str::from_utf8(self.params.as_bytes()).unwrap_or_default()
    }
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {} [redacted]", self.start, self.len, self.target)
    }
}

/// Returns a copy in locked memory.
pub(crate) fn secret(bytes: &[u8]) -> Result<Key> {
    Key::new(bytes).map_err(|e| Error::new(Errno::NOMEM, e.to_string()))
}

/// Returns the lines of a load.
///
/// # Errors
/// `EINVAL`, in the kernel's words, without lines, for records beyond the buffer and for text
/// without an end.
pub fn lines(data: &[u8], count: u32) -> Result<Vec<Line>> {
    let bad = |why: &str| Error::new(Errno::INVAL, why);
    if count == 0 {
        return Err(bad("populate_table: no targets specified"));
    }
    // Each line has a record, so a count beyond the room is refused.
    if count as usize > data.len() / SPEC {
        return Err(bad("unable to find target"));
    }
    let mut lines = Vec::new();
    let mut at = 0_usize;
    for number in 0..count {
        let record = data.get(at..).filter(|rest| rest.len() > SPEC);
        let record = record.ok_or_else(|| bad("unable to find target"))?;
        let (start, len) = (u64_at(record, 0), u64_at(record, 8));
        let target = text(&record[24..24 + TYPE_LEN])?;
        let next = u32_at(record, 20) as usize;
        // In the last record it has no meaning.
        let is_last = number + 1 == count;
        if !is_last && (next <= SPEC || !next.is_multiple_of(ALIGN)) {
            return Err(bad("unable to find target"));
        }
        let params = if is_last { &record[SPEC..] } else { record.get(SPEC..next).unwrap_or_default() };
        let params = text(params)?;
        lines.push(Line::new(start, len, target, params)?);
        at = at.checked_add(next).filter(|_| !is_last).unwrap_or(at);
    }
    Ok(lines)
}

/// A line of an answer about a table.
pub struct Told<'l> {
    /// The line.
    pub line: &'l Line,
    /// The target's parameters or state as text.
    pub text: &'l str,
}

/// Returns the answer about a table, in locked memory, or `None` when it needs more than `room`
/// bytes.
///
/// # Errors
/// `ENOMEM`.
pub fn told(lines: &[Told<'_>], room: usize) -> Result<Option<Key>> {
    let len = lines.iter().map(|told| (SPEC + told.text.len() + 1).next_multiple_of(ALIGN)).sum::<usize>();
    if len > room {
        return Ok(None);
    }
    let mut answer = Key::zeroed(len).map_err(|e| Error::new(Errno::NOMEM, e.to_string()))?;
    let bytes = answer.as_mut_bytes();
    let mut at = 0;
    for Told { line, text } in lines {
        let end = at + (SPEC + text.len() + 1).next_multiple_of(ALIGN);
        let record = &mut bytes[at..end];
        record[..8].copy_from_slice(&line.start.to_ne_bytes());
        record[8..16].copy_from_slice(&line.len.to_ne_bytes());
        record[20..24].copy_from_slice(&u32::try_from(end).unwrap_or(u32::MAX).to_ne_bytes());
        let kind = line.target.as_bytes();
        let kind = &kind[..kind.len().min(TYPE_LEN - 1)];
        record[24..24 + kind.len()].copy_from_slice(kind);
        record[SPEC..SPEC + text.len()].copy_from_slice(text.as_bytes());
        at = end;
    }
    Ok(Some(answer))
}

/// A device in a list.
pub struct Listed<'d> {
    /// The device's number.
    pub dev: DeviceNumber,
    /// The device's name.
    pub name: &'d str,
    /// The device's UUID; may be empty.
    pub uuid: &'d str,
    /// The number of the device's last event.
    pub event: u32,
}

/// The record has a UUID, or has none.
const HAS_UUID: u32 = 1;
const HAS_NO_UUID: u32 = 2;

/// Returns a list of devices.
pub fn device_list(devices: &[Listed<'_>]) -> Vec<u8> {
    let mut list = Vec::new();
    for (i, device) in devices.iter().enumerate() {
        let begin = list.len();
        list.extend(device.dev.encode().to_ne_bytes());
        list.extend([0; 4]);
        zero_ended(&mut list, device.name);
        list.extend(device.event.to_ne_bytes());
        let flag = if device.uuid.is_empty() { HAS_NO_UUID } else { HAS_UUID };
        list.extend(flag.to_ne_bytes());
        if !device.uuid.is_empty() {
            zero_ended(&mut list, device.uuid);
        }
        if i + 1 < devices.len() {
            let next = u32::try_from(list.len() - begin).unwrap_or(u32::MAX);
            list[begin + 8..begin + NAME_AT].copy_from_slice(&next.to_ne_bytes());
        }
    }
    if list.is_empty() {
        // A first device of number 0 stands for an empty list.
        list.extend([0; 8]);
    }
    list
}

/// Returns a list of targets and their versions.
pub fn version_list(targets: &[(&str, [u32; 3])]) -> Vec<u8> {
    let mut list = Vec::new();
    for (i, (name, version)) in targets.iter().enumerate() {
        let begin = list.len();
        list.extend([0; 4]);
        version.iter().for_each(|part| list.extend(part.to_ne_bytes()));
        zero_ended(&mut list, name);
        if i + 1 < targets.len() {
            let next = u32::try_from(list.len() - begin).unwrap_or(u32::MAX);
            list[begin..begin + 4].copy_from_slice(&next.to_ne_bytes());
        }
    }
    list
}

/// Returns the numbers of a table's lower devices.
pub fn deps(devices: &[DeviceNumber]) -> Vec<u8> {
    let count = u32::try_from(devices.len()).unwrap_or(u32::MAX);
    let mut list = [count, 0].map(u32::to_ne_bytes).concat();
    devices.iter().for_each(|dev| list.extend(dev.encode().to_ne_bytes()));
    list
}

/// Returns the sector and the words of a message.
///
/// # Errors
/// `EINVAL` for data without a message.
pub fn message(data: &[u8]) -> Result<(u64, &str)> {
    if data.len() < 9 {
        return Err(Error::new(Errno::INVAL, "Invalid target message parameters."));
    }
    Ok((u64_at(data, 0), text(&data[8..])?))
}

/// Adds text with its zero, and zeros up to the next record.
fn zero_ended(list: &mut Vec<u8>, text: &str) {
    list.extend(text.as_bytes());
    list.push(0);
    list.resize(list.len().next_multiple_of(ALIGN), 0);
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns a load's records, in the form of libdevmapper.
    fn load(lines: &[(u64, u64, &str, &str)]) -> Vec<u8> {
        let mut data = Vec::new();
        for (start, len, target, params) in lines {
            let begin = data.len();
            data.extend(start.to_ne_bytes());
            data.extend(len.to_ne_bytes());
            data.extend([0; 8 + TYPE_LEN]);
            data[begin + 24..begin + 24 + target.len()].copy_from_slice(target.as_bytes());
            zero_ended(&mut data, params);
            let next = u32::try_from(data.len() - begin).unwrap();
            data[begin + 20..begin + 24].copy_from_slice(&next.to_ne_bytes());
        }
        data
    }

    fn shown(lines: &[Line]) -> Vec<(u64, u64, &str, &str)> {
        lines.iter().map(|line| (line.start, line.len, line.target.as_str(), line.params())).collect()
    }

    #[test]
    fn a_load_is_its_lines() {
        let table = [(0, 8, "zero", ""), (8, 16, "linear", "7:0 0"), (24, 1, "error", "")];
        let data = load(&table);
        assert_eq!(shown(&lines(&data, 3).unwrap()), table);
        assert_eq!(shown(&lines(&data, 2).unwrap()), table[..2], "what is beyond the count is not looked at");
        assert!(!format!("{:?}", lines(&data, 3).unwrap()).contains("7:0"), "parameters may be keys");
    }

    #[test]
    fn records_that_leave_the_buffer_are_refused() {
        let data = load(&[(0, 8, "zero", ""), (8, 16, "linear", "7:0 0")]);
        for count in [0, 3, u32::MAX] {
            assert_eq!(lines(&data, count).unwrap_err().errno(), Errno::INVAL, "{count}");
        }
        for cut in 0..data.len() - 3 {
            lines(&data[..cut], 2).unwrap_err();
        }
        for next in [0, 8, 41, 47, u32::MAX, 1 << 20] {
            let mut data = data.clone();
            data[20..24].copy_from_slice(&next.to_ne_bytes());
            lines(&data, 2).unwrap_err();
        }
        let mut data = data.clone();
        data[24..40].fill(b'x');
        lines(&data, 1).unwrap_err();
    }

    #[test]
    fn an_answer_about_a_table_counts_from_its_beginning() {
        let table = [(0, 8, "zero", ""), (8, 16, "linear", "7:0 0")];
        let table = lines(&load(&table), 2).unwrap();
        let all: Vec<_> = table.iter().map(|line| Told { line, text: line.params() }).collect();
        let answer = told(&all, 96).unwrap().unwrap();
        let bytes = answer.as_bytes();
        assert_eq!((u32_at(bytes, 20), u32_at(bytes, 48 + 20), bytes.len()), (48, 96, 96));
        assert!(told(&all, 95).unwrap().is_none());
    }

    #[test]
    fn lists_are_aligned_and_end() {
        let dev = DeviceNumber::new(7, 1000);
        let one = Listed { dev, name: "a", uuid: "", event: 3 };
        let other = Listed { dev, name: "second", uuid: "CRYPT-1", event: 0 };
        let list = device_list(&[one, other]);
        assert_eq!(u64_at(&list, 0), dev.encode());
        assert_eq!((u32_at(&list, 8), u32_at(&list, 16), u32_at(&list, 20)), (24, 3, HAS_NO_UUID));
        assert_eq!((u32_at(&list, 24 + 8), text(&list[24 + 12..]).unwrap()), (0, "second"));
        assert_eq!((u32_at(&list, 24 + 28), text(&list[24 + 32..]).unwrap()), (HAS_UUID, "CRYPT-1"));
        assert_eq!(device_list(&[]), [0; 8]);
        let list = version_list(&[("crypt", [1, 18, 0]), ("zero", [1, 1, 0])]);
        assert_eq!((u32_at(&list, 0), u32_at(&list, 24), text(&list[24 + 16..]).unwrap()), (24, 0, "zero"));
        assert_eq!(u32_at(&deps(&[dev]), 0), 1);
    }

    proptest! {
        #[test]
        fn any_bytes_are_lines_or_are_refused(data in prop::collection::vec(any::<u8>(), 0..400), count: u32) {
            let _ = lines(&data, count % 16);
            let _ = message(&data);
        }
    }
}
