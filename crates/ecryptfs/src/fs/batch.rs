//! Many names of a folder looked up together.
//!
//! ```text
//!   this thread:  one by one, as long as none has to be waited for
//!                                 | a few had to be
//!                                 v
//!   several threads:  whoever is free takes the next, so the disk has as many reads to do at a time
//! ```
//!
//! A name costs its inode and its header, each a read where the lower filesystem has not got it in
//! memory. Where it has, both take less time than another thread takes to come.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use super::Fs;
use super::entries::LookupEntry;
use super::nodes::FileNode;

/// A lookup that took as long has waited for a disk.
const WAITED: Duration = Duration::from_micros(50);
/// So many of them, and help is called: one alone may be chance.
const PATIENCE: usize = 4;
/// And one in so many at least: a busy processor lets a thread wait, too, but less often.
const OFTEN: usize = 4;
/// Fewer are not worth it.
const FEW: usize = 8;
/// Threads that look together, this one among them.
const THREADS: usize = 8;

impl Fs {
    /// Looks lower names up, and tells the kernel of each that is there. Those without a name here,
    /// removed meanwhile or that cannot be looked at are none: whoever wants to know asks for them
    /// by name.
    pub(super) fn find_all(
        &self,
        folder: &Arc<FileNode>,
        names: &[Option<&[u8]>],
    ) -> Vec<Option<LookupEntry>> {
        let mut found = Vec::with_capacity(names.len());
        let mut waited = 0;
        for (n, name) in names.iter().enumerate() {
            if waited >= PATIENCE.max(n / OFTEN) && names.len() - n >= FEW {
                found.extend(self.find_together(folder, &names[n..]));
                break;
            }
            let started = Instant::now();
            found.push(self.find_one(folder, *name));
            waited += usize::from(started.elapsed() >= WAITED);
        }
        found
    }

    fn find_together(&self, folder: &Arc<FileNode>, names: &[Option<&[u8]>]) -> Vec<Option<LookupEntry>> {
        let found: Vec<OnceLock<LookupEntry>> = names.iter().map(|_| OnceLock::new()).collect();
        let next = AtomicUsize::new(0);
        let look = || {
            while let Some((name, place)) = Some(next.fetch_add(1, Relaxed)).and_then(|n| {
                let name = names.get(n)?;
                Some((*name, found.get(n)?))
            }) {
                if let Some(one) = self.find_one(folder, name) {
                    // Nobody else has taken this number.
                    let _ = place.set(one);
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..THREADS.min(names.len()) {
                // Those that cannot be had are not needed.
                let _ = thread::Builder::new().name("ecryptfs-look".into()).spawn_scoped(scope, look);
            }
            look();
        });
        found.into_iter().map(OnceLock::into_inner).collect()
    }

    fn find_one(&self, folder: &Arc<FileNode>, name: Option<&[u8]>) -> Option<LookupEntry> {
        self.find(folder, name?).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::{Mode, OFlags, open};

    use super::super::MountConfig;
    use super::super::nodes::ROOT;
    use super::*;

    #[test]
    fn several_threads_find_what_one_finds() {
        let folder = tempfile::tempdir().unwrap();
        let names: Vec<_> = (0..300).map(|n| format!("file {n}")).collect();
        for (n, name) in names.iter().enumerate().filter(|(n, _)| n % 10 != 0) {
            fs::write(folder.path().join(name), vec![0; n]).unwrap();
        }
        let root = open(folder.path(), OFlags::PATH, Mode::empty()).unwrap();
        let fs = Fs::new(root, folder.path(), None, &MountConfig::default()).unwrap();
        let root = fs.nodes.get(ROOT).unwrap();
        let mut asked: Vec<_> = names.iter().map(|name| Some(name.as_bytes())).collect();
        asked[33] = None;
        for found in [fs.find_together(&root, &asked), fs.find_all(&root, &asked)] {
            assert_eq!(found.len(), asked.len());
            for (n, found) in found.into_iter().enumerate() {
                let size = found.as_ref().map(|found| found.stat.st_size);
                let expected = (n % 10 != 0 && n != 33).then(|| i64::try_from(n).unwrap());
                assert_eq!(size, expected, "{n}");
                if let Some(found) = found {
                    fs.nodes.forget(found.node.id, 1);
                    assert_eq!(fs.find_one(&root, asked[n]).unwrap().stat.st_ino, found.stat.st_ino);
                }
            }
        }
    }
}
