//! The ownership of a device's file among its table servers, and whether one of them lives.
//!
//! ```text
//!   owner   locked by the server that serves the file; holds the number of its turn, 8 bytes
//!   alive   locked, shared, by each server that serves the file, gave it, or is to take it
//! ```
//!
//! A server that gives its mount to another one unlocks `owner` and reports its turn. The other one
//! locks the file in that turn before it opens or writes anything, and raises the turn before it
//! takes the first request. The first server resumes once it has the lock in its own turn, which it
//! raises, too; after a later turn it ends. So no two servers have the file at once, however slow
//! one of them is, and a dead server has neither lock.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, retry_on_intr};
use underseal_dm::OWNER_FILE;

/// The other file beside the table's.
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
    /// The file belongs to this server.
    Own,
    /// Another server has the file now, and may release it.
    Held,
    /// Another server has or had a later turn.
    Over,
}

impl Owner {
    /// Takes a file that no server has shown before.
    pub(super) fn first(file: &Path) -> io::Result<Self> {
        let mut this = Self::join(file, 0)?;
        this.owner.write_all_at(&0_u64.to_ne_bytes(), 0)?;
        match this.claim()? {
            Ownership::Own => Ok(this),
            _ => Err(Errno::BUSY.into()),
        }
    }

    /// Prepares to take the file in this turn of another server.
    pub(super) fn join(file: &Path, turn: u64) -> io::Result<Self> {
        let open = |name| {
            let mut how = File::options();
            how.read(true).write(true).create(true).truncate(false).mode(0o600);
            how.open(file.with_file_name(name))
        };
        let (owner, alive) = (open(OWNER_FILE)?, open(ALIVE)?);
        // Only a back end locks this exclusively, for a moment, to find out whether a server lives.
        retry_on_intr(|| flock(&alive, FlockOperation::LockShared))?;
        Ok(Self { owner, _alive: alive, turn, owns: false })
    }

    /// Returns the turn in which the file is, or was, this server's.
    pub(super) fn turn(&self) -> u64 {
        self.turn
    }

    /// Returns true when the file is this server's.
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

    /// Begins another turn: a server that the file was given to in this turn can no longer have it.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        let next = self.turn.wrapping_add(1);
        self.owner.write_all_at(&next.to_ne_bytes(), 0)?;
        self.turn = next;
        Ok(())
    }

    /// Releases the file for another server.
    pub(super) fn give(&mut self) -> io::Result<()> {
        self.owns = false;
        self.unlock()
    }

    fn unlock(&self) -> io::Result<()> {
        Ok(retry_on_intr(|| flock(&self.owner, FlockOperation::Unlock))?)
    }
}

/// Returns whether a server of this file lives; `None` for servers of older versions.
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
