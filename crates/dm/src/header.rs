//! The structure at the beginning of every ioctl of device mapper.
//!
//! ```text
//!   0    version   3 x u32          28   flags      u32        48   name   128 bytes
//!   12   data_size  u32             32   event_nr   u32        176  uuid   129 bytes
//!   16   data_start u32             36   padding    u32        305  data   7 bytes, or more
//!   20   target_count u32           40   dev        u64        312  the kernel's answer
//!   24   open_count i32
//! ```
//!
//! Source: include/uapi/linux/dm-ioctl.h, version 4.47.0. Numbers have the machine's byte order.

use rustix::io::Errno;
use underseal_cipher::Key;

use crate::{DeviceNumber, Error, Result};

/// The interface's version in answers.
pub const VERSION: [u32; 3] = [4, 47, 0];
/// The structure's size in bytes; the answer begins behind it.
pub const HEADER: usize = 312;
/// The smallest size of a buffer: all but the structure's last bytes.
pub const LEAST: usize = 305;
/// The largest size of a buffer, in bytes. libdevmapper's first buffer has 16 KiB.
pub const MOST: usize = 4 << 20;

/// Bytes of a name with its zero.
pub const NAME_LEN: usize = 128;
/// Bytes of a UUID with its zero.
pub const UUID_LEN: usize = 129;

const DATA_SIZE: usize = 12;
const DATA_START: usize = 16;
const TARGET_COUNT: usize = 20;
const OPEN_COUNT: usize = 24;
const FLAGS: usize = 28;
const EVENT: usize = 32;
const DEV: usize = 40;
const NAME: usize = 48;
const UUID: usize = 176;

/// Flags of the structure, by their bits.
pub mod flags {
    /// Writes are refused.
    pub const READ_ONLY: u32 = 1;
    /// The device is suspended, or the request suspends it.
    pub const SUSPEND: u32 = 1 << 1;
    /// libdevmapper's own flag, which the kernel leaves unchanged.
    pub const EXISTS: u32 = 1 << 2;
    /// `dev` is the number that a new device gets.
    pub const PERSISTENT_DEV: u32 = 1 << 3;
    /// The request asks for tables, not states.
    pub const STATUS_TABLE: u32 = 1 << 4;
    /// The device has a live table.
    pub const ACTIVE_PRESENT: u32 = 1 << 5;
    /// The device has an inactive table.
    pub const INACTIVE_PRESENT: u32 = 1 << 6;
    /// The buffer has no room for the answer.
    pub const BUFFER_FULL: u32 = 1 << 8;
    /// File systems on the device are not frozen when it is suspended.
    pub const SKIP_LOCKFS: u32 = 1 << 10;
    /// Suspending does not wait for requests in progress.
    pub const NO_FLUSH: u32 = 1 << 11;
    /// The request asks for the inactive table.
    pub const QUERY_INACTIVE: u32 = 1 << 12;
    /// The kernel has notified udev.
    pub const UEVENT_GENERATED: u32 = 1 << 13;
    /// The new name is a UUID.
    pub const UUID: u32 = 1 << 14;
    /// The buffer holds a key.
    pub const SECURE_DATA: u32 = 1 << 15;
    /// A message has an answer.
    pub const DATA_OUT: u32 = 1 << 16;
    /// The device is removed when its last user closes it.
    pub const DEFERRED_REMOVE: u32 = 1 << 17;
    /// The kernel has suspended the device for its own use.
    pub const INTERNAL_SUSPEND: u32 = 1 << 18;
}

/// A request and, after the command, its answer: a buffer in locked memory, since tables hold keys.
#[derive(Debug)]
pub struct Message {
    buffer: Key,
    /// The size of the caller's buffer.
    room: usize,
}

impl Message {
    /// Parses a caller's buffer, and writes the answered version into it. The caller's room is its
    /// `data_size`.
    ///
    /// # Errors
    /// `EINVAL` for a buffer that is shorter than the structure or than its own size, and for
    /// another interface version.
    pub fn parse(mut buffer: Key) -> Result<Self> {
        if buffer.len() < LEAST {
            return Err(Error::new(Errno::INVAL, "the buffer is shorter than the structure"));
        }
        if buffer.len() < HEADER {
            let mut whole = Key::zeroed(HEADER).map_err(|_| Error::new(Errno::NOMEM, "no memory"))?;
            whole.as_mut_bytes()[..buffer.len()].copy_from_slice(buffer.as_bytes());
            buffer = whole;
        }
        let mut message = Self { room: buffer.len(), buffer };
        let version = [message.u32(0), message.u32(4), message.u32(8)];
        message.set_version();
        if version[0] != VERSION[0] || version[1] > VERSION[1] {
            let [a, b, c] = version;
            let [ours, minor, patch] = VERSION;
            let why = format!("ioctl interface mismatch: kernel({ours}.{minor}.{patch}), user({a}.{b}.{c})");
            return Err(Error::new(Errno::INVAL, why));
        }
        let size = message.u32(DATA_SIZE) as usize;
        if size < LEAST || size > message.room {
            return Err(Error::new(Errno::INVAL, "the buffer is not as long as it says"));
        }
        message.room = size.max(HEADER);
        // Strings of the structure end within it.
        message.buffer.as_mut_bytes()[NAME + NAME_LEN - 1] = 0;
        message.buffer.as_mut_bytes()[UUID + UUID_LEN - 1] = 0;
        let cleared = flags::BUFFER_FULL
            | flags::UEVENT_GENERATED
            | flags::SECURE_DATA
            | flags::DATA_OUT
            | flags::INTERNAL_SUSPEND;
        message.set_flags(message.flags() & !cleared);
        Ok(message)
    }

    fn set_version(&mut self) {
        for (i, part) in VERSION.into_iter().enumerate() {
            self.set_u32(4 * i, part);
        }
    }

    /// Returns the bytes of the answer.
    pub fn answer(&self) -> &[u8] {
        &self.buffer.as_bytes()[..(self.u32(DATA_SIZE) as usize).clamp(HEADER, self.buffer.len())]
    }

    /// Returns the caller's data, whose beginning is in the structure.
    ///
    /// # Errors
    /// `EINVAL` when the data begins within the structure's fields or beyond the buffer.
    pub fn data(&self) -> Result<&[u8]> {
        let start = self.u32(DATA_START) as usize;
        let within = (LEAST..=self.room).contains(&start);
        let data = self.buffer.as_bytes().get(start..self.room).filter(|_| within);
        data.ok_or_else(|| Error::new(Errno::INVAL, "the data begin outside of the buffer"))
    }

    /// Answers with these data, or with the flag for missing room.
    pub fn put(&mut self, data: &[u8]) {
        self.set_u32(DATA_START, HEADER_U32);
        let end = HEADER + data.len();
        if end > self.room {
            return self.put_full();
        }
        self.buffer.as_mut_bytes()[HEADER..end].copy_from_slice(data);
        self.set_u32(DATA_SIZE, u32::try_from(end).unwrap_or(u32::MAX));
    }

    /// Answers with the flag for missing room.
    pub fn put_full(&mut self) {
        self.set_flags(self.flags() | flags::BUFFER_FULL);
        self.put_nothing();
    }

    /// Returns the caller's room in bytes, including the structure.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Answers with the structure alone.
    pub fn put_nothing(&mut self) {
        self.set_u32(DATA_SIZE, HEADER_U32);
    }

    /// Returns the name; empty if the caller gave none.
    ///
    /// # Errors
    /// `EINVAL` for bytes that are no text.
    pub fn name(&self) -> Result<&str> {
        self.string(NAME, NAME_LEN)
    }

    /// Returns the UUID; empty if the caller gave none.
    ///
    /// # Errors
    /// `EINVAL` for bytes that are no text.
    pub fn uuid(&self) -> Result<&str> {
        self.string(UUID, UUID_LEN)
    }

    fn string(&self, at: usize, len: usize) -> Result<&str> {
        text(&self.buffer.as_bytes()[at..at + len])
    }

    /// Answers with these names, whose lengths were checked by [`check_name`](crate::check_name).
    pub fn set_names(&mut self, name: &str, uuid: &str) {
        for (at, len, text) in [(NAME, NAME_LEN, name), (UUID, UUID_LEN, uuid)] {
            let field = &mut self.buffer.as_mut_bytes()[at..at + len];
            field.fill(0);
            let n = text.len().min(len - 1);
            field[..n].copy_from_slice(&text.as_bytes()[..n]);
        }
    }

    /// Returns the flags, see [`flags`].
    pub fn flags(&self) -> u32 {
        self.u32(FLAGS)
    }

    /// Returns true when a flag is set.
    pub fn has(&self, flag: u32) -> bool {
        self.flags() & flag != 0
    }

    /// Sets all flags.
    pub fn set_flags(&mut self, flags: u32) {
        self.set_u32(FLAGS, flags);
    }

    /// Returns the device's number, or `None` for 0.
    pub fn dev(&self) -> Option<DeviceNumber> {
        let bytes = self.buffer.as_bytes()[DEV..DEV + 8].try_into().unwrap_or([0; 8]);
        Some(u64::from_ne_bytes(bytes)).filter(|bits| *bits != 0).map(DeviceNumber::decode)
    }

    /// Answers with a device's number.
    pub fn set_dev(&mut self, dev: DeviceNumber) {
        self.buffer.as_mut_bytes()[DEV..DEV + 8].copy_from_slice(&dev.encode().to_ne_bytes());
    }

    /// Returns the number of targets in a load.
    pub fn target_count(&self) -> u32 {
        self.u32(TARGET_COUNT)
    }

    /// Answers with the number of a table's targets.
    pub fn set_target_count(&mut self, count: u32) {
        self.set_u32(TARGET_COUNT, count);
    }

    /// Answers with the number of openers of the device.
    pub fn set_open_count(&mut self, count: u32) {
        self.set_u32(OPEN_COUNT, count);
    }

    /// Returns the event known to the caller; for commands with udev events, udev's cookie.
    pub fn event(&self) -> u32 {
        self.u32(EVENT)
    }

    /// Answers with the number of the last event.
    pub fn set_event(&mut self, event: u32) {
        self.set_u32(EVENT, event);
    }

    fn u32(&self, at: usize) -> u32 {
        let bytes = self.buffer.as_bytes()[at..at + 4].try_into().unwrap_or([0; 4]);
        u32::from_ne_bytes(bytes)
    }

    fn set_u32(&mut self, at: usize, value: u32) {
        self.buffer.as_mut_bytes()[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
}

const HEADER_U32: u32 = 312;
const _: () = assert!(HEADER_U32 as usize == HEADER);

/// Returns the text before the first zero byte.
///
/// # Errors
/// `EINVAL` without a zero byte, and for bytes that are no text.
pub fn text(bytes: &[u8]) -> Result<&str> {
    let end = bytes.iter().position(|byte| *byte == 0);
    let end = end.ok_or_else(|| Error::new(Errno::INVAL, "a string has no end"))?;
    std::str::from_utf8(&bytes[..end]).map_err(|_| Error::new(Errno::INVAL, "a string is no text"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a caller's buffer of `size` bytes.
    pub(crate) fn buffer(size: usize) -> Key {
        let mut key = Key::zeroed(size).unwrap();
        let bytes = key.as_mut_bytes();
        bytes[0] = 4;
        bytes[12..16].copy_from_slice(&u32::try_from(size).unwrap().to_ne_bytes());
        bytes[16..20].copy_from_slice(&312_u32.to_ne_bytes());
        key
    }

    #[test]
    fn a_buffer_that_is_not_what_it_says_is_refused() {
        let message = Message::parse(buffer(400)).unwrap();
        assert_eq!((message.data().unwrap().len(), message.u32(4)), (88, VERSION[1]));
        for (at, value, why) in [
            (0, 3_u32, "interface mismatch"),
            (4, VERSION[1] + 1, "interface mismatch"),
            (12, 401, "as long as it says"),
            (12, 304, "as long as it says"),
        ] {
            let mut bytes = buffer(400);
            bytes.as_mut_bytes()[at..at + 4].copy_from_slice(&value.to_ne_bytes());
            let error = Message::parse(bytes).unwrap_err();
            assert!(
                error.errno() == Errno::INVAL && error.to_string().contains(why),
                "{at} {value}: {error}"
            );
        }
        for start in [0_u32, 304, 401, u32::MAX] {
            let mut bytes = buffer(400);
            bytes.as_mut_bytes()[16..20].copy_from_slice(&start.to_ne_bytes());
            Message::parse(bytes).unwrap().data().unwrap_err();
        }
        Message::parse(Key::zeroed(304).unwrap()).unwrap_err();
    }

    #[test]
    fn what_does_not_fit_is_told_and_a_name_without_an_end_ends() {
        let mut bytes = buffer(HEADER + 8);
        bytes.as_mut_bytes()[NAME..NAME + NAME_LEN].fill(b'n');
        let mut message = Message::parse(bytes).unwrap();
        assert_eq!(message.name().unwrap().len(), NAME_LEN - 1);
        message.put(&[1; 8]);
        assert_eq!((message.answer().len(), message.has(flags::BUFFER_FULL)), (HEADER + 8, false));
        message.put(&[1; 9]);
        assert_eq!((message.answer().len(), message.has(flags::BUFFER_FULL)), (HEADER, true));
    }
}
