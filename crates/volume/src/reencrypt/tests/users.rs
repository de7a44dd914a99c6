//! Users who read and write the volume during the reencryption: all of their writes must always be
//! there.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use super::faults::Disk;
use super::*;
use crate::{Error, ErrorKind};

pub(super) struct Users<'a> {
    disk: &'a Disk,
    plan: &'a Plan,
    /// The contents of the volume.
    model: &'a RefCell<Vec<u8>>,
    random: &'a Random,
    volume: RefCell<Volume>,
    claimed: RefCell<Vec<Range<u64>>>,
    closed: RefCell<Vec<Range<u64>>>,
    /// The number of remaining steps.
    steps: Cell<u64>,
    ahead: bool,
}

/// The same numbers in each run.
pub(super) struct Random(Cell<u64>);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(Cell::new(seed))
    }

    pub(super) fn below(&self, end: u64) -> u64 {
        // SplitMix64.
        self.0.set(self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mut mixed = self.0.get();
        for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9_u64), (27, 0x94d0_49bb_1331_11eb)] {
            mixed = (mixed ^ (mixed >> shift)).wrapping_mul(factor);
        }
        (mixed ^ (mixed >> 31)) % end.max(1)
    }
}

impl<'a> Users<'a> {
    /// The users of a volume that is opened during the reencryption.
    pub(super) fn new(
        disk: &'a Disk,
        (plan, progress): (&'a Plan, Progress),
        model: &'a RefCell<Vec<u8>>,
        random: &'a Random,
        steps: u64,
    ) -> Self {
        let hot = progress.hot.and_then(|_| plan.step(progress)).map(|step| step.range);
        Self {
            disk,
            plan,
            model,
            random,
            volume: plan.volume(progress).unwrap().into(),
            claimed: RefCell::default(),
            closed: RefCell::new(hot.into_iter().collect()),
            steps: Cell::new(steps),
            ahead: random.below(2) == 0,
        }
    }

    /// Checks that nothing is claimed any more, and that all open ranges match the model.
    pub(super) fn leave(&self) {
        assert!(self.claimed.borrow().is_empty());
        let unit = self.plan.unit();
        (0..self.plan.size / unit).for_each(|i| self.look(i * unit..(i + 1) * unit));
    }

    /// Returns the ranges that are unusable.
    pub(super) fn closed(&self) -> Vec<Range<u64>> {
        self.closed.borrow().clone()
    }

    fn is_free(&self, range: &Range<u64>) -> bool {
        let meets = |other: &Range<u64>| other.start < range.end && range.start < other.end;
        !self.claimed.borrow().iter().any(meets) && !self.closed.borrow().iter().any(meets)
    }

    fn look(&self, range: Range<u64>) {
        if self.is_free(&range) {
            self.compare(&range);
        }
    }

    fn compare(&self, range: &Range<u64>) {
        let at = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
        let here = read(&self.volume.borrow(), &Quiet(self.disk), range.start, at.len());
        assert!(here == self.model.borrow()[at], "bytes {range:?} are others");
    }

    fn write_somewhere(&self) {
        let unit = self.plan.unit();
        let start = self.random.below(self.plan.size / unit) * unit;
        let range = start..(start + (1 + self.random.below(4)) * unit).min(self.plan.size);
        if !self.is_free(&range) {
            return;
        }
        let len = usize::try_from(range.end - range.start).unwrap();
        let bytes: Vec<u8> = (0..len).map(|_| self.random.below(256).to_le_bytes()[0]).collect();
        write(&self.volume.borrow(), &Quiet(self.disk), start, &bytes);
        let at = usize::try_from(start).unwrap();
        self.model.borrow_mut()[at..at + len].copy_from_slice(&bytes);
    }
}

impl Foreground for Users<'_> {
    fn claim(&self, range: Range<u64>) -> Result<Box<dyn Claim + '_>> {
        if self.random.below(40) == 0 {
            return Err(Error::new(ErrorKind::Busy, "not now"));
        }
        assert!(
            self.claimed.borrow().iter().all(|other| other.end <= range.start || range.end <= other.start)
        );
        assert!(self.ahead || self.claimed.borrow().is_empty());
        self.claimed.borrow_mut().push(range.clone());
        Ok(Box::new(Held { users: self, range }))
    }

    fn claims_ahead(&self) -> bool {
        self.ahead
    }

    fn pace(&self, done: u64, left: u64) -> Pace {
        assert_eq!(done + left, self.plan.size);
        (0..2).for_each(|_| self.write_somewhere());
        self.steps.set(self.steps.get().saturating_sub(1));
        if self.steps.get() == 0 { Pace::Stop } else { Pace::Go }
    }
}

struct Held<'a> {
    users: &'a Users<'a>,
    range: Range<u64>,
}

impl Claim for Held<'_> {
    fn relay(&self, volume: Volume) -> Result<()> {
        *self.users.volume.borrow_mut() = volume;
        self.users.closed.borrow_mut().retain(|range| *range != self.range);
        self.users.compare(&self.range);
        Ok(())
    }

    fn give_up(&self) {
        self.users.closed.borrow_mut().push(self.range.clone());
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.users.claimed.borrow_mut().retain(|range| *range != self.range);
    }
}

/// The disk for its users, who see no faults: faults hit the reencryption only.
struct Quiet<'a>(&'a Disk);

impl ReadAt for Quiet<'_> {
    fn size(&self) -> std::io::Result<u64> {
        self.0.size()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.0.get(buf, offset);
        Ok(())
    }
}

impl Target for Quiet<'_> {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> std::io::Result<()> {
        self.0.put(bytes, offset);
        Ok(())
    }

    fn sync_all(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn set_len(&self, _: u64) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}
