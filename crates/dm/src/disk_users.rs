//! The users of a disk, and what the kernel keeps of it: asked through a worker, since a disk may
//! hang.

use crate::loops::{LoopWork, LoopWorker};
use crate::opens::{loops_over, programs};
use crate::{Family, Result};

impl dyn LoopWorker {
    /// Returns the number of openers of the disk that `look` looks at. With `knows_claims` it is
    /// not asked whether a program has claimed the disk.
    pub(crate) fn opens(&self, look: LoopWork, family: &Family, knows_claims: bool) -> u32 {
        let opens = programs(look.dev(), family).saturating_add(loops_over(look.dev()));
        if opens > 0 || knows_claims {
            return opens;
        }
        // A device that cannot be opened in time is in use: a process hangs with it.
        let is_claimed = self.take(look).unwrap_or_else(|e| {
            log::warn!("{e}");
            true
        });
        is_claimed.into()
    }

    /// Writes what the kernel keeps of a disk. A refusal is in the log only.
    ///
    /// Fails when the disk hangs.
    pub(crate) fn sync(&self, sync: LoopWork) -> Result<()> {
        match self.take(sync) {
            Err(e) if !e.is_of_hanging() => log::warn!("{e}"),
            synced => drop(synced?),
        }
        Ok(())
    }
}
