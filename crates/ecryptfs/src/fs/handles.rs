//! Open files and folders: numbers for the kernel.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, RwLock};

use rustix::io::Errno;

use super::folder::OpenFolder;
use super::{Answer, reading, writing};
use crate::file::Opener;

/// Open files and folders.
#[derive(Default)]
pub(super) struct Handles {
    open: RwLock<HashMap<u64, Handle>>,
    last: AtomicU64,
}

enum Handle {
    File(Arc<Opener>),
    Folder(Arc<OpenFolder>),
}

impl Handles {
    pub(super) fn add_file(&self, file: Opener) -> u64 {
        self.add(Handle::File(Arc::new(file)))
    }

    pub(super) fn add_folder(&self, folder: OpenFolder) -> u64 {
        self.add(Handle::Folder(Arc::new(folder)))
    }

    fn add(&self, handle: Handle) -> u64 {
        let number = self.last.fetch_add(1, Relaxed) + 1;
        writing(&self.open).insert(number, handle);
        number
    }

    pub(super) fn file(&self, number: u64) -> Answer<Arc<Opener>> {
        match reading(&self.open).get(&number) {
            Some(Handle::File(file)) => Ok(file.clone()),
            _ => Err(Errno::BADF),
        }
    }

    pub(super) fn folder(&self, number: u64) -> Answer<Arc<OpenFolder>> {
        match reading(&self.open).get(&number) {
            Some(Handle::Folder(folder)) => Ok(folder.clone()),
            _ => Err(Errno::BADF),
        }
    }

    pub(super) fn close(&self, number: u64) {
        let gone = writing(&self.open).remove(&number);
        // Descriptors are closed while no thread waits for the lock.
        drop(gone);
    }
}
