//! What a crash left in the journal goes to its places, by the kernel's rules.

use super::{JournalFormat, JournalRound, after};
use crate::disk::{self, Disk, Disks};
use crate::{Error, ErrorKind, Result, TagMaker, VolumeGeometry, WriteMode};

/// What the sectors of a section say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SectionContents {
    /// The rounds that its sectors are of, as a set of bits.
    pub rounds: u8,
    /// No entry is used.
    pub is_unused: bool,
}

impl SectionContents {
    /// All of its sectors are of this round.
    fn is_all(&self, round: JournalRound) -> bool {
        self.rounds == 1 << round.index()
    }
}

/// What a replay does, found out from what the sections say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayPlan {
    /// The sections that count, oldest first.
    pub order: Vec<u32>,
    /// The section after the newest: what is written next, if the journal stays.
    pub next: u32,
    /// The round that it is written in.
    pub round: JournalRound,
    /// The newest round.
    pub newest: JournalRound,
    /// There is nothing to replay.
    pub is_empty: bool,
}

impl ReplayPlan {
    /// What to do about sections that say this.
    ///
    /// # Errors
    /// `BadJournal` when there are no sections, or all four rounds at once.
    pub fn new(sections: &[SectionContents]) -> Result<Self> {
        let mut last = [None; 4];
        for (index, seen) in (0..).zip(sections) {
            (0..4).filter(|round| seen.rounds >> round & 1 == 1).for_each(|round| last[round] = Some(index));
        }
        let last_of = |round: JournalRound| last[usize::from(round.index())];
        let used = |round: JournalRound| last_of(round).is_some();
        let rounds = || (0..4).map(JournalRound::new);
        // The round that is not used, of several the one after the newest.
        let unused = if used(JournalRound::new(3)) {
            rounds().find(|round| !used(*round))
        } else {
            rounds().rev().find(|round| round.index() == 0 || used(round.previous()))
        };
        let newest = unused.map(JournalRound::previous).filter(|newest| used(*newest));
        let (Some(newest), Some(count)) = (newest, u32::try_from(sections.len()).ok().filter(|n| *n > 0))
        else {
            let context = "the journal says all four rounds at once: it is damaged; the volume can be read in recovery mode";
            return Err(Error::new(ErrorKind::BadJournal, context));
        };
        let mut round = newest.previous();
        // A clearing that was cut off leaves the round before the one that is missing.
        let is_cleared = !used(round) && used(round.previous());
        let is_empty = is_cleared || sections.iter().all(|seen| seen.is_unused);
        let mut next = last_of(newest).unwrap_or(0) + 1;
        if next == count {
            (next, round) = (0, round.next());
        }
        let (mut order, mut index) = (Vec::new(), next);
        while order.len() < sections.len() && sections[index as usize].is_all(round) {
            order.push(index);
            index += 1;
            if index == count {
                (index, round) = (0, round.next());
            }
        }
        Ok(Self { order, next, round, newest, is_empty })
    }

    /// True if every section counts: nothing was torn.
    pub fn is_whole(&self, sections: u32) -> bool {
        self.order.len() == sections as usize
    }
}

/// What a replay did, and where the journal goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayResult {
    /// What it was made from.
    pub plan: ReplayPlan,
    /// How many entries were applied.
    pub entries: u64,
    /// The round with which the journal was cleared afterwards.
    pub cleared: Option<JournalRound>,
    /// The section that is written next.
    pub next: u32,
    /// The round that it is written in.
    pub round: JournalRound,
}

impl JournalFormat {
    /// Finds out what a replay would do. Nothing is written.
    ///
    /// # Errors
    /// `BadJournal` for a journal that contradicts itself, and `Io`.
    pub fn plan(&self, disk: &dyn Disk) -> Result<ReplayPlan> {
        let mut section = self.section();
        // Grows with what was read: the number of sections is only what the superblock claims.
        let mut sections = Vec::new();
        for index in 0..self.geometry.sections() {
            self.read(disk, index, &mut section)?;
            sections.push(self.seen(index, &section)?);
        }
        ReplayPlan::new(&sections)
    }

    /// Applies the journal, and clears it where the kernel does. All of it is checked before
    /// anything is written, so a journal that is refused leaves the volume as it was.
    ///
    /// # Errors
    /// `BadJournal` for a journal that contradicts itself, `Integrity` for a MAC or tag that is
    /// wrong, and `Io`.
    pub fn replay(
        &self,
        disks: &Disks<'_>,
        tags: Option<&TagMaker>,
        mode: WriteMode,
    ) -> Result<ReplayResult> {
        let metadata = disks.metadata();
        let plan = self.plan(metadata)?;
        let mut entries = 0;
        if !plan.is_empty {
            self.each_entry(&plan, metadata, |index, entry| entry.check(index, &self.geometry, tags))?;
            self.each_entry(&plan, metadata, |_, entry| {
                entries += u64::from(entry.apply(disks, &self.geometry)?);
                Ok(())
            })?;
            disks.sync()?;
        }
        if plan.is_whole(self.geometry.sections()) && (mode == WriteMode::Journal || plan.is_empty) {
            return Ok(ReplayResult { entries, cleared: None, next: plan.next, round: plan.round, plan });
        }
        let erase = plan.newest.previous().previous();
        self.erase(metadata, plan.next, erase)?;
        Ok(ReplayResult { entries, cleared: Some(erase), next: 0, round: erase.next(), plan })
    }

    /// Clears all sections, `first` first and the one before it last, so that an interrupted
    /// clearing is known for what it is.
    fn erase(&self, disk: &dyn Disk, first: u32, round: JournalRound) -> Result<()> {
        let sections = self.geometry.sections();
        let runs = [(0, 1), (1, sections.saturating_sub(2)), (sections.saturating_sub(1).max(1), 1)];
        for (by, count) in runs.into_iter().filter(|(by, count)| *by < sections && *count > 0) {
            self.clear(disk, after(first, by, sections), count, round)?;
            disk::sync(disk)?;
        }
        Ok(())
    }

    fn each_entry(
        &self,
        plan: &ReplayPlan,
        disk: &dyn Disk,
        mut each: impl FnMut(u32, &Entry<'_>) -> Result<()>,
    ) -> Result<()> {
        let (mut section, mut block) = (self.section(), vec![0; self.geometry.block_size()]);
        let shape = self.geometry.section();
        for index in plan.order.iter().copied() {
            self.read(disk, index, &mut section)?;
            if !self.is_authentic(index, &section) {
                let context = format!(
                    "the MAC of journal section {index} is wrong: give the key that it was made with, or it was changed"
                );
                return Err(Error::new(ErrorKind::Integrity, context));
            }
            for n in 0..shape.entries() {
                let Some(sector) = shape.sector(&section, n) else { continue };
                shape.block(&section, n, &mut block);
                let tag = shape.tag(&section, n, self.geometry.tag_size());
                each(index, &Entry { sector, block: &block, tag })?;
            }
        }
        Ok(())
    }
}

/// An entry of the journal that is used.
struct Entry<'s> {
    sector: u64,
    block: &'s [u8],
    tag: &'s [u8],
}

impl Entry<'_> {
    fn check(&self, index: u32, geometry: &VolumeGeometry, tags: Option<&TagMaker>) -> Result<()> {
        let sector = self.sector;
        if !sector.is_multiple_of(geometry.block_sectors()) {
            let context =
                format!("journal section {index} has an entry for sector {sector}, where no block begins");
            return Err(Error::new(ErrorKind::BadJournal, context));
        }
        // What lies beyond the end is not for this volume any longer; nobody looks at it.
        let checked = tags.filter(|_| sector < geometry.provided());
        if checked.is_some_and(|tags| tags.bad(sector, self.block, self.tag, false).next().is_some()) {
            let context = format!(
                "the tag of sector {sector} in journal section {index} is wrong: another hash or key made it, or it was changed"
            );
            return Err(Error::new(ErrorKind::Integrity, context));
        }
        Ok(())
    }

    /// Writes it to its place; false if that is beyond the end.
    fn apply(&self, disks: &Disks<'_>, geometry: &VolumeGeometry) -> Result<bool> {
        if self.sector >= geometry.provided() {
            return Ok(false);
        }
        let place = geometry.place(self.sector);
        disk::write(disks.data, place.data, self.block)?;
        disk::write(disks.metadata(), place.tag, self.tag)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(rounds: &[&[u8]], is_unused: bool) -> Result<ReplayPlan> {
        let set = |rounds: &&[u8]| rounds.iter().fold(0, |set, round| set | 1 << round);
        ReplayPlan::new(
            &rounds
                .iter()
                .map(|rounds| SectionContents { rounds: set(rounds), is_unused })
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn a_ring_in_the_midst_of_its_second_round_is_replayed_from_the_oldest_section_on() {
        let plan = plan(&[&[1], &[1], &[0], &[0]], false).unwrap();
        assert_eq!((&plan.order[..], plan.next, plan.round.index()), (&[2, 3, 0, 1][..], 2, 1));
        assert_eq!((plan.newest.index(), plan.is_empty, plan.is_whole(4)), (1, false, true));
    }

    #[test]
    fn a_section_that_was_torn_is_left_out_and_what_was_before_it_is_not() {
        let plan = plan(&[&[3], &[3], &[2, 3], &[2]], false).unwrap();
        assert_eq!((&plan.order[..], plan.is_whole(4)), (&[3, 0, 1][..], false));
    }

    #[test]
    fn a_clearing_that_was_cut_off_leaves_nothing_to_replay() {
        // Of rounds 1 and 2, 1 was erased with 0, which is two before the newest; the section with
        // 2 alone is left.
        let plan = plan(&[&[0], &[0], &[2], &[0], &[0]], false).unwrap();
        assert!(plan.is_empty && !plan.is_whole(5));
    }

    #[test]
    fn four_rounds_at_once_are_refused() {
        assert_eq!(plan(&[&[0], &[1], &[2], &[3]], true).unwrap_err().kind(), ErrorKind::BadJournal);
        assert_eq!(plan(&[], true).unwrap_err().kind(), ErrorKind::BadJournal);
    }
}
