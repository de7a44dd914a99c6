//! The steps of a reencryption and their order: pure arithmetic, without any effect.
//!
//! Byte x of the volume is at `old.lower + x` in its old form and at `new.lower + x` in its new
//! form. The first part of the volume may be *moved* away before the start, so that its own place
//! is free; its step is the last.
//!
//! ```text
//!                     steps, in order                         over their own source     else
//!   in place          either way                              each: checksum, journal   none
//!   shift up          downwards from the end, [moved at 0]    none: the source stays    the source
//!   shift down        upwards from moved's end, [moved at 0]  the moved one, if at 0    the source
//! ```

mod check;

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::protect;
use crate::volume::Stored;
use crate::{Hash, Result, Segment, SegmentKind, Volume};

/// The change of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// To another cipher, key, sector size or place.
    Reencrypt,
    /// From plaintext to ciphertext.
    Encrypt,
    /// From ciphertext to plaintext.
    Decrypt,
}

/// The order of the steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Upwards.
    Forward,
    /// Downwards.
    Backward,
}

/// The source of a step's old bytes after a crash in the middle of the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    /// No source. Steps are not recorded in the ledger, and a crash loses data.
    None,
    /// The hash of each block of old bytes, which tells the old blocks. A block must reach the disk
    /// whole or not at all.
    Checksum {
        /// The hash.
        hash: Hash,
        /// The size of the blocks: a power of two, and at least 512 bytes.
        block: u64,
    },
    /// A copy of the old bytes.
    Journal,
    /// The old place of the bytes, which the step does not write to.
    Source,
}

/// The plan of a reencryption. It never changes during the reencryption.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The change of the volume.
    pub mode: Mode,
    /// The order of the steps.
    pub direction: Direction,
    /// The volume's size in bytes, during the reencryption.
    pub size: u64,
    /// The old form. `lower` and `iv_offset` are those of byte 0, even if byte 0 is moved away.
    pub old: Stored,
    /// The new form, from byte 0 on.
    pub new: Stored,
    /// The moved first part, in its old form.
    pub moved: Option<Moved>,
    /// The protection of steps that are written over their own source, if there are any; never
    /// [`Protection::Source`].
    pub protection: Protection,
    /// The number of bytes for the protection of steps.
    pub area: u64,
    /// The length of the longest step, except the moved part's step, which is always done at once.
    pub hot_zone: u64,
    /// The alignment of steps in place: a power of two, and at least both sector sizes.
    pub alignment: u64,
}

/// The first part of a volume, moved away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// The place on the data device.
    pub lower: u64,
    /// The length in bytes.
    pub len: u64,
}

/// The progress of a reencryption.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// The number of new bytes; the plan knows which bytes these are.
    pub done: u64,
    /// The number of bytes of the step in progress. The bytes are old, or new, or unreadable.
    pub hot: Option<u64>,
}

/// A step: bytes that are converted together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The bytes of the volume.
    pub range: Range<u64>,
    /// The place of the old form on the data device.
    pub source: u64,
    /// The place of the new form on the data device.
    pub target: u64,
    /// The protection of the step.
    pub protection: Protection,
    /// The number of new bytes before the step.
    pub done: u64,
}

/// A part of the volume with a single form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The bytes of the volume.
    pub range: Range<u64>,
    /// The form.
    pub which: Which,
    /// The place on the data device; for a hot part, the place of the new form.
    pub lower: u64,
}

/// The form of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Old, at its place.
    Old,
    /// Old, moved away.
    Moved,
    /// In a step in progress.
    Hot,
    /// New.
    New,
}

/// The default length of steps: two of them need little memory, and syncs have no measurable cost.
const USUAL: u64 = 64 << 20;
/// The largest length of a step.
const LONGEST: u64 = 1 << 30;

/// Returns the length of steps for a request of `wanted`, on a machine with `memory` bytes: a
/// multiple of the alignment.
pub fn hot_zone(wanted: Option<u64>, alignment: u64, memory: u64) -> u64 {
    let len = wanted.unwrap_or(USUAL).min(LONGEST).min(memory / 4);
    down(len, alignment).max(alignment)
}

/// Returns the area's size that protects steps of `len` bytes in this way.
pub fn room(protection: Protection, len: u64) -> u64 {
    match protection {
        Protection::None | Protection::Source => 0,
        Protection::Checksum { hash, block } => len.div_ceil(block) * hash.output_len() as u64,
        Protection::Journal => len,
    }
}

impl Plan {
    /// Returns the number of bytes by which the data moves, or `None` when it does not move.
    pub fn shift(&self) -> Option<u64> {
        Some(self.new.lower.abs_diff(self.old.lower)).filter(|&shift| shift > 0)
    }

    /// Returns the larger sector size. The length of every part is a multiple of it.
    pub fn unit(&self) -> u64 {
        self.old.cipher.sector_size().max(self.new.cipher.sector_size()).bytes() as u64
    }

    /// Returns true when a step is written over its own source, and needs the area.
    pub fn writes_in_place(&self) -> bool {
        self.shift().is_none() || self.moved.is_some_and(|moved| moved.lower == self.new.lower)
    }

    /// Returns the length of the longest step in place that the area protects, a multiple of the
    /// alignment; may be 0.
    pub fn capacity(&self) -> u64 {
        let len = match self.protection {
            Protection::None | Protection::Source => u64::MAX,
            Protection::Checksum { hash, block } => {
                (self.area / hash.output_len() as u64).saturating_mul(block)
            }
            Protection::Journal => self.area,
        };
        down(len, self.alignment)
    }

    /// Returns the step in progress, or else the next step; `None` when all of the data is new.
    pub fn step(&self, progress: Progress) -> Option<Step> {
        let Progress { done, hot } = progress;
        let moved = self.moved.map_or(0, |moved| moved.len);
        if done >= self.size {
            return None;
        }
        if done >= self.size - moved {
            let source = self.moved.map_or(self.old.lower, |moved| moved.lower);
            return Some(self.one(0..moved, source, done));
        }
        let range = match self.direction {
            Direction::Forward => {
                let start = moved + done;
                start..hot.map_or_else(|| self.end_after(start), |hot| start + hot)
            }
            Direction::Backward => {
                let end = self.size - done;
                hot.map_or_else(|| self.start_before(end), |hot| end - hot)..end
            }
        };
        let source = self.old.lower + range.start;
        Some(self.one(range, source, done))
    }

    /// Returns the step in progress, or else the next step, with at most `longest` bytes if
    /// possible.
    pub fn step_within(&self, progress: Progress, longest: u64) -> Option<Step> {
        if longest >= self.hot_zone {
            return self.step(progress);
        }
        let hot_zone = down(longest, self.alignment).max(self.alignment);
        Self { hot_zone, ..self.clone() }.step(progress)
    }

    fn one(&self, range: Range<u64>, source: u64, done: u64) -> Step {
        let target = self.new.lower + range.start;
        let protection = if source == target { self.protection } else { Protection::Source };
        Step { range, source, target, protection, done }
    }

    /// Returns the length of the longest step, except the moved part's step.
    fn longest(&self) -> u64 {
        match self.shift() {
            Some(shift) => down(shift.min(self.hot_zone), self.unit()),
            None => self.hot_zone.min(self.capacity()),
        }
    }

    /// Returns the end of a step that begins at `start`. Only steps in place are aligned, as
    /// checksums cover whole blocks.
    fn end_after(&self, start: u64) -> u64 {
        let end = start.saturating_add(self.longest());
        if end >= self.size {
            self.size
        } else if self.shift().is_some() {
            end
        } else {
            down(end, self.alignment)
        }
    }

    /// Returns the beginning of a step that ends at `end`.
    fn start_before(&self, end: u64) -> u64 {
        let first = self.moved.map_or(0, |moved| moved.len);
        let start = end.saturating_sub(self.longest());
        let start = if self.shift().is_some() { start } else { start.next_multiple_of(self.alignment) };
        start.max(first)
    }

    /// Returns the end of the last place on the data device.
    pub fn end(&self) -> u64 {
        let moved = self.moved.map_or(0, |moved| moved.lower + moved.len);
        (self.old.lower.max(self.new.lower) + self.size).max(moved)
    }

    /// Returns the number of bytes that a disk must write whole or not at all, so that a crash
    /// loses nothing; `None` when no number is enough.
    ///
    /// Checksums tell which of a torn block's 512-byte parts are old. The block can be restored if
    /// its ciphers decrypt those parts separately: with sectors of that size, or with a mode that
    /// keeps each byte in its part.
    pub fn atomic(&self) -> Option<u64> {
        match self.protection {
            _ if !self.writes_in_place() => Some(512),
            Protection::None => None,
            Protection::Checksum { block, .. }
                if ![&self.old, &self.new].iter().all(|form| protect::mends(block, &*form.cipher)) =>
            {
                Some(block)
            }
            _ => Some(512),
        }
    }

    /// Returns the parts and their forms, in order, without empty parts.
    pub fn parts(&self, progress: Progress) -> Vec<Part> {
        let moved = self.moved.map_or(0, |moved| moved.len);
        let step = self.step(progress);
        let under_way = step.as_ref().filter(|_| progress.hot.is_some()).map(|step| step.range.clone());
        let is_last = step.as_ref().is_none_or(|step| step.range.start < moved);
        // The bytes behind the moved part.
        let new = match self.direction {
            _ if is_last => moved..self.size,
            Direction::Forward => moved..moved + progress.done,
            Direction::Backward => self.size - progress.done..self.size,
        };
        let first = if step.is_none() { Which::New } else { Which::Moved };
        let hot = under_way.unwrap_or(0..0);
        let mut cuts = vec![0, moved, new.start, new.end, hot.start, hot.end, self.size];
        cuts.sort_unstable();
        cuts.dedup();
        let of = |range: Range<u64>| {
            let at = range.start;
            let which = match () {
                () if hot.contains(&at) => Which::Hot,
                () if at < moved => first,
                () if new.contains(&at) => Which::New,
                () => Which::Old,
            };
            Part { lower: self.lower(which) + at, range, which }
        };
        let mut parts: Vec<Part> = Vec::new();
        for part in cuts.windows(2).map(|pair| of(pair[0]..pair[1])) {
            match parts.last_mut().filter(|last| last.which == part.which) {
                Some(last) => last.range.end = part.range.end,
                None => parts.push(part),
            }
        }
        parts
    }

    /// Returns the place of byte 0 in this form.
    fn lower(&self, which: Which) -> u64 {
        match which {
            Which::Old => self.old.lower,
            Which::Moved => self.moved.map_or(self.old.lower, |moved| moved.lower),
            Which::Hot | Which::New => self.new.lower,
        }
    }

    /// Returns the volume in its present state, with the plan's own ciphers. A step in progress
    /// counts as old: its range is claimed meanwhile.
    ///
    /// # Errors
    /// `BadLayout` for a plan that [`Plan::check`] would refuse.
    pub fn volume(&self, progress: Progress) -> Result<Volume> {
        let parts = self.parts(Progress { hot: None, ..progress });
        let segment = |Part { range, which, lower }: Part| {
            let form = if which == Which::New { &self.new } else { &self.old };
            let iv_offset = form.iv_offset.wrapping_add(range.start >> 9);
            let kind = SegmentKind::Stored(Stored { lower, iv_offset, ..form.clone() });
            Segment { start: range.start, len: range.end - range.start, kind }
        };
        Volume::new(parts.into_iter().map(segment).collect())
    }

    /// Returns the places on the data device that hold old bytes when all of the data is new, and
    /// no longer belong to the volume. The ledger may use the moved part's old place by now; that
    /// place must not be wiped.
    pub fn leftovers(&self) -> Vec<Range<u64>> {
        let (old, new) = (self.old.lower, self.new.lower);
        // A shift towards the end leaves the bytes before the new place.
        let shifted =
            if old < new { old..new.min(old + self.size) } else { new + self.size..old + self.size };
        let moved = self.moved.filter(|moved| moved.lower != new);
        let moved = moved.map(|moved| moved.lower..moved.lower + moved.len);
        [Some(shifted), moved].into_iter().flatten().filter(|place| place.start < place.end).collect()
    }
}

impl Step {
    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Returns false: a step has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Returns the progress before the step.
    pub fn before(&self) -> Progress {
        Progress { done: self.done, hot: None }
    }

    /// Returns the progress during the step.
    pub fn started(&self) -> Progress {
        Progress { done: self.done, hot: Some(self.len()) }
    }

    /// Returns the progress after the step.
    pub fn finished(&self) -> Progress {
        Progress { done: self.done + self.len(), hot: None }
    }
}

/// Rounds down to a multiple of `unit`, a power of two.
fn down(value: u64, unit: u64) -> u64 {
    value & !(unit - 1)
}
