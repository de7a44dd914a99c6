//! An unlocked image: bytes at positions.

use std::fmt;
use std::fs::File;
use std::ops::Range;

use underseal_volume::{Guard, GuardRefusal, Guards, ReencryptionLock, SegmentKind, Volume};

use crate::layer::Layer;
use crate::lower::Lower;
use crate::sectors::Sectors;
use crate::turn::ImageLock;
use crate::{Error, ErrorKind, Result};

/// An unlocked image. Threads share it: reads run side by side, a write runs alone.
///
/// Each read and write is done in the calling thread with plain system calls: the image has no
/// threads. Only an authenticated volume that was opened for writing has threads, which write its
/// journal: a child of a fork that uses it gets an error. A child reads other images, and its
/// writes and flushes get an error (`Busy`). The volume key is wiped and the image's
/// lock released when it is dropped.
pub struct Image {
    sectors: Sectors,
    writable: bool,
    info: String,
    keyslot: Option<u32>,
    /// Locked for reading by reads, and for writing by operations that change sectors: a part of a
    /// sector is read, changed and written back.
    turn: ImageLock,
    /// Ranges that must not change: metadata of BitLocker, a hidden volume.
    guards: Guards,
    _reencryption: Option<ReencryptionLock>,
    /// The file of a detached header, with its lock, and a file below it.
    _header: Vec<File>,
}

/// A run of the volume, as [`Image::segments`] returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Segment {
    /// The bytes of the volume.
    pub range: Range<u64>,
    /// The offset of the bytes on the lower device; `None` for zeros, errors, and authenticated
    /// volumes, whose data and tags alternate.
    pub lower: Option<u64>,
    /// `stored`, `zero` or `error`.
    pub kind: &'static str,
}

impl Image {
    pub(crate) fn new(
        volume: Volume,
        lower: Vec<Lower>,
        layer: Option<Layer>,
        writable: bool,
        info: String,
        reencryption: Option<ReencryptionLock>,
    ) -> Self {
        let sectors = Sectors::new(volume, lower, layer);
        Self {
            sectors,
            writable,
            info,
            keyslot: None,
            turn: ImageLock::new(writable),
            guards: Guards::default(),
            _reencryption: reencryption,
            _header: Vec::new(),
        }
    }

    pub(crate) fn with_keyslot(mut self, number: Option<u32>) -> Self {
        self.keyslot = number;
        self
    }

    pub(crate) fn with_header(mut self, locks: Vec<File>) -> Self {
        self._header = locks;
        self
    }

    pub(crate) fn with_guards(mut self, guards: Vec<Guard>) -> Self {
        guards.into_iter().for_each(|guard| self.guards.add(guard));
        self
    }

    /// The size of the plaintext in bytes.
    pub fn size(&self) -> u64 {
        self.sectors.volume.size()
    }

    /// The size of an encryption sector in bytes, from 512 to 65536: reads and writes of whole
    /// sectors are the cheapest.
    pub fn sector_size(&self) -> usize {
        self.sectors.volume.sector_size().bytes()
    }

    /// Whether the image was opened for writing.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The header as a JSON object: the fields of `underseal info --json`, without `cpu_path`.
    pub fn info_json(&self) -> &str {
        &self.info
    }

    /// The number of the LUKS keyslot that the passphrase opened.
    pub fn keyslot(&self) -> Option<u32> {
        self.keyslot
    }

    /// The runs of the volume, in order.
    pub fn segments(&self) -> Vec<Segment> {
        let segments = self.sectors.volume.segments().iter();
        segments
            .map(|segment| Segment {
                range: segment.start..segment.end(),
                lower: segment.as_stored().filter(|_| !self.sectors.has_layer()).map(|stored| stored.lower),
                kind: match segment.kind {
                    SegmentKind::Stored(_) => "stored",
                    SegmentKind::Zero => "zero",
                    SegmentKind::Error => "error",
                },
            })
            .collect()
    }

    /// Reads from byte `offset` on and returns how many bytes were read: all of `bytes`, or fewer
    /// at the end of the volume.
    ///
    /// # Errors
    /// `Io`; `Mismatch` for a sector that fails its check. Then `bytes` may have been changed in
    /// part.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<usize> {
        let left = self.size().saturating_sub(offset);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        let _turn = self.turn.to_read()?;
        self.sectors.read(offset, &mut bytes[..len])?;
        Ok(len)
    }

    /// Writes all of `bytes` at byte `offset`.
    ///
    /// # Errors
    /// `ReadOnly`, also for a range that touches metadata of BitLocker or a protected hidden volume
    /// (then nothing is written, and after the latter no later write is done); `OutOfRange` when
    /// the range ends beyond the volume, in which case nothing is written; `Io`, after which
    /// sectors of the range hold their old or their new bytes.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.may_change(offset, bytes.len() as u64)?;
        let _turn = self.turn.to_write()?;
        self.sectors.write(offset, bytes)
    }

    /// Returns when everything that was written is on stable storage.
    ///
    /// # Errors
    /// `Io`: writes since the last flush may be lost. `Busy` in a child of a fork.
    pub fn flush(&self) -> Result<()> {
        if !self.writable {
            return Ok(());
        }
        // The kernel reports a write-back error to one of the processes that share an open file:
        // the child would get the parent's.
        let _turn = self.turn.to_flush()?;
        self.sectors.sync()
    }

    /// Discards the whole sectors within the range. They read as anything afterwards.
    ///
    /// # Errors
    /// `Unsupported` unless the image was opened with
    /// [`OpenOptions::allow_discards`](crate::OpenOptions::allow_discards) or its header allows
    /// them; `ReadOnly`, `OutOfRange`, `Io`.
    pub fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.may_change(offset, len)?;
        let _turn = self.turn.to_write()?;
        self.sectors.discard(offset, len)
    }

    fn may_change(&self, offset: u64, len: u64) -> Result<()> {
        if !self.writable {
            return Err(Error::new(ErrorKind::ReadOnly, "the image was opened for reading only"));
        }
        if offset.checked_add(len).is_none_or(|end| end > self.size()) {
            let what = format!("{len} bytes at byte {offset} end beyond the volume's {}", self.size());
            return Err(Error::new(ErrorKind::OutOfRange, what));
        }
        let refused = |refusal: GuardRefusal| Error::new(ErrorKind::ReadOnly, refusal.to_string());
        self.guards.check(offset..offset + len, self.sector_size() as u64).map_err(refused)
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image")
            .field("size", &self.size())
            .field("writable", &self.writable)
            .finish_non_exhaustive()
    }
}
