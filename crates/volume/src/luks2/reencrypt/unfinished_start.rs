//! The start of an encryption whose header comes in front of the data, written so that it can be cut off anywhere.
//!
//! The header needs the place of the first data, which is copied to the end of the device first:
//! ```text
//!   byte 0                                                 end of the device
//!   | first data | data ...................... | given up | first data, copied |
//!   | mark       |
//! ```
//! In this order, each synced: the copy of the first data; the mark in sector 0, which says where
//! the copy is; zeros over the rest of the first MiB; everything of the header but its first
//! sector; that sector, in the place of the mark. So sector 0 says at every moment which one holds:
//! the plain data, the mark, or the header. While the mark is there, copying the first data back
//! undoes all of it ([`UnfinishedStart::undo`]): whoever finds it, by whatever name of the device,
//! needs nothing else.
//!
//! The zeros keep the kernel from mounting what is left, since many file systems have their
//! superblock behind sector 0 (ext4 at byte 1024, btrfs at 64 KiB): its users would lose what they
//! wrote when the copy comes back. They also keep the header's second sector from being taken for
//! another format's while only the first one is written.

use crate::lock::LockTo;
use crate::luks2::reencrypt::encrypt::copy;
use crate::signature::{LOOKED_AT, signature};
use crate::{Error, ErrorKind, Hash, ReadAt, Result, Target, storage};

/// The first bytes of the mark.
const MAGIC: &[u8; 16] = b"underseal start\n";
/// The version of a mark behind which nothing else is cleared.
const UNCLEARED: u64 = 1;
/// The version of a mark behind which the rest of the first MiB is cleared before the header is
/// written.
const CLEARED: u64 = 2;
const SECTOR: usize = 512;
/// The bytes of the mark before its SHA-256.
const HASHED: usize = 64;

/// An encryption that was cut off before its header was in front of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnfinishedStart {
    /// How many bytes from byte 0 on were copied, and where to.
    pub(super) len: u64,
    pub(super) copied_to: u64,
    /// The size of the device when the start began.
    pub(super) device: u64,
    /// The first MiB is cleared behind the mark, before anything of the header is written.
    pub(super) clears: bool,
}

impl UnfinishedStart {
    /// Finds the mark of a start that was cut off.
    ///
    /// # Errors
    /// `BadHeader` when the mark is damaged or of another version, or the device has another size than it had; `Io`
    /// when the rest of the mark cannot be read.
    pub fn find(device: &(impl ReadAt + ?Sized)) -> Result<Option<Self>> {
        let size = storage::size(device)?;
        if size < SECTOR as u64 {
            return Ok(None);
        }
        match storage::read(device, 0, MAGIC.len()) {
            Ok(start) if start == MAGIC => {}
            Ok(_) => return Ok(None),
            // The second copy of a header may be readable.
            Err(e) if e.kind() == ErrorKind::Io => return Ok(None),
            Err(e) => return Err(e),
        }
        let start = Self::decode(&storage::read(device, 0, SECTOR)?)?;
        if start.device != size {
            return Err(bad(format!("the device has {size} bytes, and had {}", start.device)));
        }
        Ok(Some(start))
    }

    /// Copies the first data back. The device is then what it was before the encryption began. It can be cut off and done again.
    ///
    /// Between two syncs of a start, or of this, a power cut can leave a file system that can be
    /// mounted although the mark is there. All but the mark is in its place then, perhaps changed
    /// since by those who mounted it; so no more than the mark and what was cleared is copied back.
    ///
    /// # Errors
    /// `Busy` when the device has changed since it was looked at; `Io`.
    pub fn undo(&self, device: &(impl Target + ?Sized)) -> Result<()> {
        let _lock = device.lock(LockTo::Change)?;
        if Self::find(device)?.as_ref() != Some(self) {
            return Err(Error::new(ErrorKind::Busy, "the device was changed meanwhile; try again"));
        }
        let (first, known) = (self.len.min(SECTOR as u64), self.len.min(LOOKED_AT));
        let start = storage::read(device, 0, usize::try_from(known).unwrap_or(SECTOR))?;
        if self.clears && signature(&start).is_some() {
            self.copy_cleared_back(device, &start)?;
        } else {
            copy((device, self.copied_to + known), (device, known), self.len - known)?;
            storage::sync(device)?;
            copy((device, self.copied_to + first), (device, first), known - first)?;
        }
        storage::sync(device)?;
        copy((device, self.copied_to), (device, 0), first)?;
        storage::sync(device)
    }

    /// Copies back the sectors behind the mark that hold nothing; `start` is the first MiB of the
    /// device.
    fn copy_cleared_back(&self, device: &(impl Target + ?Sized), start: &[u8]) -> Result<()> {
        for (sector, bytes) in start.chunks(SECTOR).enumerate().skip(1) {
            if bytes.iter().all(|&byte| byte == 0) {
                let at = (sector * SECTOR) as u64;
                copy((device, self.copied_to + at), (device, at), bytes.len() as u64)?;
            }
        }
        Ok(())
    }

    /// Writes the mark over the first sector, which is at the end by now, and clears the rest of
    /// the first MiB as far as it is copied.
    pub(super) fn mark(&self, device: &(impl Target + ?Sized)) -> Result<()> {
        storage::write(device, 0, &self.encode())?;
        storage::sync(device)?;
        if self.clears {
            let rest = self.len.min(LOOKED_AT).saturating_sub(SECTOR as u64);
            storage::write(device, SECTOR as u64, &vec![0; usize::try_from(rest).unwrap_or(0)])?;
            storage::sync(device)?;
        }
        Ok(())
    }

    /// The mark: magic; version, length, place of the copy, size of the device, as little-endian numbers of 8 bytes; zeros up to
    /// byte 64; the SHA-256 of these 64 bytes; zeros.
    fn encode(&self) -> [u8; SECTOR] {
        let mut mark = [0; SECTOR];
        mark[..MAGIC.len()].copy_from_slice(MAGIC);
        let version = if self.clears { CLEARED } else { UNCLEARED };
        for (i, number) in [version, self.len, self.copied_to, self.device].into_iter().enumerate() {
            let at = MAGIC.len() + 8 * i;
            mark[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        let digest = Hash::Sha256.digest(&[&mark[..HASHED]]);
        mark[HASHED..HASHED + digest.len()].copy_from_slice(&digest);
        mark
    }

    fn decode(mark: &[u8]) -> Result<Self> {
        let digest = Hash::Sha256.digest(&[&mark[..HASHED]]);
        if mark[HASHED..HASHED + digest.len()] != *digest {
            return Err(bad("its mark at byte 0 is damaged".into()));
        }
        let number = |i: usize| u64::from_le_bytes(std::array::from_fn(|n| mark[MAGIC.len() + 8 * i + n]));
        let clears = match number(0) {
            UNCLEARED => false,
            CLEARED => true,
            _ => return Err(bad("its mark at byte 0 is of a newer version of this program".into())),
        };
        let (len, copied_to, device) = (number(1), number(2), number(3));
        let end = copied_to.checked_add(len).filter(|&end| len > 0 && len <= copied_to && end <= device);
        if end.is_none() {
            return Err(bad("its mark at byte 0 names a place beyond the device".into()));
        }
        Ok(Self { len, copied_to, device, clears })
    }
}

fn bad(why: String) -> Error {
    let context =
        format!("an encryption of this device was cut off as it began, and cannot be undone: {why}");
    Error::new(ErrorKind::BadHeader, context)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::recorder::Recorder;

    #[test]
    fn forged_and_torn_marks_are_refused() {
        let start = UnfinishedStart { len: 4096, copied_to: 8192, device: 12288, clears: true };
        let device = |mark: [u8; SECTOR]| Recorder::new([&mark[..], &[7; 12288 - SECTOR]].concat());
        for start in [start, UnfinishedStart { clears: false, ..start }] {
            assert_eq!(UnfinishedStart::find(&device(start.encode())).unwrap(), Some(start));
        }
        assert_eq!(UnfinishedStart::find(&device([7; SECTOR])).unwrap(), None);
        for at in MAGIC.len()..96 {
            let mut mark = start.encode();
            mark[at] ^= 1;
            assert_eq!(
                UnfinishedStart::find(&device(mark)).unwrap_err().kind(),
                ErrorKind::BadHeader,
                "{at}"
            );
        }
        for (len, copied_to, size) in [
            (0, 8192, 12288),
            (8192, 4096, 12288),
            (4096, 12288, 12288),
            (4096, u64::MAX, 12288),
            (4096, 8192, 16384),
        ] {
            let forged = UnfinishedStart { len, copied_to, device: size, clears: true };
            let found = UnfinishedStart::find(&device(forged.encode()));
            assert_eq!(found.unwrap_err().kind(), ErrorKind::BadHeader, "{forged:?}");
        }
    }
}
