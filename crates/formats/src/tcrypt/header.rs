//! A decrypted header: its fields, its checks, and how one is made.

use underseal_cipher::Key;

use super::{KEYS, SEALED};
use crate::fields::Fields;
use crate::{Error, ErrorKind, Result};

/// The program that a header names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// `TRUE`.
    TrueCrypt,
    /// `VERA`.
    VeraCrypt,
}

impl Program {
    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Self::TrueCrypt => "TrueCrypt",
            Self::VeraCrypt => "VeraCrypt",
        }
    }

    /// The newest version of the program that this crate reads as: TrueCrypt 7.1a, VeraCrypt 1.26.
    fn newest(self) -> u16 {
        match self {
            Self::TrueCrypt => 0x071a,
            Self::VeraCrypt => 0x0126,
        }
    }
}

/// The newest version of a header.
const NEWEST: u16 = 5;
/// The least program version that new headers ask for.
const NEW_PROGRAM: u16 = 0x010b;
/// In-place encryption made the volume.
const IN_PLACE: u32 = 2;

/// A header's fields.
#[derive(Debug)]
pub struct Header {
    /// The program that wrote the header.
    pub program: Program,
    /// 1 to 5.
    pub version: u16,
    /// The least version of the program that reads it, as two bytes: 0x010b.
    pub least_program: u16,
    /// The size of the hidden volume; 0 in the header of a normal one.
    pub hidden_size: u64,
    /// Bytes of data; 0 before version 3.
    pub size: u64,
    /// Where the encrypted area begins in the host, in bytes; meaningless before version 4.
    pub start: u64,
    /// The length of the encrypted area; less than `size` while encryption in place is not
    /// finished.
    pub length: u64,
    /// Bit 0: system encryption; bit 1: made in place.
    pub flags: u32,
    /// The sector size of the file system, in bytes. The cipher's sectors have 512 always.
    pub sector_size: u32,
    /// The key area.
    pub(super) keys: Key,
    /// When volume and header were made, before version 4; 16 bytes.
    times: [u8; 16],
}

/// The outcome of looking at decrypted bytes.
pub(super) enum Parsed {
    /// No header: another key decrypts it, if any.
    Nothing,
    /// The mark of a header, and a checksum that fails.
    Damaged(&'static str),
    /// A header with valid checksums.
    Header(Header),
}

impl Header {
    /// Parses the decrypted bytes 64 to 511 of a header.
    ///
    /// Returns `Memory`.
    pub(super) fn parse(plain: &[u8]) -> Result<Parsed> {
        let fields = Fields(plain);
        let program = match fields.bytes(0, 4)? {
            b"TRUE" => Program::TrueCrypt,
            b"VERA" => Program::VeraCrypt,
            _ => return Ok(Parsed::Nothing),
        };
        let version = fields.be16(4)?;
        let keys = fields.bytes(SEALED - KEYS, KEYS)?;
        // A header of a version that is not known is checked as the newest that is.
        if version >= 4 && crc32fast::hash(fields.bytes(0, 188)?) != fields.be32(188)? {
            return Ok(Parsed::Damaged("the checksum of its fields"));
        }
        if crc32fast::hash(keys) != fields.be32(8)? {
            return Ok(Parsed::Damaged("the checksum of its keys"));
        }
        Ok(Parsed::Header(Self {
            program,
            version,
            least_program: fields.be16(6)?,
            hidden_size: fields.be64(28)?,
            size: fields.be64(36)?,
            start: fields.be64(44)?,
            length: fields.be64(52)?,
            flags: if version >= 4 { fields.be32(60)? } else { 0 },
            sector_size: if version >= 5 { fields.be32(64)? } else { 512 },
            keys: Key::new(keys)?,
            times: fields.array(12)?,
        }))
    }

    /// Parses the decrypted bytes 64 to 511 of a header, returns `None` for an unsound header, and
    /// refuses a header that this crate does not open: for tests that have no password.
    ///
    /// # Errors
    /// `Unsupported`, `BadHeader`, `Memory`.
    pub fn checked(plain: &[u8]) -> Result<Option<Self>> {
        let Parsed::Header(header) = Self::parse(plain)? else { return Ok(None) };
        header.check()?;
        Ok(Some(header))
    }

    /// Refuses sound headers that this crate does not open.
    ///
    /// Returns `Unsupported`, and `BadHeader` for an invalid sector size.
    pub(super) fn check(&self) -> Result<()> {
        let unsupported = |why: String| Err(Error::new(ErrorKind::Unsupported, why));
        if !(1..=NEWEST).contains(&self.version) {
            let version = self.version;
            return unsupported(format!("a header of version {version}: 1 to {NEWEST} are known"));
        }
        if self.least_program > self.program.newest() {
            let (name, of) = (self.program.name(), self.program_text());
            return unsupported(format!("the volume asks for {name} {of}, newer than any that is known"));
        }
        if !(512..=4096).contains(&self.sector_size) || !self.sector_size.is_multiple_of(512) {
            let context = format!("a sector size of {} bytes: 512 to 4096 in steps of 512", self.sector_size);
            return Err(Error::new(ErrorKind::BadHeader, context));
        }
        if self.version >= 4 && self.length < self.size {
            let how = if self.flags & IN_PLACE != 0 { "encryption in place" } else { "encryption" };
            return unsupported(format!(
                "{how} was not completed: {} of {} bytes are encrypted",
                self.length, self.size
            ));
        }
        Ok(())
    }

    /// The least program version as cryptsetup prints it: `1.b`.
    pub fn program_text(&self) -> String {
        format!("{:x}.{:x}", self.least_program >> 8, self.least_program & 0xff)
    }

    /// The header of a new VeraCrypt volume, `size` bytes of data at `start`.
    pub(super) fn new_volume(start: u64, size: u64, hidden: bool, sector_size: u32, keys: Key) -> Self {
        Self {
            program: Program::VeraCrypt,
            version: NEWEST,
            least_program: NEW_PROGRAM,
            hidden_size: if hidden { size } else { 0 },
            size,
            start,
            length: size,
            flags: 0,
            sector_size,
            keys,
            times: [0; 16],
        }
    }

    /// The decrypted bytes 64 to 511 of this header, checksums included.
    ///
    /// Returns `Memory`.
    pub(super) fn to_plain(&self) -> Result<Key> {
        let mut plain = Key::zeroed(SEALED)?;
        let bytes = plain.as_mut_bytes();
        let magic = if self.program == Program::VeraCrypt { b"VERA" } else { b"TRUE" };
        let keys = crc32fast::hash(self.keys.as_bytes());
        let sector_size = if self.version >= 5 { self.sector_size } else { 0 };
        let fields: [(usize, &[u8]); 12] = [
            (0, magic),
            (4, &self.version.to_be_bytes()),
            (6, &self.least_program.to_be_bytes()),
            (8, &keys.to_be_bytes()),
            (12, &self.times),
            (28, &self.hidden_size.to_be_bytes()),
            (36, &self.size.to_be_bytes()),
            (44, &self.start.to_be_bytes()),
            (52, &self.length.to_be_bytes()),
            (60, &self.flags.to_be_bytes()),
            (64, &sector_size.to_be_bytes()),
            (SEALED - KEYS, self.keys.as_bytes()),
        ];
        for (at, field) in fields {
            bytes[at..at + field.len()].copy_from_slice(field);
        }
        // Older programs leave these bytes zero.
        if self.version >= 4 {
            let crc = crc32fast::hash(&bytes[..188]);
            bytes[188..192].copy_from_slice(&crc.to_be_bytes());
        }
        Ok(plain)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn new() -> Header {
        let keys = Key::new(&(0..=255).collect::<Vec<u8>>()).unwrap();
        Header::new_volume(131_072, 65_536, false, 512, keys)
    }

    #[test]
    fn a_header_survives_its_own_bytes() {
        let plain = new().to_plain().unwrap();
        let Parsed::Header(back) = Header::parse(plain.as_bytes()).unwrap() else { panic!("no header") };
        back.check().unwrap();
        assert_eq!(back.to_plain().unwrap().as_bytes(), plain.as_bytes());
        assert_eq!((back.start, back.size, back.program_text()), (131_072, 65_536, "1.b".to_owned()));
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_seen() {
        let plain = new().to_plain().unwrap();
        for bit in 0..8 * SEALED {
            let mut bytes = plain.as_bytes().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            match Header::parse(&bytes).unwrap() {
                Parsed::Nothing => assert!(bit < 32),
                Parsed::Damaged(_) => assert!(bit >= 32),
                // Below version 4 the fields have no checksum.
                Parsed::Header(header) => assert!((32..48).contains(&bit) && header.version < 4, "{bit}"),
            }
        }
    }

    #[test]
    fn what_is_not_opened_has_a_reason() {
        type Change = fn(&mut Header);
        let cases: [(Change, &str); 6] = [
            (|of| of.version = 6, "version 6"),
            (|of| of.least_program = 0x0127, "newer"),
            (|of| of.sector_size = 513, "513"),
            (|of| of.sector_size = 8192, "8192"),
            (|of| of.length = 512, "encryption was not completed"),
            (|of| (of.length, of.flags) = (512, 2), "encryption in place"),
        ];
        for (change, why) in cases {
            let mut header = new();
            change(&mut header);
            let error = header.check().unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
        let mut old = new();
        (old.program, old.least_program) = (Program::TrueCrypt, 0x0700);
        old.check().unwrap();
    }
}
