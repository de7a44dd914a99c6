//! The header of a physical volume: 512 bytes at its beginning, and a copy in its last 512.

use underseal_cipher::Key;
use underseal_volume::ReadAt;

use crate::fields::{self, Fields};
use crate::{Error, ErrorKind, Result};

/// Bytes of a header.
const LEN: usize = 512;
/// Type of a header, as of a metadata block.
const TYPE: u16 = 0x0010;
/// Copies of the disk label that a header has room for.
const MOST_LABELS: usize = 8;
/// The most metadata of one copy: 4 MiB on real disks.
const MOST_METADATA: u32 = 64 << 20;

/// A header with a valid checksum.
pub(super) struct Header {
    /// The size of the physical volume in bytes.
    pub(super) size: u64,
    /// The size of a block in bytes.
    pub(super) block: u64,
    /// Bytes of one copy of the disk label and its metadata.
    pub(super) metadata: u32,
    /// Numbers of the blocks where the copies begin.
    pub(super) labels: Vec<u64>,
    /// The key of the metadata. It lies in the clear, and is a key nonetheless.
    pub(super) key: Key,
    pub(super) uuid: [u8; 16],
    pub(super) group: [u8; 16],
}

/// CoreStorage's checksum: CRC-32C from 0xffffffff on, without the inversion at the end.
pub(super) fn crc(bytes: &[u8]) -> u32 {
    !crc32c::crc32c(bytes)
}

/// Whether a block's checksum, over all that follows its first 8 bytes, is right.
pub(super) fn is_whole(block: &[u8]) -> bool {
    let fields = Fields(block);
    let Some(rest) = block.get(8..) else { return false };
    fields.le32(4).is_ok_and(|start| start == u32::MAX) && fields.le32(0).is_ok_and(|sum| sum == crc(rest))
}

impl Header {
    /// Whether the image has a header, at either end.
    ///
    /// Returns `Io`; an image that is too small has no header.
    pub(super) fn is_there(image: &(impl ReadAt + ?Sized)) -> Result<bool> {
        let marked = |bytes: &Key| {
            let fields = Fields(bytes.as_bytes());
            fields.array(88).is_ok_and(|mark| mark == *b"CS")
                && fields.le16(10).is_ok_and(|kind| kind == TYPE)
        };
        for bytes in ends(image)?.into_iter().flatten() {
            if marked(&bytes) && is_whole(bytes.as_bytes()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads the header, or its copy where it is damaged.
    ///
    /// Returns `NoHeader` when neither header nor copy exists, `Unsupported` for APFS, other
    /// versions and ciphers, `BadHeader` for damage, and `TooSmall`, `Io` or `Memory`.
    pub(super) fn read(image: &dyn ReadAt) -> Result<Self> {
        let [first, last] = ends(image)?;
        let Some(first) = first else {
            return Err(Error::new(ErrorKind::NoHeader, "no CoreStorage volume: the image is too small"));
        };
        if first.as_bytes()[32..36] == *b"NXSB" {
            let context = "an APFS container: the FileVault of macOS 10.13 and later is not supported";
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        let error = match Self::parse(first.as_bytes(), image) {
            Ok(header) => return Ok(header),
            Err(e) if matches!(e.kind(), ErrorKind::Io | ErrorKind::Memory) => return Err(e),
            Err(e) => e,
        };
        match last.map(|last| Self::parse(last.as_bytes(), image)) {
            Some(Ok(header)) => Ok(header),
            _ => Err(error),
        }
    }

    fn parse(bytes: &[u8], image: &dyn ReadAt) -> Result<Self> {
        let bad = |why: String| Err(Error::new(ErrorKind::BadHeader, why));
        let unsupported = |why: String| Err(Error::new(ErrorKind::Unsupported, why));
        let fields = Fields(bytes);
        if fields.array(88)? != *b"CS" || fields.le16(10)? != TYPE {
            return Err(Error::new(ErrorKind::NoHeader, "no CoreStorage volume"));
        }
        if !is_whole(bytes) {
            return bad("the CoreStorage header fails its CRC-32C".into());
        }
        let (version, checksum, cipher) = (fields.le16(8)?, fields.le32(90)?, fields.le32(172)?);
        if version != 1 || checksum != 1 {
            return unsupported(format!("CoreStorage version {version}, checksum {checksum}"));
        }
        if cipher != 2 || fields.le32(168)? != 16 || fields.le32(48)? != 512 {
            return unsupported(format!(
                "CoreStorage with cipher {cipher}, or keys or sectors of other sizes"
            ));
        }
        let (size, block, metadata) = (fields.le64(64)?, fields.le32(96)?, fields.le32(100)?);
        if !block.is_power_of_two() || !(512..=65536).contains(&block) {
            return bad(format!("CoreStorage blocks of {block} bytes"));
        }
        if metadata == 0 || metadata > MOST_METADATA {
            return bad(format!("CoreStorage metadata of {metadata} bytes"));
        }
        fields::range("physical volume", 0, size, fields::size(image)?)?;
        let count = usize::from(fields.le16(94)?);
        if count == 0 || count > MOST_LABELS {
            return bad(format!("{count} copies of CoreStorage's disk label"));
        }
        Ok(Self {
            size,
            block: block.into(),
            metadata,
            // Real headers have 4 numbers, and room for as many.
            labels: (0..count.min(4)).map(|nth| fields.le64(104 + 8 * nth)).collect::<Result<_>>()?,
            key: Key::new(fields.bytes(176, 16)?)?,
            uuid: fields.array(304)?,
            group: fields.array(320)?,
        })
    }
}

/// The first and the last 512 bytes; none where the image is smaller.
fn ends(image: &(impl ReadAt + ?Sized)) -> Result<[Option<Key>; 2]> {
    let size = fields::size(image)?;
    let Some(last) = size.checked_sub(LEN as u64) else { return Ok([None, None]) };
    let read = |at| -> Result<Option<Key>> {
        let mut bytes = Key::zeroed(LEN)?;
        fields::read(image, at, bytes.as_mut_bytes())?;
        Ok(Some(bytes))
    };
    Ok([read(0)?, read(last)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_not_inverted_at_its_end() {
        let bytes: Vec<u8> = (0..32).collect();
        assert_eq!(crc(&bytes), 0xb922_86b1);
    }
}
