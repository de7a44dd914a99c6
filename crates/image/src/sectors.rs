//! Whole sectors of a volume, read and decrypted or encrypted and written in the calling thread.

use std::io;

use underseal_cipher::InOutBuf;
use underseal_volume::{ReadAt, Segment, SegmentKind, Stored, Target, Volume};
use zeroize::Zeroizing;

use crate::layer::Layer;
use crate::lower::Lower;
use crate::{Error, ErrorKind, Result};

/// Bytes that are read and decrypted at a time: the second-level cache keeps them in between.
const PIECE: usize = 128 << 10;

/// A volume over its lower devices. The caller sees to it that nothing else changes the sectors of
/// a call.
pub(crate) struct Sectors {
    pub(crate) volume: Volume,
    /// By the numbers that the volume's segments name.
    lower: Vec<Lower>,
    layer: Option<Layer>,
}

impl Sectors {
    pub(crate) fn new(volume: Volume, lower: Vec<Lower>, layer: Option<Layer>) -> Self {
        Self { volume, lower, layer }
    }

    pub(crate) fn has_layer(&self) -> bool {
        self.layer.is_some()
    }

    /// Returns when everything that was written is on stable storage.
    pub(crate) fn sync(&self) -> Result<()> {
        if let Some(layer) = &self.layer {
            return layer.flush();
        }
        let failed = |e| Error::new(ErrorKind::Io, "cannot sync the image").with_source(e);
        self.lower.iter().try_for_each(Target::sync_all).map_err(failed)
    }

    fn device(&self, stored: &Stored) -> Result<&Lower> {
        let missing = || Error::new(ErrorKind::Io, format!("device {} was not given", stored.device));
        self.lower.get(stored.device).ok_or_else(missing)
    }

    /// Fills `bytes` from `offset` on; the range lies within the volume.
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let sector = self.volume.sector_size().bytes();
        let head = self.head(offset, bytes.len());
        let (first, rest) = bytes.split_at_mut(head);
        self.read_part(offset, first)?;
        let whole = rest.len() / sector * sector;
        let (middle, last) = rest.split_at_mut(whole);
        let offset = offset + head as u64;
        self.read_whole(offset, middle)?;
        self.read_part(offset + whole as u64, last)
    }

    /// Writes `bytes` at `offset`; the range lies within the volume.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let sector = self.volume.sector_size().bytes();
        let head = self.head(offset, bytes.len());
        let (first, rest) = bytes.split_at(head);
        self.write_part(offset, first)?;
        let whole = rest.len() / sector * sector;
        let (middle, last) = rest.split_at(whole);
        let offset = offset + head as u64;
        self.write_whole(offset, middle)?;
        self.write_part(offset + whole as u64, last)
    }

    /// Discards the whole sectors of a range that lies within the volume.
    pub(crate) fn discard(&self, offset: u64, len: u64) -> Result<()> {
        if !self.volume.allow_discards() {
            let what = "discards are not allowed: they would show which sectors are in use";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        if self.layer.is_some() {
            let what = "authenticated volumes take no discards here: a sector without its tag cannot be read";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let sector = self.volume.sector_size().bytes() as u64;
        let start = offset.div_ceil(sector).saturating_mul(sector);
        let end = (offset + len) / sector * sector;
        for segment in self.volume.segments() {
            let (from, to) = (segment.start.max(start), segment.end().min(end));
            if let (Some(stored), true) = (segment.as_stored(), from < to) {
                self.device(stored)?.discard(stored.lower + (from - segment.start), to - from)?;
            }
        }
        Ok(())
    }

    /// Bytes at the beginning of a range that belong to a sector which the range covers in part.
    fn head(&self, offset: u64, len: usize) -> usize {
        let sector = self.volume.sector_size().bytes();
        // Below the size of a sector.
        let into = usize::try_from(offset % sector as u64).unwrap_or(0);
        if into == 0 { 0 } else { (sector - into).min(len) }
    }

    /// Reads a part of one sector.
    fn read_part(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let (start, into, mut whole) = self.sector_of(offset);
        self.read_whole(start, &mut whole)?;
        bytes.copy_from_slice(&whole[into..into + bytes.len()]);
        Ok(())
    }

    /// Writes a part of one sector: reads all of it, changes it, writes it back.
    fn write_part(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let (start, into, mut whole) = self.sector_of(offset);
        self.read_whole(start, &mut whole)?;
        whole[into..into + bytes.len()].copy_from_slice(bytes);
        self.write_whole(start, &whole)
    }

    /// The sector that holds a byte: its start, where the byte lies in it, and memory for it.
    fn sector_of(&self, offset: u64) -> (u64, usize, Zeroizing<Vec<u8>>) {
        let sector = self.volume.sector_size().bytes();
        let start = offset / sector as u64 * sector as u64;
        // Segments end on their own sectors, which may be smaller than the volume's.
        let len = usize::try_from(self.volume.size() - start).unwrap_or(sector).min(sector);
        (start, usize::try_from(offset - start).unwrap_or(0), Zeroizing::new(vec![0; len]))
    }

    fn read_whole(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.pieces(offset, bytes.len(), |segment, at, range| {
            let piece = &mut bytes[range];
            match &segment.kind {
                SegmentKind::Zero => piece.fill(0),
                SegmentKind::Error => return Err(missing(at)),
                SegmentKind::Stored(stored) => self.read_stored(segment, stored, at, piece)?,
            }
            Ok(())
        })
    }

    fn read_stored(&self, segment: &Segment, stored: &Stored, at: u64, piece: &mut [u8]) -> Result<()> {
        let lower = stored.lower + (at - segment.start);
        let sector = ((at - segment.start) >> 9).wrapping_add(stored.iv_offset);
        let mismatch = |bad: underseal_cipher::BadSector| {
            let size = stored.cipher.sector_size().bytes() as u64;
            let what = format!("the sector at byte {} is not as it was written", at + bad.0 as u64 * size);
            Error::new(ErrorKind::Mismatch, what)
        };
        let Some(layer) = &self.layer else {
            let device = self.device(stored)?;
            device.read_exact_at(piece, lower).map_err(|e| failed("read", at, piece.len(), e))?;
            stored.cipher.decrypt(sector, InOutBuf::from(piece));
            return Ok(());
        };
        let tag = stored.cipher.tag_size();
        let mut tags = vec![0; piece.len() / stored.cipher.sector_size().bytes() * tag];
        layer.read(lower, piece, &mut tags)?;
        stored.cipher.open(sector, InOutBuf::from(piece), &tags).map_err(mismatch)
    }

    fn write_whole(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut ciphertext = vec![0; bytes.len().min(PIECE)];
        self.pieces(offset, bytes.len(), |segment, at, range| {
            let piece = &bytes[range];
            match &segment.kind {
                // Writes to a zero segment are dropped, as device mapper's `zero` does.
                SegmentKind::Zero => Ok(()),
                SegmentKind::Error => Err(missing(at)),
                SegmentKind::Stored(stored) => {
                    let out = &mut ciphertext[..piece.len()];
                    let sector = ((at - segment.start) >> 9).wrapping_add(stored.iv_offset);
                    let buffers = InOutBuf::new(piece, out).map_err(|_| missing(at))?;
                    let lower = stored.lower + (at - segment.start);
                    if let Some(layer) = &self.layer {
                        let tags =
                            piece.len() / stored.cipher.sector_size().bytes() * stored.cipher.tag_size();
                        let mut tags = vec![0; tags];
                        stored.cipher.seal(sector, buffers, &mut tags).map_err(|_| missing(at))?;
                        return layer.write(lower, out, &tags);
                    }
                    stored.cipher.encrypt(sector, buffers);
                    let written = self.device(stored)?.write_all_at(out, lower);
                    written.map_err(|e| failed("write", at, piece.len(), e))
                }
            }
        })
    }

    /// Goes through whole sectors in pieces that lie in one segment each: the segment, the byte of
    /// the volume, the caller's range.
    fn pieces(
        &self,
        offset: u64,
        len: usize,
        mut act: impl FnMut(&Segment, u64, std::ops::Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let segments = self.volume.segments();
        let mut index = segments.partition_point(|segment| segment.end() <= offset);
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let Some(segment) = segments.get(index) else { return Err(missing(at)) };
            let left = usize::try_from(segment.end() - at).unwrap_or(usize::MAX);
            let piece = left.min(len - done).min(PIECE);
            act(segment, at, done..done + piece)?;
            done += piece;
            if piece == left {
                index += 1;
            }
        }
        Ok(())
    }
}

fn failed(verb: &str, at: u64, len: usize, e: io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot {verb} {len} bytes at byte {at} of the volume")).with_source(e)
}

fn missing(at: u64) -> Error {
    Error::new(ErrorKind::Io, format!("byte {at} of the volume lies in an error segment"))
}
