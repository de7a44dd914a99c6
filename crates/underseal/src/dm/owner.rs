//! Which of a device's table servers has its file, and whether one of them lives.
//!
//! ```text
//!   owner   locked by the server that serves the file; holds the number of its turn, 8 bytes
//!   alive   locked, shared, by each server that serves the file, has given it or is to take it
//! ```
//!
//! A server that gives its mount to another one unlocks `owner` and says its turn. The other one
//! locks it in that turn before it opens or writes anything, and raises the turn before it takes
//! the first request. The first one serves again once it has the lock in its own turn, which it
//! raises too; after a later turn it ends. So no two servers have the file at once, however slow
//! one of them is, and a server that dies has neither lock any more.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, retry_on_intr};

/// The two files, beside the table's.
const OWNER: &str = "owner";
const ALIVE: &str = "alive";

/// A server's share in a device's file.
pub(super) struct Owner {
    owner: File,
    _alive: File,
    turn: u64,
    owns: bool,
}

/// The answer to a server that asks for the file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ownership {
    /// The file is this server's.
    Own,
    /// Another server has it for now, and may let go of it.
    Held,
    /// Another server has or had a later turn.
    Over,
}

impl Owner {
    /// Owns a file that no server has shown before.
    pub(super) fn first(file: &Path) -> io::Result<Self> {
        let mut this = Self::join(file, 0)?;
        this.owner.write_all_at(&0_u64.to_ne_bytes(), 0)?;
        match this.claim()? {
            Ownership::Own => Ok(this),
            _ => Err(Errno::BUSY.into()),
        }
    }

    /// Is about to take the file in this turn of another server's.
    pub(super) fn join(file: &Path, turn: u64) -> io::Result<Self> {
        let open = |name| {
            let mut how = File::options();
            how.read(true).write(true).create(true).truncate(false).mode(0o600);
            how.open(file.with_file_name(name))
        };
        let (owner, alive) = (open(OWNER)?, open(ALIVE)?);
        // The only one that locks this against others is a back end that looks, for a moment.
        retry_on_intr(|| flock(&alive, FlockOperation::LockShared))?;
        Ok(Self { owner, _alive: alive, turn, owns: false })
    }

    /// The turn in which the file is, or was, this server's.
    pub(super) fn turn(&self) -> u64 {
        self.turn
    }

    /// Whether the file is this server's.
    pub(super) fn owns(&self) -> bool {
        self.owns
    }

    /// Asks for the file.
    pub(super) fn claim(&mut self) -> io::Result<Ownership> {
        if self.owns {
            return Ok(Ownership::Own);
        }
        let locked = retry_on_intr(|| flock(&self.owner, FlockOperation::NonBlockingLockExclusive));
        let locked = match locked {
            Err(Errno::WOULDBLOCK) => false,
            locked => locked.map(|()| true)?,
        };
        let mut turn = [0; 8];
        let read = self.owner.read_exact_at(&mut turn, 0);
        let is_over = read.is_ok() && u64::from_ne_bytes(turn) != self.turn;
        if locked && (is_over || read.is_err()) {
            self.unlock()?;
        }
        read?;
        self.owns = locked && !is_over;
        Ok(match (is_over, locked) {
            (true, _) => Ownership::Over,
            (false, true) => Ownership::Own,
            (false, false) => Ownership::Held,
        })
    }

    /// Makes another turn of it: no server that the file was given to in this one can have it now.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        let next = self.turn.wrapping_add(1);
        self.owner.write_all_at(&next.to_ne_bytes(), 0)?;
        self.turn = next;
        Ok(())
    }

    /// Lets another server have the file.
    pub(super) fn give(&mut self) -> io::Result<()> {
        self.owns = false;
        self.unlock()
    }

    fn unlock(&self) -> io::Result<()> {
        Ok(retry_on_intr(|| flock(&self.owner, FlockOperation::Unlock))?)
    }
}

/// Whether a server lives that has to do with this file; not known of one of an older version.
pub(super) fn lives(file: &Path) -> Option<bool> {
    let alive = File::open(file.with_file_name(ALIVE)).ok()?;
    match retry_on_intr(|| flock(&alive, FlockOperation::NonBlockingLockExclusive)) {
        Ok(()) => Some(false),
        Err(Errno::WOULDBLOCK) => Some(true),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_one_owner_and_a_late_one_does_not_get_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("volume");
        assert_eq!(lives(&file), None);
        let mut old = Owner::first(&file).unwrap();
        let mut late = Owner::join(&file, old.turn()).unwrap();
        assert_eq!(late.claim().unwrap(), Ownership::Held);
        old.give().unwrap();
        assert_eq!(old.claim().unwrap(), Ownership::Own);
        old.settle().unwrap();
        old.give().unwrap();
        assert_eq!(late.claim().unwrap(), Ownership::Over, "it was given in an earlier turn");
        let mut new = Owner::join(&file, old.turn()).unwrap();
        assert_eq!(new.claim().unwrap(), Ownership::Own);
        assert_eq!(old.claim().unwrap(), Ownership::Held);
        drop(new);
        assert_eq!(old.claim().unwrap(), Ownership::Own, "the other one died before it took a request");
        old.settle().unwrap();
        old.give().unwrap();
        let mut new = Owner::join(&file, old.turn()).unwrap();
        assert_eq!(new.claim().unwrap(), Ownership::Own);
        new.settle().unwrap();
        assert_eq!(old.claim().unwrap(), Ownership::Over);
        drop(new);
        assert_eq!(old.claim().unwrap(), Ownership::Over, "the other one had requests");
        drop(late);
        assert_eq!(lives(&file), Some(true));
        drop(old);
        assert_eq!(lives(&file), Some(false));
    }
}
