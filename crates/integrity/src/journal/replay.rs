//! Replay: the journal's blocks are copied to their places after a crash, by the kernel's rules.

use super::{JournalFormat, JournalRound, after};
use crate::disk::{self, Disk, Disks};
use crate::{Error, ErrorKind, Result, TagMaker, VolumeGeometry, WriteMode};

/// The contents of a section's commit ids and entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SectionContents {
    /// The rounds of its sectors, as a set of bits.
    pub rounds: u8,
    /// No entry is used.
    pub is_unused: bool,
}

impl SectionContents {
    /// True when all of its sectors are of this round.
    fn is_all(&self, round: JournalRound) -> bool {
        self.rounds == 1 << round.index()
    }
}

/// The actions of a replay, derived from the sections' contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayPlan {
    /// The sections that count, oldest first.
    pub order: Vec<u32>,
    /// The section after the newest: the next one to be written, if the journal is kept.
    pub next: u32,
    /// The round of the next section.
    pub round: JournalRound,
    /// The newest round.
    pub newest: JournalRound,
    /// True when there is nothing to replay.
    pub is_empty: bool,
}

impl ReplayPlan {
    /// Derives the plan from the sections' contents.
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
        // The unused round; of several, the one after the newest.
        let unused = if used(JournalRound::new(3)) {
            rounds().find(|round| !used(*round))
        } else {
            rounds().rev().find(|round| round.index() == 0 || used(round.previous()))
        };
        let newest = unused.map(JournalRound::previous).filter(|newest| used(*newest));
        let (Some(newest), Some(count)) = (newest, u32::try_from(sections.len()).ok().filter(|n| *n > 0))
        else {
            let context =
                "the journal has all four rounds at once: it is damaged; open the volume in recovery mode";
            return Err(Error::new(ErrorKind::BadJournal, context));
        };
        let mut round = newest.previous();
        // An interrupted clearing leaves the round before the unused one.
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

    /// True if every section counts: none was torn.
    pub fn is_whole(&self, sections: u32) -> bool {
        self.order.len() == sections as usize
    }
}

/// The result of a replay, and the continuation of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayResult {
    /// The plan of the replay.
    pub plan: ReplayPlan,
    /// How many entries were applied.
    pub entries: u64,
    /// The round with which the journal was cleared afterwards.
    pub cleared: Option<JournalRound>,
    /// The section that is written next.
    pub next: u32,
    /// The round of the next section.
    pub round: JournalRound,
}

impl JournalFormat {
    /// Derives what a replay would do. Nothing is written.
    ///
    /// # Errors
    /// `BadJournal` for a journal that contradicts itself, and `Io`.
    pub fn plan(&self, disk: &dyn Disk) -> Result<ReplayPlan> {
        let mut section = self.section();
        // The list grows with the reads: the number of sections is only the superblock's claim.
        let mut sections = Vec::new();
        for index in 0..self.geometry.sections() {
            self.read(disk, index, &mut section)?;
            sections.push(self.seen(index, &section)?);
        }
        ReplayPlan::new(&sections)
    }

    /// Applies the journal, and clears it where the kernel does. The whole journal is checked
    /// before anything is written, so a refused journal leaves the volume unchanged.
    ///
    /// # Errors
    /// `BadJournal` for a journal that contradicts itself, `Integrity` for a wrong MAC or tag, and
    /// `Io`.
    pub fn replay(
        &self,
        disks: &Disks<'_>,
        tags: Option<&TagMaker>,
        mode: WriteMode,
    ) -> Result<ReplayResult> {
        let metadata = disks.metadata();
        let plan = self.plan(metadata)?;
        let is_whole = plan.is_whole(self.geometry.sections());
        let mut entries = 0;
        if !plan.is_empty {
            self.each_entry(&plan, metadata, |index, entry| entry.check(index, &self.geometry, tags))?;
        }
        // A block that is torn as it is put to its place has its entry on the disk, and a section
        // that stays is what the next ones come after. An empty journal that does not stay is
        // cleared.
        if !plan.is_empty || is_whole {
            self.secure(metadata)?;
        }
        if !plan.is_empty {
            self.each_entry(&plan, metadata, |_, entry| {
                entries += u64::from(entry.apply(disks, &self.geometry)?);
                Ok(())
            })?;
            disks.sync()?;
        }
        if is_whole && (mode == WriteMode::Journal || plan.is_empty) {
            return Ok(ReplayResult { entries, cleared: None, next: plan.next, round: plan.round, plan });
        }
        let erase = plan.newest.previous().previous();
        self.erase(metadata, plan.next, erase)?;
        Ok(ReplayResult { entries, cleared: Some(erase), next: 0, round: erase.next(), plan })
    }

    /// Clears all sections, `first` first and the one before it last, so that an interrupted
    /// clearing is recognised.
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
                    "the MAC of journal section {index} is wrong: the section was changed, or the key is another one"
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

/// A used entry of the journal.
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
        // A block beyond the volume's end does not belong to the volume any longer, and is not
        // checked.
        let checked = tags.filter(|_| sector < geometry.provided());
        if checked.is_some_and(|tags| tags.bad(sector, self.block, self.tag, false).next().is_some()) {
            let context = format!(
                "the tag of sector {sector} in journal section {index} is wrong: the section was changed, or the hash or key is another one"
            );
            return Err(Error::new(ErrorKind::Integrity, context));
        }
        Ok(())
    }

    /// Writes the entry to its place; false for a place beyond the end.
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
        // Of rounds 1 and 2, round 1 was overwritten with 0, which is two before the newest; the
        // section with 2 alone is left.
        let plan = plan(&[&[0], &[0], &[2], &[0], &[0]], false).unwrap();
        assert!(plan.is_empty && !plan.is_whole(5));
    }

    #[test]
    fn four_rounds_at_once_are_refused() {
        assert_eq!(plan(&[&[0], &[1], &[2], &[3]], true).unwrap_err().kind(), ErrorKind::BadJournal);
        assert_eq!(plan(&[], true).unwrap_err().kind(), ErrorKind::BadJournal);
    }
}
