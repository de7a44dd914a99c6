//! From plaintext to disk: the moved header, the ranges that read as zeros, and everything else at
//! its place.
//!
//! ```text
//!   plaintext   [0, h)        ->  ciphertext at b, the moved header
//!               [f, f + 64K)  ->  zeros, three times: the metadata blocks
//!               [b, b + h)    ->  zeros: the moved header's own place
//!               the rest      ->  the same place
//! ```
//! IVs are made of the ciphertext's place. Of a paused volume, ciphertext places from `encrypted`
//! on hold plaintext.

use std::ops::Range;
use std::sync::Arc;

use underseal_cipher::{CipherSpec, Key, SectorCipher, SectorSize, build};
use underseal_volume::{CipherParameters, Guard, GuardRule, Segment, SegmentKind, Volume};

use super::block::AREA;
use super::method::Method;
use crate::fields::{overlap, range};
use crate::{Error, ErrorKind, Result};

/// Where things lie, checked.
#[derive(Debug)]
pub(super) struct Layout {
    /// Bytes of the volume: whole sectors.
    size: u64,
    /// The moved header's length, and its place.
    header: u64,
    moved: u64,
    /// Ranges that read as zeros, in order.
    zeros: Vec<Range<u64>>,
    sector: SectorSize,
}

impl Layout {
    /// Checks the places against a device of `device` bytes, and against each other.
    ///
    /// Returns `BadHeader` for places that no BitLocker volume has, and `TooSmall` when the device
    /// ends before them.
    pub(super) fn new(
        device: u64,
        sector: SectorSize,
        blocks: [u64; 3],
        (moved, header): (u64, u64),
    ) -> Result<Self> {
        let bad = |why: String| Err(Error::new(ErrorKind::BadHeader, why));
        let unit = sector.bytes() as u64;
        let size = device - device % unit;
        if header == 0 {
            return bad("the moved volume header has no length".into());
        }
        let mut zeros = vec![range("moved volume header", moved, header, size)?];
        for at in blocks {
            zeros.push(range("metadata block", at, AREA, size)?);
        }
        zeros.sort_by_key(|zeros| zeros.start);
        for range in &zeros {
            if !range.start.is_multiple_of(unit) || !range.end.is_multiple_of(unit) {
                return bad(format!("metadata at byte {} in no whole sectors of {unit}", range.start));
            }
            if range.start < header {
                return bad(format!(
                    "metadata at byte {}, within the volume header of {header}",
                    range.start
                ));
            }
        }
        if let Some(pair) = zeros.windows(2).find(|pair| overlap(&pair[0], &pair[1])) {
            return bad(format!("metadata at bytes {} and {} overlap", pair[0].start, pair[1].start));
        }
        Ok(Self { size, header, moved, zeros, sector })
    }

    /// Ranges that must not be written to.
    pub(super) fn guards(&self) -> Vec<Guard> {
        let refuse = |range: &Range<u64>| Guard { range: range.clone(), rule: GuardRule::Refuse };
        self.zeros.iter().map(refuse).collect()
    }

    /// Ranges that read as zeros, in order.
    pub(super) fn zeros(&self) -> &[Range<u64>] {
        &self.zeros
    }

    /// The volume: `encrypted` bytes of the device are ciphertext, the rest plaintext.
    ///
    /// Returns `BadHeader` when `encrypted` is no whole number of sectors, and `Memory`.
    pub(super) fn volume(&self, method: Method, key: &Key, encrypted: u64) -> Result<Volume> {
        let unit = self.sector.bytes() as u64;
        if !encrypted.is_multiple_of(unit) {
            let context = format!("{encrypted} encrypted bytes are no whole sectors of {unit}");
            return Err(Error::new(ErrorKind::BadHeader, context));
        }
        let cipher_parameters = method.cipher_parameters(self.sector)?;
        let mut parts = Parts {
            cipher: cipher_parameters.build(key)?,
            cipher_parameters,
            plain: plain(self.sector)?,
            encrypted,
            segments: Vec::new(),
        };
        parts.stored(0..self.header, self.moved);
        let mut at = self.header;
        for zeros in &self.zeros {
            parts.stored(at..zeros.start, at);
            parts.zeros(zeros);
            at = zeros.end;
        }
        parts.stored(at..self.size, at);
        Ok(Volume::new(parts.segments)?)
    }
}

struct Parts {
    cipher: Arc<dyn SectorCipher>,
    cipher_parameters: CipherParameters,
    plain: Arc<dyn SectorCipher>,
    encrypted: u64,
    segments: Vec<Segment>,
}

impl Parts {
    fn zeros(&mut self, range: &Range<u64>) {
        let (start, len) = (range.start, range.end - range.start);
        self.segments.push(Segment { start, len, kind: SegmentKind::Zero });
    }

    /// The bytes `range` of the volume, which lie at `lower`: ciphertext, plaintext, or ciphertext
    /// followed by plaintext.
    fn stored(&mut self, range: Range<u64>, lower: u64) {
        let len = range.end - range.start;
        let cipher = self.encrypted.saturating_sub(lower).min(len);
        if cipher > 0 {
            let segment = Segment::stored(range.start, cipher, lower, lower >> 9, self.cipher.clone());
            self.segments.push(segment.with_recipe(self.cipher_parameters.clone()));
        }
        if cipher < len {
            let (start, lower) = (range.start + cipher, lower + cipher);
            self.segments.push(Segment::stored(start, len - cipher, lower, 0, self.plain.clone()));
        }
    }
}

/// The cipher that changes nothing.
fn plain(sector: SectorSize) -> Result<Arc<dyn SectorCipher>> {
    let spec: CipherSpec = "cipher_null-ecb".parse()?;
    Ok(build(&spec, &Key::zeroed(0)?, sector)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: SectorSize = SectorSize::S512;

    #[test]
    fn places_that_contradict_each_other_are_refused() {
        let mib = 1 << 20;
        let good = |blocks, moved| Layout::new(4 * mib, S, blocks, moved);
        // The moved header directly behind a block, as on every real volume.
        let layout = good([mib, 2 * mib, 3 * mib], (mib + AREA, 8192)).unwrap();
        assert_eq!(layout.guards()[1].range, mib + AREA..mib + AREA + 8192);
        for (blocks, moved, kind) in [
            ([mib, mib, 3 * mib], (mib + AREA, 8192), ErrorKind::BadHeader),
            ([mib, mib + 512, 3 * mib], (2 * mib, 8192), ErrorKind::BadHeader),
            ([0, 2 * mib, 3 * mib], (mib, 8192), ErrorKind::BadHeader),
            ([mib, 2 * mib, 3 * mib], (4096, 8192), ErrorKind::BadHeader),
            ([mib, 2 * mib, 3 * mib], (mib + 1, 8192), ErrorKind::BadHeader),
            ([mib, 2 * mib, 3 * mib], (mib + AREA, 0), ErrorKind::BadHeader),
            ([mib, 2 * mib, 3 * mib + 100], (mib + AREA, 8192), ErrorKind::BadHeader),
            ([mib, 2 * mib, 4 * mib - 512], (mib + AREA, 8192), ErrorKind::TooSmall),
            ([mib, 2 * mib, u64::MAX - 100], (mib + AREA, 8192), ErrorKind::TooSmall),
            ([mib, 2 * mib, 3 * mib], (u64::MAX - 511, 8192), ErrorKind::TooSmall),
            ([mib, 2 * mib, 3 * mib], (mib + AREA, 2 * mib), ErrorKind::BadHeader),
        ] {
            assert_eq!(good(blocks, moved).unwrap_err().kind(), kind, "{blocks:?} {moved:?}");
        }
    }

    #[test]
    fn what_is_left_over_behind_the_last_sector_is_dropped() {
        let mib = 1 << 20;
        let layout =
            Layout::new(4 * mib + 4000, SectorSize::S4096, [mib, 2 * mib, 3 * mib], (mib + AREA, 8192))
                .unwrap();
        let key = Key::new(&[7; 32]).unwrap();
        assert_eq!(layout.volume(Method::AesXts128, &key, 4 * mib).unwrap().size(), 4 * mib);
    }
}
