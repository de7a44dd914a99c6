//! An open file's state, locked for a change.

use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::sync::{PoisonError, RwLockWriteGuard};

use super::{CountedCall, FileState, FsError, OpenFile, born};
use crate::HeaderLocation;
use crate::file::version::OwnChange;

impl OpenFile {
    /// Locks the file for a writer, and gives it a header if it has none.
    pub(in crate::file) fn writing(&self) -> Result<WritableState<'_>, FsError> {
        let mut state = {
            let _waiting = CountedCall::counted_in(&self.waiting);
            self.state.write().unwrap_or_else(PoisonError::into_inner)
        };
        let change = (!matches!(*state, FileState::Plain)).then(|| self.change());
        if let (FileState::Unborn, Some(sealing)) = (&*state, &self.view.sealing) {
            let sealed = born(sealing, self.as_fd())?;
            if sealed.header.place() == HeaderLocation::Xattr {
                self.syncs.size_written();
            }
            *state = FileState::Sealed(sealed);
        }
        Ok(WritableState { _change: change, state })
    }
}

/// A file's state, locked for a writer. The change ends before the lock does.
pub(in crate::file) struct WritableState<'a> {
    _change: Option<OwnChange<'a>>,
    state: RwLockWriteGuard<'a, FileState>,
}

impl Deref for WritableState<'_> {
    type Target = FileState;

    fn deref(&self) -> &FileState {
        &self.state
    }
}

impl DerefMut for WritableState<'_> {
    fn deref_mut(&mut self) -> &mut FileState {
        &mut self.state
    }
}
