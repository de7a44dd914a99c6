//! The header of a transmission request: 28 bytes, parsed without checks of the request itself.

use std::fmt;

use super::{CommandFlags, REQUEST_MAGIC};

/// A request's header. A WRITE's payload of `length` bytes follows it on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHeader {
    /// The flags, including unknown bits.
    pub flags: CommandFlags,
    /// The request's type.
    pub command: RequestType,
    /// The client's cookie, returned unchanged.
    pub cookie: Cookie,
    /// The first byte in the export.
    pub offset: u64,
    /// The number of bytes.
    pub length: u32,
}

/// The client's mark on a request: opaque, echoed in its replies.
pub type Cookie = [u8; 8];

/// The type of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestType {
    /// Read.
    Read,
    /// Write; the payload follows.
    Write,
    /// Ends the connection; has no reply.
    Disconnect,
    /// Acknowledged writes become durable.
    Flush,
    /// The range is not needed any more.
    Trim,
    /// The range will be needed soon.
    Cache,
    /// Write zeroes; no payload.
    WriteZeroes,
    /// Asks which parts are allocated.
    BlockStatus,
    /// A number that this server does not know; the type's payload, if any, is unknown too.
    Other(u16),
}

/// Bytes of a request's header.
pub const REQUEST_LEN: usize = 28;

impl RequestHeader {
    /// Parses a header.
    ///
    /// # Errors
    /// When the magic is wrong: the stream is out of step and the connection must be closed.
    pub fn parse(header: &[u8; REQUEST_LEN]) -> Result<Self, BadMagic> {
        let magic = u32::from_be_bytes(field::<MAGIC, 4>(header));
        if magic != REQUEST_MAGIC {
            return Err(BadMagic(magic));
        }
        Ok(Self {
            flags: CommandFlags::from_bits_retain(u16::from_be_bytes(field::<FLAGS, 2>(header))),
            command: RequestType::from(u16::from_be_bytes(field::<TYPE, 2>(header))),
            cookie: field::<COOKIE, 8>(header),
            offset: u64::from_be_bytes(field::<OFFSET, 8>(header)),
            length: u32::from_be_bytes(field::<LENGTH, 4>(header)),
        })
    }

    /// Writes a header, as a client sends it.
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let mut header = [0; REQUEST_LEN];
        header[MAGIC..FLAGS].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        header[FLAGS..TYPE].copy_from_slice(&self.flags.bits().to_be_bytes());
        header[TYPE..COOKIE].copy_from_slice(&u16::from(self.command).to_be_bytes());
        header[COOKIE..OFFSET].copy_from_slice(&self.cookie);
        header[OFFSET..LENGTH].copy_from_slice(&self.offset.to_be_bytes());
        header[LENGTH..].copy_from_slice(&self.length.to_be_bytes());
        header
    }

    /// Returns the number of bytes that follow the header on the wire.
    pub fn payload_len(&self) -> u32 {
        if self.command == RequestType::Write { self.length } else { 0 }
    }

    /// Returns the first byte after the range, or `None` beyond 64 bits.
    pub fn end(&self) -> Option<u64> {
        self.offset.checked_add(u64::from(self.length))
    }
}

impl From<u16> for RequestType {
    fn from(number: u16) -> Self {
        match number {
            0 => Self::Read,
            1 => Self::Write,
            2 => Self::Disconnect,
            3 => Self::Flush,
            4 => Self::Trim,
            5 => Self::Cache,
            6 => Self::WriteZeroes,
            7 => Self::BlockStatus,
            other => Self::Other(other),
        }
    }
}

impl From<RequestType> for u16 {
    fn from(command: RequestType) -> Self {
        match command {
            RequestType::Read => 0,
            RequestType::Write => 1,
            RequestType::Disconnect => 2,
            RequestType::Flush => 3,
            RequestType::Trim => 4,
            RequestType::Cache => 5,
            RequestType::WriteZeroes => 6,
            RequestType::BlockStatus => 7,
            RequestType::Other(number) => number,
        }
    }
}

/// Bytes in place of a request that are no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadMagic(
    /// The bytes in the magic's place.
    pub u32,
);

impl fmt::Display for BadMagic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a request begins with {:#010x}, not with {REQUEST_MAGIC:#010x}", self.0)
    }
}

impl std::error::Error for BadMagic {}

/// Returns `N` bytes at `AT`, checked at compile time.
fn field<const AT: usize, const N: usize>(header: &[u8; REQUEST_LEN]) -> [u8; N] {
    const { assert!(AT + N <= REQUEST_LEN) };
    let mut bytes = [0; N];
    bytes.copy_from_slice(&header[AT..AT + N]);
    bytes
}

const MAGIC: usize = 0;
const FLAGS: usize = 4;
const TYPE: usize = 6;
const COOKIE: usize = 8;
const OFFSET: usize = 16;
const LENGTH: usize = 24;
const _: () = assert!(LENGTH + size_of::<u32>() == REQUEST_LEN);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn header_of_a_real_client_reads_field_by_field() {
        // A 4096-byte FUA write at 1 MiB, laid out by hand from proto.md, "Request message".
        let header = [
            0x25, 0x60, 0x95, 0x13, 0x00, 0x01, 0x00, 0x01, b'c', b'o', b'o', b'k', b'i', b'e', b'0', b'1',
            0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0x10, 0,
        ];
        let request = RequestHeader::parse(&header).unwrap();
        assert_eq!(request.flags, CommandFlags::FUA);
        assert_eq!(request.command, RequestType::Write);
        assert_eq!(&request.cookie, b"cookie01");
        assert_eq!((request.offset, request.length), (1 << 20, 4096));
        assert_eq!(request.payload_len(), 4096);
        assert_eq!(request.encode(), header);
    }

    #[test]
    fn wrong_magic_is_refused_and_named() {
        let mut header = [0; REQUEST_LEN];
        // The reserved magic of extended headers is refused like any other.
        header[..4].copy_from_slice(&0x21e4_1c71_u32.to_be_bytes());
        let error = RequestHeader::parse(&header).unwrap_err();
        assert_eq!(error, BadMagic(0x21e4_1c71));
        assert!(error.to_string().contains("0x21e41c71"));
    }

    proptest! {
        #[test]
        fn any_header_with_the_magic_survives_a_round_trip(mut header: [u8; REQUEST_LEN]) {
            header[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
            prop_assert_eq!(RequestHeader::parse(&header).unwrap().encode(), header);
        }
    }
}
