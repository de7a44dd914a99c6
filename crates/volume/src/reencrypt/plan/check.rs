//! Checks of plans and progress that were read from a disk, for all conditions of the arithmetic.

use std::ops::Range;

use super::{Direction, Mode, Plan, Progress, Protection};
use crate::volume::Stored;
use crate::{Error, ErrorKind, Result};

/// The size of the largest sectors. No disk writes more at once.
const LARGEST_BLOCK: u64 = 64 << 10;
/// The largest position in a file.
const END: u64 = i64::MAX as u64;

impl Plan {
    /// Refuses a plan that cannot be carried out. The other methods may be called only after this
    /// check.
    ///
    /// # Errors
    /// `BadLayout`, with the condition that is not met.
    pub fn check(&self) -> Result<()> {
        let unit = self.unit();
        let sound = self.alignment.is_power_of_two() && self.alignment >= unit && self.alignment <= END;
        held(sound, || format!("steps cannot be aligned to {} bytes", self.alignment))?;
        held(self.size > 0 && self.size.is_multiple_of(unit), || {
            format!("{} bytes are no whole number of {unit}-byte sectors", self.size)
        })?;
        for (form, name) in [(&self.old, "old"), (&self.new, "new")] {
            let end = form.lower.checked_add(self.size).filter(|&end| end <= END);
            held(end.is_some(), || format!("its {name} form ends beyond any device"))?;
            held(form.device == 0, || "it lies on more than one device".into())?;
            let tags = form.cipher.tag_size();
            held(tags == 0, || format!("its {name} cipher keeps {tags} bytes of tag beside each sector"))?;
        }
        let zone = self.hot_zone >= self.alignment && self.hot_zone.is_multiple_of(self.alignment);
        held(zone, || format!("steps of {} bytes are no multiple of {}", self.hot_zone, self.alignment))?;
        self.check_forms()?;
        self.check_place()?;
        self.check_protection()
    }

    fn check_forms(&self) -> Result<()> {
        let plain = |form: &Stored| form.cipher.is_null();
        match self.mode {
            Mode::Encrypt => held(plain(&self.old), || "the old form is encrypted already".into()),
            Mode::Decrypt => held(plain(&self.new), || "what is decrypted would stay encrypted".into()),
            Mode::Reencrypt => Ok(()),
        }
    }

    /// Checks that no step overwrites bytes that exist only in their old form, except its own
    /// source.
    fn check_place(&self) -> Result<()> {
        let (unit, shift) = (self.unit(), self.shift());
        let towards_end = self.new.lower > self.old.lower;
        if let Some(shift) = shift {
            held(shift >= unit, || format!("a shift of {shift} bytes is less than a sector of {unit}"))?;
            let fits = (self.direction == Direction::Backward) == towards_end;
            held(fits, || "a shift towards the end is done backward, one towards the start forward".into())?;
        }
        let Some(moved) = self.moved else { return Ok(()) };
        held(shift.is_some(), || "a first run is moved, but nothing else is".into())?;
        let len = moved.len > 0 && moved.len <= self.size && moved.len.is_multiple_of(unit);
        held(len, || format!("a moved run of {} bytes does not fit", moved.len))?;
        let end = moved.lower.checked_add(moved.len).filter(|&end| end <= END);
        let place = moved.lower..end.ok_or_else(|| bad("the moved run ends beyond any device".into()))?;
        let behind = |form: &Stored| form.lower + moved.len..form.lower + self.size;
        let target = self.new.lower..self.new.lower + moved.len;
        let apart = apart(&place, &behind(&self.old))
            && apart(&place, &behind(&self.new))
            && (place == target || apart(&place, &target));
        held(apart, || format!("the moved run at byte {} lies on other bytes", moved.lower))
    }

    fn check_protection(&self) -> Result<()> {
        if !self.writes_in_place() {
            return Ok(());
        }
        held(self.protection != Protection::Source, || {
            "steps that are written over their source are not protected by it".into()
        })?;
        if let Protection::Checksum { block, .. } = self.protection {
            let fits = block.is_power_of_two()
                && (self.unit()..=LARGEST_BLOCK).contains(&block)
                && self.alignment.is_multiple_of(block);
            held(fits, || format!("blocks of {block} bytes cannot tell old sectors from new ones"))?;
        }
        // The moved part is done at once.
        let least = self.moved.map_or(self.alignment, |moved| moved.len);
        held(self.protects(least), || {
            format!("an area of {} bytes is too small to protect a step of {least}", self.area)
        })
    }

    /// Returns true when the area has room for the protection of a step in place of this length.
    fn protects(&self, len: u64) -> bool {
        match self.protection {
            Protection::None => true,
            Protection::Checksum { hash, block } => {
                // As in `room`, which is not for numbers from a disk.
                let hashes = len.div_ceil(block).checked_mul(hash.output_len() as u64);
                hashes.is_some_and(|need| need <= self.area)
            }
            Protection::Journal => len <= self.area,
            Protection::Source => false,
        }
    }

    /// Refuses progress that this plan, which is [checked](Plan::check), never makes.
    ///
    /// # Errors
    /// `BadLayout`, with the condition that is not met.
    pub fn check_progress(&self, progress: Progress) -> Result<()> {
        let Progress { done, hot } = progress;
        let unit = self.unit();
        let rest = self.size - self.moved.map_or(0, |moved| moved.len);
        let sound = done.is_multiple_of(unit) && (done <= rest || done == self.size);
        held(sound, || format!("{done} of {} bytes cannot be done", self.size))?;
        let Some(hot) = hot else { return Ok(()) };
        let is_moved = done == rest && self.moved.is_some();
        let left = if is_moved { self.size - done } else { rest.saturating_sub(done) };
        let sound = hot > 0 && hot <= left && hot.is_multiple_of(unit) && (!is_moved || hot == left);
        let beside = || format!("a step of {hot} bytes after {done} of {} is not in this plan", self.size);
        held(sound, beside)?;
        let Some(step) = self.step(progress) else { return Err(bad(beside())) };
        let protected = match step.protection {
            Protection::Source if is_moved => true,
            Protection::Source => self.shift().is_some_and(|shift| hot <= shift),
            Protection::None => false,
            Protection::Checksum { .. } | Protection::Journal => self.protects(hot),
        };
        held(protected, || format!("nothing protects a step of {hot} bytes after {done}"))
    }
}

fn apart(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.end <= other.start || other.end <= one.start || one.is_empty() || other.is_empty()
}

fn held(is: bool, why: impl FnOnce() -> String) -> Result<()> {
    if is { Ok(()) } else { Err(bad(why())) }
}

fn bad(why: String) -> Error {
    Error::new(ErrorKind::BadLayout, format!("this reencryption cannot be carried out: {why}"))
}
