//! The binary header of 4096 bytes at the start of each copy (LUKS2 On-Disk Format 1.1, section
//! 2.1).

use uuid::Uuid;

use crate::text::FixedText;
use crate::{Error, ErrorKind, Hash, Result};

/// The length of the binary header; the JSON area follows it.
pub(crate) const LEN: usize = 4096;
/// The sizes that one copy, binary header and JSON, may have: also the offsets that the second copy
/// may have.
pub(crate) const SIZES: [u64; 9] =
    [16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];

/// The magic of the second copy.
pub(crate) const SECOND_MAGIC: [u8; 6] = *b"SKUL\xba\xbe";
const MAGIC: [[u8; 6]; 2] = [*b"LUKS\xba\xbe", SECOND_MAGIC];
/// The place of the UUID.
pub(crate) const UUID: std::ops::Range<usize> = 168..208;
const CHECKSUM: std::ops::Range<usize> = 448..512;

/// The two copies of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeaderCopy {
    First,
    Second,
}

impl HeaderCopy {
    /// Returns the offset of this copy when each is `size` bytes long.
    pub(crate) fn offset(self, size: u64) -> u64 {
        match self {
            Self::First => 0,
            Self::Second => size,
        }
    }

    /// Returns the magic of this copy.
    pub(crate) fn magic(self) -> [u8; 6] {
        MAGIC[self as usize]
    }
}

/// The binary header's fields, without those of one copy only (place, salt, checksum).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Binary {
    /// The length of one copy in bytes: one of [`SIZES`].
    pub(crate) size: u64,
    /// The sequence number.
    pub(crate) seqid: u64,
    pub(crate) label: FixedText<48>,
    pub(crate) subsystem: FixedText<48>,
    pub(crate) uuid: FixedText<40>,
    pub(crate) checksum: Hash,
}

impl Binary {
    /// Parses the fields of the copy at `place`. The checksum is checked by [`Binary::verify`].
    pub(crate) fn parse(bytes: &[u8; LEN], place: HeaderCopy) -> Result<Self> {
        let bad = |why: String| Err(Error::new(ErrorKind::BadHeader, why));
        if bytes[..6] != place.magic() {
            return Err(Error::new(ErrorKind::NoHeader, "no LUKS2 magic"));
        }
        let version = u16::from_be_bytes([bytes[6], bytes[7]]);
        if version != 2 {
            return bad(format!("version {version} is not 2"));
        }
        let number = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
        let (size, offset) = (number(8), number(256));
        if !SIZES.contains(&size) {
            return bad(format!("a header of {size} bytes: LUKS2 has powers of two from 16 KiB to 4 MiB"));
        }
        if offset != place.offset(size) {
            return bad(format!("says that it stands at byte {offset}, not {}", place.offset(size)));
        }
        Ok(Self {
            size,
            seqid: number(16),
            label: FixedText::parse_any(&bytes[24..72], "label")?,
            subsystem: FixedText::parse_any(&bytes[208..256], "subsystem")?,
            uuid: FixedText::parse(&bytes[UUID], "UUID")?,
            checksum: FixedText::<32>::parse(&bytes[72..104], "checksum algorithm")?.as_str().parse()?,
        })
    }

    /// Returns true when these bytes are a copy of this header, or were one before they were
    /// damaged: the magic or the UUID is left.
    pub(crate) fn is_damaged_in(&self, bytes: &[u8]) -> bool {
        bytes[..6] == HeaderCopy::First.magic()
            || !self.uuid.as_str().is_empty() && bytes[UUID].starts_with(self.uuid.as_bytes())
    }

    /// Returns the length of the JSON area.
    pub(crate) fn json_len(&self) -> usize {
        // `size` is one of `SIZES`, at most 4 MiB.
        usize::try_from(self.size).expect("a header size") - LEN
    }

    /// Verifies the checksum over the header (with its checksum field zeroed) and the whole JSON
    /// area.
    pub(crate) fn verify(&self, bytes: &[u8; LEN], json: &[u8]) -> Result<()> {
        let sum = checksum(self.checksum, bytes, json);
        if bytes[CHECKSUM][..sum.len()] == *sum {
            return Ok(());
        }
        Err(Error::new(ErrorKind::BadHeader, format!("the {} checksum does not match", self.checksum)))
    }

    /// Encodes the header for one copy over `json`, which fills the JSON area.
    pub(crate) fn encode(&self, place: HeaderCopy, salt: &[u8; 64], json: &[u8]) -> Box<[u8; LEN]> {
        let mut bytes = Box::new([0; LEN]);
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &place.magic());
        put(6, &2u16.to_be_bytes());
        put(8, &self.size.to_be_bytes());
        put(16, &self.seqid.to_be_bytes());
        put(24, self.label.as_bytes());
        put(72, self.checksum.name().as_bytes());
        put(104, salt);
        put(UUID.start, self.uuid.as_bytes());
        put(208, self.subsystem.as_bytes());
        put(256, &place.offset(self.size).to_be_bytes());
        let sum = checksum(self.checksum, &bytes, json);
        bytes[CHECKSUM][..sum.len()].copy_from_slice(&sum);
        bytes
    }

    /// Returns the UUID, if the field has one.
    pub(crate) fn uuid(&self) -> Option<Uuid> {
        self.uuid.as_str().parse().ok()
    }
}

fn checksum(hash: Hash, bytes: &[u8; LEN], json: &[u8]) -> Box<[u8]> {
    hash.digest(&[&bytes[..CHECKSUM.start], &[0; 64], &bytes[CHECKSUM.end..], json])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Binary {
        Binary {
            size: 16 << 10,
            seqid: 3,
            label: FixedText::new("label", "label").unwrap(),
            subsystem: FixedText::new("", "subsystem").unwrap(),
            uuid: FixedText::new("11111111-2222-3333-4444-555555555555", "UUID").unwrap(),
            checksum: Hash::Sha256,
        }
    }

    #[test]
    fn what_is_written_reads_back_in_its_own_place_only() {
        let json = vec![0; 12288];
        let bytes = sample().encode(HeaderCopy::Second, &[9; 64], &json);
        let back = Binary::parse(&bytes, HeaderCopy::Second).unwrap();
        assert_eq!(back, sample());
        back.verify(&bytes, &json).unwrap();
        assert_eq!(Binary::parse(&bytes, HeaderCopy::First).unwrap_err().kind(), ErrorKind::NoHeader);
    }

    #[test]
    fn any_flipped_bit_breaks_the_checksum_or_the_parse() {
        let json = vec![b' '; 12288];
        let good = sample().encode(HeaderCopy::First, &[9; 64], &json);
        for at in 0..LEN * 8 {
            // Only the tail of the checksum field, beyond the digest, is not covered.
            if (448 + 32..512).contains(&(at / 8)) {
                continue;
            }
            let mut bytes = good.clone();
            bytes[at / 8] ^= 1 << (at % 8);
            let read = Binary::parse(&bytes, HeaderCopy::First).and_then(|b| b.verify(&bytes, &json));
            assert!(read.is_err(), "bit {at}");
        }
    }
}
