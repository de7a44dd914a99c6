//! A file that names the process with an image's lock, on this machine and for this user: a later
//! process can prove with it that a killed one is gone, and need not wait until the cluster gives
//! up on it.
//!
//! The proof: the lock's owner is the client that the file names by its address, which has a number
//! that no other client has; and the file, which that process keeps locked while it lives, can be
//! locked. The kernel releases that lock when the process has ended in any way; a child that still
//! held it would only delay the proof. The file also names the boot in which it was written, which
//! excludes folders that machines share.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// The longest valid file.
const LONGEST: u64 = 1024;

/// The time limit for another process's file, and the interval of checks.
const MOMENT: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(10);

/// The file that names this process as the lock's owner. The drop removes it.
pub(super) struct LockHolderFile {
    path: PathBuf,
    /// The open file, which is locked.
    _file: File,
}

impl LockHolderFile {
    /// Notes that this process has the lock of the image with this id, as the client at this
    /// address.
    pub(super) fn note(folder: &Path, image: &str, address: &str) -> io::Result<Self> {
        let path = path(folder, image);
        let begun = Instant::now();
        let mut file = loop {
            let mut options = File::options();
            let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)?;
            match file.try_lock() {
                Ok(()) if is_at(&file, &path) => break file,
                // The previous owner has released the image, and is about to remove its file.
                Ok(()) | Err(TryLockError::WouldBlock) if begun.elapsed() < MOMENT => thread::sleep(LOOK),
                Ok(()) => return Err(io::ErrorKind::WouldBlock.into()),
                Err(e) => return Err(e.into()),
            }
        };
        file.set_len(0)?;
        let process = std::process::id();
        file.write_all(format!("{address} {} {process}\n", boot()?).as_bytes())?;
        Ok(Self { path, _file: file })
    }
}

impl Drop for LockHolderFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The process that was the client at this address and had the lock, if it is certainly gone.
pub(super) fn gone(folder: &Path, image: &str, address: &str) -> Option<u32> {
    let file = File::open(path(folder, image)).ok()?;
    let mut text = String::new();
    (&file).take(LONGEST).read_to_string(&mut text).ok()?;
    let words: Vec<&str> = text.strip_suffix('\n')?.split(' ').collect();
    let [its_address, its_boot, process] = words[..] else { return None };
    let is_it = its_address == address && its_boot == boot().ok()?;
    (is_it && file.try_lock().is_ok()).then(|| process.parse().ok())?
}

/// True when an open file is the one at a path.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(ours), Ok(there)) = (file.metadata(), fs::symlink_metadata(path)) else { return false };
    (ours.dev(), ours.ino()) == (there.dev(), there.ino())
}

fn path(folder: &Path, image: &str) -> PathBuf {
    folder.join(format!("{image}.rbd-lock"))
}

/// The id of the machine's present boot.
fn boot() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: &str = "127.0.0.1:0/9";

    #[test]
    fn who_has_it_is_not_gone_until_it_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let gone = |address| gone(folder.path(), "id", address);
        let note = |address| LockHolderFile::note(folder.path(), "id", address);
        let holder = note(ADDRESS).unwrap();
        assert_eq!(gone(ADDRESS), None);
        assert!(note("127.0.0.1:0/8").is_err(), "it is this one's");
        let text = fs::read(path(folder.path(), "id")).unwrap();
        drop(holder);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        // The file as a killed process leaves it.
        fs::write(path(folder.path(), "id"), text).unwrap();
        assert_eq!(gone(ADDRESS), Some(std::process::id()));
        assert_eq!(gone("127.0.0.1:0/8"), None);
        assert_eq!(super::gone(folder.path(), "other", ADDRESS), None);
        let _holder = note("127.0.0.1:0/10").unwrap();
        assert_eq!([gone(ADDRESS), gone("127.0.0.1:0/10")], [None, None]);
    }

    #[test]
    fn who_follows_has_a_file_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        for _ in 0..20 {
            let before = LockHolderFile::note(folder.path(), "id", ADDRESS).unwrap();
            let leaves = thread::spawn(move || drop(before));
            let after = LockHolderFile::note(folder.path(), "id", "127.0.0.1:0/10").unwrap();
            leaves.join().unwrap();
            let text = fs::read_to_string(path(folder.path(), "id")).unwrap();
            assert!(text.starts_with("127.0.0.1:0/10 "), "{text}");
            drop(after);
        }
    }

    #[test]
    fn another_boot_and_what_is_no_such_file_prove_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let boot = boot().unwrap();
        let gone_by = |text: &str| {
            fs::write(path(folder.path(), "id"), text).unwrap();
            gone(folder.path(), "id", ADDRESS)
        };
        for text in ["", "\n", "127.0.0.1:0/9\n", "127.0.0.1:0/9 another 5\n"] {
            assert_eq!(gone_by(text), None, "{text:?}");
        }
        for rest in [" 5", " x\n", " 5 6\n"] {
            assert_eq!(gone_by(&format!("{ADDRESS} {boot}{rest}")), None, "{rest:?}");
        }
        assert_eq!(gone_by(&format!("{ADDRESS} {boot} 5\n")), Some(5));
    }
}
