//! Open files and folders: numbers for the kernel.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, RwLock};

use rustix::io::Errno;

use super::folder::OpenFolder;
use super::{Answer, reading, writing};
use crate::file::Opener;

/// Open files and folders.
///
/// Each can take two descriptors of this process: one that was opened to read, and one to write. A
/// user other than root and the mount's own has at most as many of them open as there is room for
/// still, so that none of them takes all.
pub(super) struct Handles {
    open: RwLock<OpenHandles>,
    last: AtomicU64,
    /// How many there can be.
    most: usize,
    /// The mount's own user.
    owner: u32,
}

#[derive(Default)]
struct OpenHandles {
    all: HashMap<u64, (Handle, u32)>,
    /// How many of them each user has opened.
    by_user: HashMap<u32, usize>,
}

enum Handle {
    File(Arc<Opener>),
    Folder(Arc<OpenFolder>),
}

impl Handles {
    /// Handles, for which there are about as many descriptors, in a mount of `owner`'s.
    pub(super) fn new(descriptors: usize, owner: u32) -> Self {
        Self { open: RwLock::default(), last: AtomicU64::new(0), most: descriptors / 2, owner }
    }

    /// Fails with `EMFILE` when the user has too many open.
    pub(super) fn has_room(&self, user: u32) -> Answer<()> {
        let open = reading(&self.open);
        let room = self.most.saturating_sub(open.all.len());
        let has = open.by_user.get(&user).copied().unwrap_or(0);
        let is_limited = user != 0 && user != self.owner;
        if is_limited && has > 0 && has >= room { Err(Errno::MFILE) } else { Ok(()) }
    }

    pub(super) fn add_file(&self, file: Opener, user: u32) -> u64 {
        self.add(Handle::File(Arc::new(file)), user)
    }

    pub(super) fn add_folder(&self, folder: OpenFolder, user: u32) -> u64 {
        self.add(Handle::Folder(Arc::new(folder)), user)
    }

    fn add(&self, handle: Handle, user: u32) -> u64 {
        let number = self.last.fetch_add(1, Relaxed) + 1;
        let mut open = writing(&self.open);
        open.all.insert(number, (handle, user));
        *open.by_user.entry(user).or_default() += 1;
        number
    }

    pub(super) fn file(&self, number: u64) -> Answer<Arc<Opener>> {
        match reading(&self.open).all.get(&number) {
            Some((Handle::File(file), _)) => Ok(file.clone()),
            _ => Err(Errno::BADF),
        }
    }

    pub(super) fn folder(&self, number: u64) -> Answer<Arc<OpenFolder>> {
        match reading(&self.open).all.get(&number) {
            Some((Handle::Folder(folder), _)) => Ok(folder.clone()),
            _ => Err(Errno::BADF),
        }
    }

    pub(super) fn close(&self, number: u64) {
        let mut open = writing(&self.open);
        let gone = open.all.remove(&number);
        if let Some((_, user)) = &gone
            && let Entry::Occupied(mut count) = open.by_user.entry(*user)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        drop(open);
        // Descriptors are closed while no thread waits for the lock.
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags, open};

    use super::*;
    use crate::fs::nodes::ROOT;
    use crate::fs::{Fs, MountConfig};

    #[test]
    fn no_user_takes_all_handles() {
        let lower = tempfile::tempdir().unwrap();
        let root = open(lower.path(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let fs = Fs::new(root, lower.path(), None, &MountConfig::default()).unwrap();
        let handles = Handles::new(200, 4);
        // Opens folders for a user until that is refused.
        let take_all = |user| {
            let mut taken = Vec::new();
            while taken.len() < 1000 && handles.has_room(user).is_ok() {
                taken.push(handles.add_folder(fs.open_folder(ROOT).unwrap(), user));
            }
            taken
        };
        let first = take_all(1);
        assert_eq!(first.len(), 50);
        assert_eq!(take_all(2).len(), 25);
        let own = take_all(4);
        assert_eq!(own.len(), 1000, "the mount's own user is not limited");
        own.iter().for_each(|handle| handles.close(*handle));
        assert!(handles.has_room(0).is_ok(), "root is not limited");
        first.iter().for_each(|handle| handles.close(*handle));
        assert_eq!(reading(&handles.open).by_user.len(), 1);
        assert_eq!(take_all(3).len(), 38);
    }
}
