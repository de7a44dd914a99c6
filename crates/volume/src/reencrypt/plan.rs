//! What is done in which order, without doing it: pure arithmetic.
//!
//! Byte x of the volume lies at `old.lower + x` in its old form and at `new.lower + x` in its new
//! one. A first run of it may be *moved* aside before the start, so that its own place is free; it
//! comes last.
//!
//! ```text
//!                     steps, in order                         written over its own source   else
//!   in place          either way                              each: checksum, journal      none
//!   shift up          downwards from the end, [moved at 0]    none: the source stays       the source protects
//!   shift down        upwards from moved's end, [moved at 0]  the moved one, if at 0       the source protects
//! ```

mod check;

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::protect;
use crate::volume::Stored;
use crate::{Hash, Result, Segment, SegmentKind, Volume};

/// What becomes of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Another cipher, key, sector size or place.
    Reencrypt,
    /// It was stored as it is.
    Encrypt,
    /// It will be stored as it is.
    Decrypt,
}

/// In which order the steps come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Upwards.
    Forward,
    /// Downwards.
    Backward,
}

/// What gives a step's old bytes back after a crash in the middle of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    /// Nothing, and the ledger hears of no step: a crash loses data.
    None,
    /// The hash of each block of old bytes tells which are old still. A block must reach the disk
    /// whole or not at all.
    Checksum {
        /// The hash.
        hash: Hash,
        /// The size of the blocks, a power of two of 512 bytes at least.
        block: u64,
    },
    /// The old bytes themselves.
    Journal,
    /// The place they came from, which the step does not write to.
    Source,
}

/// What is done to a volume. It never changes while it is done.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What becomes of it.
    pub mode: Mode,
    /// In which order.
    pub direction: Direction,
    /// The volume's size in bytes, while this goes on.
    pub size: u64,
    /// The old form: `lower` and `iv_offset` are those of byte 0, also where that lies elsewhere,
    /// moved.
    pub old: Stored,
    /// The new form, from byte 0 on.
    pub new: Stored,
    /// The first bytes, in their old form, elsewhere.
    pub moved: Option<Moved>,
    /// Of steps that are written over their own source, if there are any; never
    /// [`Protection::Source`].
    pub protection: Protection,
    /// How many bytes there are for what protects them.
    pub area: u64,
    /// The longest step but for the moved one, which is always done at once.
    pub hot_zone: u64,
    /// Steps in place begin and end at its multiples: a power of two, both sector sizes at least.
    pub alignment: u64,
}

/// A first run of the volume that was moved aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// Where it lies on the data device.
    pub lower: u64,
    /// Its length.
    pub len: u64,
}

/// How far it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// How many bytes are new; which ones, the plan knows.
    pub done: u64,
    /// How many more a step under way makes new. Its bytes are old, or new, or nothing that can be
    /// read.
    pub hot: Option<u64>,
}

/// One step: bytes that are made new together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Which bytes of the volume.
    pub range: Range<u64>,
    /// Where they lie on the data device in their old form.
    pub source: u64,
    /// Where they will lie.
    pub target: u64,
    /// What gives them back.
    pub protection: Protection,
    /// How many were new before.
    pub done: u64,
}

/// A run of the volume that is of one form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Which bytes of the volume.
    pub range: Range<u64>,
    /// Which form.
    pub which: Which,
    /// Where they lie on the data device; of a hot part, where they will lie.
    pub lower: u64,
}

/// A part's form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Old, at its place.
    Old,
    /// Old, moved aside.
    Moved,
    /// In a step under way.
    Hot,
    /// New.
    New,
}

/// The length of steps where nothing else was asked for: what two of them take in memory is little,
/// and long enough that syncs do not count.
const USUAL: u64 = 64 << 20;
/// No step is longer.
const LONGEST: u64 = 1 << 30;

/// How long steps are where `wanted` is asked for, on a machine with so much memory: a multiple of
/// the alignment.
pub fn hot_zone(wanted: Option<u64>, alignment: u64, memory: u64) -> u64 {
    let len = wanted.unwrap_or(USUAL).min(LONGEST).min(memory / 4);
    down(len, alignment).max(alignment)
}

/// How large an area must be to protect steps of `len` bytes in that way.
pub fn room(protection: Protection, len: u64) -> u64 {
    match protection {
        Protection::None | Protection::Source => 0,
        Protection::Checksum { hash, block } => len.div_ceil(block) * hash.output_len() as u64,
        Protection::Journal => len,
    }
}

impl Plan {
    /// By how much the bytes change their place, or none where they do not.
    pub fn shift(&self) -> Option<u64> {
        Some(self.new.lower.abs_diff(self.old.lower)).filter(|&shift| shift > 0)
    }

    /// The larger of both sector sizes: every part is a multiple of it.
    pub fn unit(&self) -> u64 {
        self.old.cipher.sector_size().max(self.new.cipher.sector_size()).bytes() as u64
    }

    /// Whether any step is written over its own source, and so needs the area.
    pub fn writes_in_place(&self) -> bool {
        self.shift().is_none() || self.moved.is_some_and(|moved| moved.lower == self.new.lower)
    }

    /// The longest step in place that the area protects, a multiple of the alignment; possibly 0.
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

    /// The step under way, or else the next one; none when all is new.
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

    /// The step under way, or else the next one, no longer than so many bytes if it can be.
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

    /// The longest step but for the moved one.
    fn longest(&self) -> u64 {
        match self.shift() {
            Some(shift) => down(shift.min(self.hot_zone), self.unit()),
            None => self.hot_zone.min(self.capacity()),
        }
    }

    /// Where a step that begins at `start` ends. Only steps in place are aligned: blocks of
    /// checksums are.
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

    /// Where a step that ends at `end` begins.
    fn start_before(&self, end: u64) -> u64 {
        let first = self.moved.map_or(0, |moved| moved.len);
        let start = end.saturating_sub(self.longest());
        let start = if self.shift().is_some() { start } else { start.next_multiple_of(self.alignment) };
        start.max(first)
    }

    /// Where the last of its places on the data device ends.
    pub fn end(&self) -> u64 {
        let moved = self.moved.map_or(0, |moved| moved.lower + moved.len);
        (self.old.lower.max(self.new.lower) + self.size).max(moved)
    }

    /// How many bytes a disk must write whole or not at all, so that a crash loses nothing; none
    /// where nothing helps.
    ///
    /// Checksums tell which of a torn block's 512-byte parts are old. That gives back the block
    /// where its ciphers decrypt those parts one by one: they have sectors of that size, or spread
    /// no byte over its sector.
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

    /// Which bytes are of which form, in order, without empty parts.
    pub fn parts(&self, progress: Progress) -> Vec<Part> {
        let moved = self.moved.map_or(0, |moved| moved.len);
        let step = self.step(progress);
        let under_way = step.as_ref().filter(|_| progress.hot.is_some()).map(|step| step.range.clone());
        let is_last = step.as_ref().is_none_or(|step| step.range.start < moved);
        // Of the bytes behind the moved ones.
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

    /// Where byte 0 lies, or would lie, in that form.
    fn lower(&self, which: Which) -> u64 {
        match which {
            Which::Old => self.old.lower,
            Which::Moved => self.moved.map_or(self.old.lower, |moved| moved.lower),
            Which::Hot | Which::New => self.new.lower,
        }
    }

    /// The volume as it stands, with the plan's very ciphers. A step under way counts as old: its
    /// range is claimed meanwhile.
    ///
    /// # Errors
    /// `BadLayout` when the plan is none that [`Plan::check`] would take.
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

    /// Places on the data device that hold old bytes when all is new, and are not the volume's any
    /// more. Where a first run was moved away from, the ledger may have its own place by now, which
    /// is not to be wiped.
    pub fn leftovers(&self) -> Vec<Range<u64>> {
        let (old, new) = (self.old.lower, self.new.lower);
        // A shift towards the end leaves what lay before.
        let shifted =
            if old < new { old..new.min(old + self.size) } else { new + self.size..old + self.size };
        let moved = self.moved.filter(|moved| moved.lower != new);
        let moved = moved.map(|moved| moved.lower..moved.lower + moved.len);
        [Some(shifted), moved].into_iter().flatten().filter(|place| place.start < place.end).collect()
    }
}

impl Step {
    /// Its length.
    pub fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Never: a step makes something new.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The progress before it.
    pub fn before(&self) -> Progress {
        Progress { done: self.done, hot: None }
    }

    /// The progress while it is under way.
    pub fn started(&self) -> Progress {
        Progress { done: self.done, hot: Some(self.len()) }
    }

    /// The progress when it is done.
    pub fn finished(&self) -> Progress {
        Progress { done: self.done + self.len(), hot: None }
    }
}

/// The multiple of `unit`, a power of two, at or below.
fn down(value: u64, unit: u64) -> u64 {
    value & !(unit - 1)
}
