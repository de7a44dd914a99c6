//! Where plan and progress are kept.

use super::{Plan, Progress, Step};
use crate::{Result, Target};

/// Keeps a reencryption's plan, its progress, and an area of [`Plan::area`] bytes for what protects
/// a step: LUKS2's header, or a state file.
///
/// After an error nobody knows what is kept. It has to be read again from its disk, but for one
/// thing: [`Ledger::record`] may be called once more to put back the progress that was there
/// before.
pub trait Ledger {
    /// What is to be done, which never changes.
    fn plan(&self) -> &Plan;

    /// How far it is, as last recorded.
    fn progress(&self) -> Progress;

    /// Refuses data that another ledger is kept for, too: each would know of its own steps only.
    ///
    /// # Errors
    /// `BadOption`; `Io`.
    fn allows(&self, _data: &dyn Target) -> Result<()> {
        Ok(())
    }

    /// Returns when what was read as plan and progress is on stable storage: after a sync that
    /// failed it may be in memory only, and something older on the disk, to which what the area
    /// holds and which bytes are new would not fit. A crash meanwhile changes nothing of either.
    ///
    /// # Errors
    /// `Busy` when somebody else changed what is kept; `Io`.
    fn secure(&mut self) -> Result<()>;

    /// Writes to the area, from its byte `at` on. It need not be on stable storage before
    /// [`Ledger::sync_area`].
    ///
    /// # Errors
    /// `Io`; `TooSmall` beyond the area.
    fn write_area(&mut self, at: u64, bytes: &[u8]) -> Result<()>;

    /// Returns when what was written to the area is on stable storage.
    ///
    /// # Errors
    /// `Io`.
    fn sync_area(&mut self) -> Result<()>;

    /// Fills `bytes` from the area, from its byte `at` on. The area holds what a disk holds: any
    /// bytes.
    ///
    /// # Errors
    /// `Io`; `TooSmall` beyond the area.
    fn read_area(&self, at: u64, bytes: &mut [u8]) -> Result<()>;

    /// Takes the lock that [`Ledger::record`] needs, and keeps it until [`Ledger::unlock`]: from
    /// before a step's first record, while nothing is written, to behind its last, so that the
    /// users of its range wait for no other program. Waits for a moment only.
    ///
    /// # Errors
    /// `Locked` when another program holds the lock.
    fn lock(&mut self) -> Result<()> {
        Ok(())
    }

    /// Gives the lock back, if it is kept.
    fn unlock(&mut self) {}

    /// Replaces the progress, in one update that a crash leaves whole or undone, and returns when
    /// it is on stable storage.
    ///
    /// With a step under way ([`Progress::hot`]) it is the table's third row, without one its
    /// sixth. The record of the last step may be the end of the reencryption itself: then nothing
    /// but [`Ledger::finish`] may follow.
    ///
    /// # Errors
    /// `Locked` when another program holds the lock: nothing was written, and what was recorded
    /// before holds. `Busy` when another program changed what is kept; `Io`.
    fn record(&mut self, progress: Progress) -> Result<()>;

    /// Whether a step is not recorded as under way, because it can be done again from the progress
    /// before it: its source stays as it is.
    fn repeats(&self, _step: &Step) -> bool {
        false
    }

    /// Ends the reencryption of which every byte is new: the old keys go, and so does what
    /// [`Plan::leftovers`] names on `data`. It is called again after a crash on the way, and then
    /// goes on.
    ///
    /// # Errors
    /// As [`Ledger::record`].
    fn finish(&mut self, data: &(dyn Target + Sync)) -> Result<()>;
}
