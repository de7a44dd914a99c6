//! The start of an encryption with a header in front of the data. The start may be interrupted at
//! any point.
//!
//! The header needs the place of the first data, which is copied to the end of the device first:
//! ```text
//!   byte 0                                                 end of the device
//!   | first data | data ...................... | given up | first data, copied |
//!   | mark       |
//! ```
//! In this order, each synced:
//! 1. the copy of the first data;
//! 2. the mark in sector 0, which says where the copy is ([`StartPhase::Marked`]);
//! 3. zeros over the sectors that have the file system's superblocks, where those are not sector 0;
//! 4. the mark again ([`StartPhase::Clearing`]), then zeros over the rest of the first MiB;
//! 5. the mark again ([`StartPhase::Cleared`]);
//! 6. everything of the header but its first sector; then that sector, in the place of the mark.
//!
//! So sector 0 always tells what the device holds: the plain data, the mark, or the header. As long
//! as the mark is there, [`UnfinishedStart::undo`] takes the same steps backwards, and needs
//! nothing else, whatever name the device is opened by.
//!
//! The kernel mounts many file systems without their sector 0 (ext4 has its superblock at byte
//! 1024, btrfs at 64 KiB), and writes to a file system that is mounted behind the mark must be
//! kept. In phase `Marked` only sector 0 and the superblock's sector are changed; a superblock that
//! is not zeros is the file system's own; so no other sector is copied back. In phase `Clearing`
//! the known superblocks are cleared; a file system may have an unknown superblock, so sectors that
//! are not zeros stay, and the others are copied back. In phase `Cleared` no superblock is left in
//! the first MiB, and all of it is copied back: sector 0 last, so that no second copy of a header
//! is left by then, from which another program would restore the first copy.

use crate::format::forget_second_copies;
use crate::lock::LockTo;
use crate::luks2::reencrypt::encrypt::copy;
use crate::signature::{LOOKED_AT, SUPERBLOCK_SECTORS, superblocks};
use crate::{Error, ErrorKind, Hash, ReadAt, Result, Target, storage};

/// The first bytes of the mark.
const MAGIC: &[u8; 16] = b"underseal start\n";
/// The versions of marks without a phase. The header is written directly behind these marks.
const WITHOUT_PHASE: [u64; 2] = [1, 2];
/// The version of new marks.
const VERSION: u64 = 3;
const SECTOR: usize = 512;
/// The bytes of the mark before its SHA-256.
const HASHED: usize = 64;

/// An encryption that was interrupted before its header was in front of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnfinishedStart {
    /// The number of copied bytes, from byte 0 on.
    pub(super) len: u64,
    pub(super) copied_to: u64,
    /// The size of the device when the start began.
    pub(super) device: u64,
    pub(super) phase: StartPhase,
    /// The superblocks on the device: a bit for each of [`SUPERBLOCK_SECTORS`].
    pub(super) superblocks: u64,
}

/// The phase of a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StartPhase {
    /// Behind the mark all sectors are unchanged, except that superblocks may be zeros.
    Marked,
    /// Superblocks were zeros when this phase began. Other sectors of the first MiB are zeros or
    /// unchanged.
    Clearing,
    /// The first MiB was zeros when this phase began; the sectors behind the mark may have any
    /// contents.
    Cleared,
}

impl UnfinishedStart {
    /// How many bytes the mark takes from byte 0 on.
    pub(super) const LEN: u64 = SECTOR as u64;

    /// Finds the mark of a start that was cut off.
    ///
    /// # Errors
    /// `BadHeader` when the mark is damaged or of another version; `UnfinishedStart` when the
    /// device's size has changed; `Io` when the rest of the mark cannot be read.
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
            let context = format!(
                "an encryption began when the device had {} bytes, and can be undone at that size alone: it has {size}",
                start.device
            );
            return Err(Error::new(ErrorKind::UnfinishedStart, context));
        }
        Ok(Some(start))
    }

    /// Undoes a start that was cut off, if there is one; returns whether there was one.
    ///
    /// # Errors
    /// Those of [`UnfinishedStart::find`] and [`UnfinishedStart::undo`].
    pub fn undo_any(device: &(impl Target + ?Sized)) -> Result<bool> {
        let Some(start) = Self::find(device)? else { return Ok(false) };
        start.undo(device)?;
        Ok(true)
    }

    /// Copies the first data back. The device is then what it was before the encryption began, or
    /// what those have made of it who mounted it meanwhile. It can be cut off and done again.
    ///
    /// # Errors
    /// `Busy` when the device has changed since the mark was read; `Io`.
    pub fn undo(&self, device: &(impl Target + ?Sized)) -> Result<()> {
        let _lock = device.lock(LockTo::Change)?;
        if Self::find(device)?.as_ref() != Some(self) {
            return Err(Error::new(ErrorKind::Busy, "the device was changed meanwhile; try again"));
        }
        // An earlier try may be in memory only. The mark says of it that the rest is there.
        storage::secure(device, SECTOR as u64..(self.known().max(SECTOR)) as u64)?;
        storage::secure(device, 0..SECTOR as u64)?;
        if self.phase == StartPhase::Cleared {
            self.clear(device)?;
            forget_second_copies(device, self.len)?;
            self.copy_back(device, self.known() as u64, self.len)?;
            storage::sync(device)?;
            self.write(device, StartPhase::Clearing)?;
        }
        if self.phase != StartPhase::Marked {
            self.fill(device)?;
            storage::sync(device)?;
            self.write(device, StartPhase::Marked)?;
        }
        for superblock in self.superblocks() {
            if storage::read(device, superblock, SECTOR)?.iter().all(|&byte| byte == 0) {
                self.copy_back(device, superblock, superblock + SECTOR as u64)?;
            }
        }
        storage::sync(device)?;
        self.copy_back(device, 0, self.len.min(SECTOR as u64))?;
        storage::sync(device)
    }

    fn copy_back(&self, device: &(impl Target + ?Sized), from: u64, to: u64) -> Result<()> {
        copy((device, self.copied_to + from), (device, from), to.saturating_sub(from))
    }

    /// Copies back the sectors of the first MiB that are zeros, except superblocks.
    fn fill(&self, device: &(impl Target + ?Sized)) -> Result<()> {
        let known = self.known();
        let (there, copied) =
            (storage::read(device, 0, known)?, storage::read(device, self.copied_to, known)?);
        let is_cleared = |at: usize| {
            let sector = at..known.min(at + SECTOR);
            at >= SECTOR
                && !self.superblocks().any(|superblock| superblock == at as u64)
                && there[sector.clone()].iter().all(|&byte| byte == 0)
                && copied[sector].iter().any(|&byte| byte != 0)
        };
        let mut at = SECTOR;
        while at < known {
            let mut end = at;
            while end < known && is_cleared(end) {
                end += SECTOR;
            }
            if at < end {
                storage::write(device, at as u64, &copied[at..end.min(known)])?;
            }
            at = end + SECTOR;
        }
        Ok(())
    }

    /// Returns the number of bytes that are checked and cleared.
    fn known(&self) -> usize {
        usize::try_from(self.len.min(LOOKED_AT)).unwrap_or(SECTOR)
    }

    /// Returns the offsets of the superblocks.
    fn superblocks(&self) -> impl Iterator<Item = u64> {
        let Self { superblocks, len, .. } = *self;
        let found =
            SUPERBLOCK_SECTORS.into_iter().enumerate().filter(move |(i, _)| superblocks >> i & 1 == 1);
        found.map(|(_, sector)| sector * SECTOR as u64).filter(move |at| at + SECTOR as u64 <= len)
    }

    fn clear_superblocks(&self, device: &(impl Target + ?Sized)) -> Result<()> {
        for superblock in self.superblocks() {
            storage::write(device, superblock, &[0; SECTOR])?;
        }
        storage::sync(device)
    }

    /// Writes zeros over the copied part of the first MiB, behind the mark.
    fn clear(&self, device: &(impl Target + ?Sized)) -> Result<()> {
        storage::write(device, SECTOR as u64, &vec![0; self.known().saturating_sub(SECTOR)])?;
        storage::sync(device)
    }

    /// Writes the mark over the first sector, whose copy exists by now, and clears the rest of the
    /// copied part of the first MiB.
    pub(super) fn mark(mut self, device: &(impl Target + ?Sized)) -> Result<()> {
        self.superblocks = superblocks(&storage::read(device, 0, self.known())?);
        self.write(device, StartPhase::Marked)?;
        self.clear_superblocks(device)?;
        self.write(device, StartPhase::Clearing)?;
        self.clear(device)?;
        self.write(device, StartPhase::Cleared)
    }

    pub(super) fn write(&self, device: &(impl Target + ?Sized), phase: StartPhase) -> Result<()> {
        storage::write(device, 0, &Self { phase, ..*self }.encode())?;
        storage::sync(device)
    }

    /// Returns the mark: magic; version, length, place of the copy, size of the device, phase,
    /// superblocks, as little-endian numbers of 8 bytes; the SHA-256 of these 64 bytes; zeros.
    fn encode(&self) -> [u8; SECTOR] {
        let mut mark = [0; SECTOR];
        mark[..MAGIC.len()].copy_from_slice(MAGIC);
        let phase = match self.phase {
            StartPhase::Marked => 1,
            StartPhase::Cleared => 2,
            StartPhase::Clearing => 3,
        };
        let numbers = [VERSION, self.len, self.copied_to, self.device, phase, self.superblocks];
        for (i, number) in numbers.into_iter().enumerate() {
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
        let (phase, superblocks) = match (number(0), number(4)) {
            (version, 0) if WITHOUT_PHASE.contains(&version) => (StartPhase::Cleared, 0),
            (VERSION, 1) => (StartPhase::Marked, number(5)),
            (VERSION, 2) => (StartPhase::Cleared, number(5)),
            (VERSION, 3) => (StartPhase::Clearing, number(5)),
            _ => return Err(bad("its mark at byte 0 is of a newer version of this program".into())),
        };
        let (len, copied_to, device) = (number(1), number(2), number(3));
        let end = copied_to.checked_add(len).filter(|&end| len > 0 && len <= copied_to && end <= device);
        if end.is_none() {
            return Err(bad("its mark at byte 0 names a place beyond the device".into()));
        }
        Ok(Self { len, copied_to, device, phase, superblocks })
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
    use crate::storage::failed_syncs;
    use crate::storage::recorder::Recorder;

    #[test]
    fn a_start_that_is_undone_again_after_a_sync_that_failed_leaves_the_data() {
        let (len, end) = (256 << 10, 1 << 20);
        let plain: Vec<u8> = (0..end).map(|i| u8::try_from(i * 7 / 512 % 251 + 1).unwrap()).collect();
        let start = UnfinishedStart {
            len: len as u64,
            copied_to: (end - len) as u64,
            device: end as u64,
            phase: StartPhase::Marked,
            superblocks: 0b11,
        };
        let undo = |device: &crate::reencrypt::tests::faults::Disk| match UnfinishedStart::find(device)? {
            Some(start) => start.undo(device),
            None => Err(Error::new(ErrorKind::NoHeader, "no start")),
        };
        for phase in [StartPhase::Marked, StartPhase::Clearing, StartPhase::Cleared] {
            let start = UnfinishedStart { phase, ..start };
            let mut cut = plain.clone();
            cut.copy_within(..len, end - len);
            for superblock in start.superblocks().map(|at| usize::try_from(at).unwrap()) {
                cut[superblock..superblock + SECTOR].fill(0);
            }
            if phase != StartPhase::Marked {
                cut[SECTOR..len].fill(0);
            }
            cut[..SECTOR].copy_from_slice(&start.encode());
            failed_syncs::each(&cut, undo, undo, |told, found, n| {
                let found = Recorder::new(found);
                // The first sector may be there in memory only: the mark is on the disk still.
                if let Some(left) = UnfinishedStart::find(&found).unwrap() {
                    assert!(told.is_err(), "{phase:?}, {n}");
                    left.undo(&found).unwrap();
                }
                assert!(found.bytes()[..len] == plain[..len], "{phase:?}, {n}");
            });
        }
    }

    #[test]
    fn forged_and_torn_marks_are_refused() {
        let start = UnfinishedStart {
            len: 4096,
            copied_to: 8192,
            device: 12288,
            phase: StartPhase::Marked,
            superblocks: 5,
        };
        let device = |mark: [u8; SECTOR]| Recorder::new([&mark[..], &[7; 12288 - SECTOR]].concat());
        for phase in [StartPhase::Marked, StartPhase::Clearing, StartPhase::Cleared] {
            let start = UnfinishedStart { phase, ..start };
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
            let forged = UnfinishedStart { len, copied_to, device: size, ..start };
            let found = UnfinishedStart::find(&device(forged.encode())).unwrap_err().kind();
            let has_grown = found == ErrorKind::UnfinishedStart && size == 16384;
            assert!(found == ErrorKind::BadHeader || has_grown, "{forged:?}: {found:?}");
        }
    }
}
