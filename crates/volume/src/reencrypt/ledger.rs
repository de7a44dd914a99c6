//! The place of plan and progress.

use super::{Plan, Progress, Step};
use crate::{KeyCheck, Result, Target};

/// Keeps a reencryption's plan, its progress, and an area of [`Plan::area`] bytes for the
/// protection of a step: LUKS2's header, or a state file.
///
/// After an error the recorded state is unknown. It has to be read again from its disk, with one
/// exception: [`Ledger::record`] may be called once more to restore the progress before the error.
pub trait Ledger {
    /// Returns the plan, which never changes.
    fn plan(&self) -> &Plan;

    /// Returns the last recorded progress.
    fn progress(&self) -> Progress;

    /// Returns the digest of the new key, where the ledger keeps one.
    fn new_key_check(&self) -> Option<KeyCheck> {
        None
    }

    /// Refuses data that has another ledger, too: each would know only its own steps.
    ///
    /// # Errors
    /// `BadOption`; `Io`.
    fn allows(&self, _data: &dyn Target) -> Result<()> {
        Ok(())
    }

    /// Returns when plan and progress, as they were read, are on stable storage. After a failed
    /// sync they may be in memory only, and the disk may have an older record, which does not fit
    /// the area and the new bytes. A crash meanwhile changes neither record.
    ///
    /// # Errors
    /// `Busy` when another program changed the record; `Io`.
    fn secure(&mut self) -> Result<()>;

    /// Writes to the area, from its byte `at` on. The bytes need not be on stable storage before
    /// [`Ledger::sync_area`].
    ///
    /// # Errors
    /// `Io`; `TooSmall` beyond the area.
    fn write_area(&mut self, at: u64, bytes: &[u8]) -> Result<()>;

    /// Returns when all writes to the area are on stable storage.
    ///
    /// # Errors
    /// `Io`.
    fn sync_area(&mut self) -> Result<()>;

    /// Fills `bytes` from the area, from its byte `at` on. As the area is on a disk, it may contain
    /// any bytes.
    ///
    /// # Errors
    /// `Io`; `TooSmall` beyond the area.
    fn read_area(&self, at: u64, bytes: &mut [u8]) -> Result<()>;

    /// Takes the lock that [`Ledger::record`] needs, and keeps it until [`Ledger::unlock`]: from
    /// before a step's first record, while nothing is written, until after its last record, so that
    /// the users of its range wait for no other program. Waits for a moment only.
    ///
    /// # Errors
    /// `Locked` when another program holds the lock.
    fn lock(&mut self) -> Result<()> {
        Ok(())
    }

    /// Releases the lock, if it is kept.
    fn unlock(&mut self) {}

    /// Replaces the progress, in one update that a crash leaves whole or undone, and returns when
    /// it is on stable storage.
    ///
    /// With a step in progress ([`Progress::hot`]) this is the third row of the engine's table,
    /// without a step the sixth row. The record of the last step may be the end of the reencryption
    /// itself: then only [`Ledger::finish`] may follow.
    ///
    /// # Errors
    /// `Locked` when another program holds the lock: nothing was written, and the previous record
    /// is valid. `Busy` when another program changed the record; `Io`.
    fn record(&mut self, progress: Progress) -> Result<()>;

    /// Returns true when a step is not recorded as in progress, because it can be repeated from the
    /// progress before it: its source stays unchanged.
    fn repeats(&self, _step: &Step) -> bool {
        false
    }

    /// Ends the reencryption when every byte is new: removes the old keys, and the ranges of
    /// [`Plan::leftovers`] on `data`. After a crash, a second call completes the end.
    ///
    /// # Errors
    /// The kinds of [`Ledger::record`].
    fn finish(&mut self, data: &(dyn Target + Sync)) -> Result<()>;
}
