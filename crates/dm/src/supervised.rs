//! The parser of a supervised program's memory: paths, and the buffers of ioctls.
//!
//! The supervisor (`dm run --supervise`) has more rights than the program, whose other threads may
//! change the memory at any time: each byte is read once, and the bytes that were read are checked.

use rustix::io::Errno;
use underseal_cipher::Key;

use crate::DeviceNumber;
use crate::header::{HEADER, LEAST, MOST};

/// A length above that of the longest path that has a meaning.
pub const LONGEST_PATH: usize = 64;

const CONTROL: &str = "/dev/mapper/control";
const DEVICES: &str = "/proc/devices";
const SYSFS: &str = "/sys/dev/block/";

const DATA_SIZE: usize = 12;
const DATA_START: usize = 16;
const LIST_VERSIONS: u32 = 13;
const GET_TARGET_VERSION: u32 = 17;
/// The last version of the crypt target whose keys are digits only.
const DIGITS_ONLY: [u32; 3] = [1, 18, 0];

/// The memory of a program.
pub trait CallerMemory {
    /// Reads as many bytes as are mapped from there on. Returns their number.
    fn read_some(&self, at: u64, into: &mut [u8]) -> usize;

    /// Writes all of these bytes.
    ///
    /// # Errors
    /// `EFAULT` where not all of the memory can be written.
    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Errno>;

    /// Reads all of these bytes.
    ///
    /// # Errors
    /// `EFAULT` where not all of them are mapped.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Errno> {
        let len = into.len();
        if self.read_some(at, into) == len { Ok(()) } else { Err(Errno::FAULT) }
    }

    /// Reads a string, if it is shorter than `room`.
    fn string<'r>(&self, at: u64, room: &'r mut [u8]) -> Option<&'r [u8]> {
        let n = self.read_some(at, room);
        let end = room.get(..n)?.iter().position(|byte| *byte == 0)?;
        room.get(..end)
    }
}

/// A path that a supervisor answers for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallerPath {
    /// Device mapper's node.
    Control,
    /// The list of drivers.
    Devices,
    /// The folder of a device's holders in sysfs.
    Holders(DeviceNumber),
    /// A device's link in sysfs.
    Device(DeviceNumber),
}

impl CallerPath {
    /// Parses a path; `None` for all others.
    pub fn parse(path: &[u8]) -> Option<Self> {
        match std::str::from_utf8(path).ok()? {
            CONTROL => Some(Self::Control),
            DEVICES => Some(Self::Devices),
            path => {
                let device = path.strip_prefix(SYSFS)?;
                match device.strip_suffix("/holders") {
                    Some(device) => device.parse().ok().map(Self::Holders),
                    None => device.parse().ok().map(Self::Device),
                }
            }
        }
    }
}

/// A copy of an ioctl's buffer in locked memory: tables contain keys.
#[derive(Debug)]
pub struct CallerBuffer {
    at: u64,
    /// The bytes of the caller's buffer. The copy has a whole structure at least.
    size: usize,
    bytes: Key,
}

impl CallerBuffer {
    /// Copies the buffer of an ioctl's argument. One that is too short is left to the back end,
    /// which refuses it.
    ///
    /// # Errors
    /// `EFAULT` where the buffer is not mapped, `ENOMEM` for one that is too long.
    pub fn read(memory: &impl CallerMemory, at: u64) -> Result<Self, Errno> {
        let mut size = [0; 4];
        memory.read(at.checked_add(DATA_SIZE as u64).ok_or(Errno::FAULT)?, &mut size)?;
        let size = (u32::from_ne_bytes(size) as usize).max(LEAST);
        if size > MOST {
            return Err(Errno::NOMEM);
        }
        let mut bytes = Key::zeroed(size.max(HEADER)).map_err(|_| Errno::NOMEM)?;
        memory.read(at, &mut bytes.as_mut_bytes()[..size])?;
        Ok(Self { at, size, bytes })
    }

    /// Returns the bytes of the caller's buffer, as its size was when it was read.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the bytes, which the answer replaces.
    pub fn as_mut_bytes(&mut self) -> &mut [u8] {
        self.bytes.as_mut_bytes()
    }

    /// Writes the first bytes, the answer to this ioctl, to the caller's buffer. Versions of
    /// targets are those of targets without keys by name.
    ///
    /// # Errors
    /// `EFAULT` where the buffer cannot be written.
    pub fn write_back(&mut self, memory: &impl CallerMemory, request: u32, len: usize) -> Result<(), Errno> {
        if matches!(request & 0xff, LIST_VERSIONS | GET_TARGET_VERSION) {
            without_named_keys(self.bytes.as_mut_bytes());
        }
        memory.write(self.at, &self.bytes.as_bytes()[..len.min(self.size)])
    }
}

/// Lowers crypt's version in an answer: records of `next u32, version u32 * 3, name`.
pub(crate) fn without_named_keys(buffer: &mut [u8]) {
    let number = |buffer: &[u8], at: usize| {
        let bytes = buffer.get(at..at.checked_add(4)?)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?) as usize)
    };
    let Some(mut at) = number(buffer, DATA_START) else { return };
    while let Some(next) = number(buffer, at) {
        if buffer.get(at + 16..at + 22) == Some(b"crypt\0") {
            let version = DIGITS_ONLY.map(u32::to_ne_bytes).concat();
            buffer[at + 4..at + 16].copy_from_slice(&version);
        }
        if next == 0 {
            return;
        }
        at = at.saturating_add(next);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Mapped bytes from an address on.
    struct Mapped(u64, RefCell<Vec<u8>>);

    impl CallerMemory for Mapped {
        fn read_some(&self, at: u64, into: &mut [u8]) -> usize {
            let bytes = self.1.borrow();
            let start = at.checked_sub(self.0).and_then(|at| usize::try_from(at).ok());
            let from = start.and_then(|at| bytes.get(at..)).unwrap_or_default();
            let n = from.len().min(into.len());
            into[..n].copy_from_slice(&from[..n]);
            n
        }

        fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Errno> {
            let at =
                usize::try_from(at.checked_sub(self.0).ok_or(Errno::FAULT)?).map_err(|_| Errno::FAULT)?;
            let mut mapped = self.1.borrow_mut();
            let to = mapped.get_mut(at..at.saturating_add(bytes.len())).ok_or(Errno::FAULT)?;
            to.copy_from_slice(bytes);
            Ok(())
        }
    }

    #[test]
    fn paths_are_those_of_devices_and_no_others() {
        let device = DeviceNumber::new(7, 1000);
        for (path, expected) in [
            ("/dev/mapper/control", Some(CallerPath::Control)),
            ("/proc/devices", Some(CallerPath::Devices)),
            ("/sys/dev/block/7:1000", Some(CallerPath::Device(device))),
            ("/sys/dev/block/7:1000/holders", Some(CallerPath::Holders(device))),
            ("/sys/dev/block/../holders", None),
            ("/sys/dev/block/+7:0/holders", None),
            ("/sys/dev/block//holders", None),
            ("/sys/dev/block/7:1000/holders/holders", None),
            ("/dev/mapper/control/", None),
            ("", None),
        ] {
            assert_eq!(CallerPath::parse(path.as_bytes()), expected, "{path}");
        }
        assert_eq!(CallerPath::parse(b"/proc/devices\xff"), None);
    }

    #[test]
    fn nothing_is_written_beyond_a_callers_buffer() {
        for (size, mapped, expected) in [
            (305_u32, 305, Ok(305)),
            (0, 305, Ok(305)),
            (311, 311, Ok(311)),
            (400, 400, Ok(400)),
            (400, 399, Err(Errno::FAULT)),
            (0, 304, Err(Errno::FAULT)),
            (u32::MAX, 400, Err(Errno::NOMEM)),
        ] {
            let mut bytes = vec![7; mapped];
            bytes[DATA_SIZE..DATA_SIZE + 4].copy_from_slice(&size.to_ne_bytes());
            let memory = Mapped(1 << 40, RefCell::new(bytes));
            let read = CallerBuffer::read(&memory, 1 << 40);
            let done = read.and_then(|mut buffer| {
                assert!(buffer.as_mut_bytes().len() >= HEADER);
                buffer.as_mut_bytes().fill(9);
                let len = buffer.as_mut_bytes().len();
                buffer.write_back(&memory, 0, len)?;
                Ok(memory.1.borrow().iter().filter(|byte| **byte == 9).count())
            });
            assert_eq!(done, expected, "{size} {mapped}");
        }
        let nowhere = Mapped(0, RefCell::default());
        assert_eq!(CallerBuffer::read(&nowhere, u64::MAX - 3).unwrap_err(), Errno::FAULT);
    }

    #[test]
    fn only_crypts_version_is_lowered_and_bad_records_end_it() {
        let mut buffer = vec![0_u8; HEADER];
        buffer[DATA_START..DATA_START + 4].copy_from_slice(&312_u32.to_ne_bytes());
        for (name, next) in [("linear\0\0", 24_u32), ("crypt\0\0\0", 24), ("cryptic\0", u32::MAX)] {
            buffer.extend_from_slice(&[next, 1, 28, 5].map(u32::to_ne_bytes).concat());
            buffer.extend_from_slice(name.as_bytes());
        }
        let mut expected = buffer.clone();
        without_named_keys(&mut buffer);
        expected[HEADER + 28..HEADER + 40].copy_from_slice(&DIGITS_ONLY.map(u32::to_ne_bytes).concat());
        assert_eq!(buffer, expected);
        without_named_keys(&mut []);
    }

    /// The back end fills an answer in; the rest of the buffer is the caller's.
    #[test]
    fn any_answer_keeps_its_length_and_changes_in_versions_only() {
        for _ in 0..2000 {
            let mut buffer: Vec<u8> =
                std::iter::repeat_with(|| fastrand::u8(..)).take(fastrand::usize(..600)).collect();
            for _ in 0..fastrand::usize(..6) {
                let at = fastrand::usize(..=buffer.len());
                let next = [fastrand::u32(..64), fastrand::u32(..)][fastrand::usize(..2)];
                let record = [&next.to_ne_bytes()[..], &[0xee; 12], b"crypt\0"].concat();
                buffer.splice(at..at, record);
            }
            if let Some(start) = buffer.get_mut(DATA_START..DATA_START + 4) {
                start.copy_from_slice(&fastrand::u32(..640).to_ne_bytes());
            }
            let before = buffer.clone();
            without_named_keys(&mut buffer);
            assert_eq!(buffer.len(), before.len());
            let lowered = DIGITS_ONLY.map(u32::to_ne_bytes).concat();
            let mut at = 0;
            while let Some(found) = (at..buffer.len()).find(|at| buffer[*at] != before[*at]) {
                // The change lies in the version of a record with that name.
                let version = (found.saturating_sub(11)..=found).find(|at| {
                    buffer.get(*at..at + 12) == Some(&lowered)
                        && before.get(at + 12..at + 18) == Some(b"crypt\0")
                });
                at = version.expect("a record") + 12;
            }
        }
    }
}
