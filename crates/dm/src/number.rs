//! A device number in the kernel's 64-bit encoding.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A block device's number, as device mapper's structures have it: the low 8 bits of the minor
/// number, 12 bits of the major number from bit 8 on, the rest of the minor number from bit 20 on
/// (`huge_encode_dev`, include/linux/kdev_t.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceNumber {
    /// The driver's number.
    pub major: u32,
    /// The device's number within the driver.
    pub minor: u32,
}

impl DeviceNumber {
    /// Builds a number of its two parts.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// Decodes a number from the kernel's encoding. Bits beyond those of a 32-bit device number are
    /// ignored, as in the kernel.
    pub const fn decode(bits: u64) -> Self {
        let [a, b, c, d, ..] = bits.to_le_bytes();
        let low = u32::from_le_bytes([a, b, c, d]);
        Self { major: (low & 0xf_ff00) >> 8, minor: (low & 0xff) | ((low >> 12) & 0xf_ff00) }
    }

    /// Encodes the number as the kernel does.
    pub fn encode(self) -> u64 {
        let (major, minor) = (u64::from(self.major), u64::from(self.minor));
        (minor & 0xff) | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
    }

    /// Returns the number from stat(2).
    pub fn of_node(rdev: u64) -> Self {
        Self { major: rustix::fs::major(rdev), minor: rustix::fs::minor(rdev) }
    }

    /// Returns the number for mknod(2).
    pub fn for_node(self) -> u64 {
        rustix::fs::makedev(self.major, self.minor)
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// The text is no device number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoDeviceNumber;

impl FromStr for DeviceNumber {
    type Err = NoDeviceNumber;

    fn from_str(text: &str) -> Result<Self, NoDeviceNumber> {
        let part = |digits: &str| {
            let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse().ok().filter(|_| is_number).ok_or(NoDeviceNumber)
        };
        let (major, minor) = text.split_once(':').ok_or(NoDeviceNumber)?;
        Ok(Self { major: part(major)?, minor: part(minor)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_encoded_as_the_kernel_does() {
        for (major, minor, bits) in
            [(7, 0, 0x700), (253, 5, 0xfd05), (7, 1000, 0x30_07e8), (259, 0xf_ffff, 0xfff1_03ff)]
        {
            let number = DeviceNumber::new(major, minor);
            assert_eq!(number.encode(), bits, "{number}");
            assert_eq!(DeviceNumber::decode(bits), number);
            assert_eq!(number.to_string().parse(), Ok(number));
        }
        for text in ["", "7", "7:", ":7", "7:x", "+7:1", "7:1:2", "/dev/loop0"] {
            assert_eq!(text.parse::<DeviceNumber>(), Err(NoDeviceNumber), "{text}");
        }
    }
}
