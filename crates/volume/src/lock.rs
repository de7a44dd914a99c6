//! The lock that cryptsetup takes around its own reads and updates of a header.

mod named;

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use uuid::Uuid;

use self::named::NamedLock;
use crate::{Error, ErrorKind, Result};

/// Whoever updates a header is done in less: what takes time (a key derivation) happens without the lock.
const PATIENCE: Duration = Duration::from_secs(10);

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(20);
/// The folder of cryptsetup's lock files.
const FOLDER: &str = "/run/cryptsetup";

/// What a header is locked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockTo {
    /// To read it, beside others who read.
    Read,
    /// To change it, alone.
    Change,
}

impl LockTo {
    fn operation(self) -> FlockOperation {
        match self {
            Self::Read => FlockOperation::NonBlockingLockShared,
            Self::Change => FlockOperation::NonBlockingLockExclusive,
        }
    }
}

/// Holds the lock until dropped.
///
/// For a file it is flock on the file; for a block device on `/run/cryptsetup/L_<major>:<minor>`, since udev takes
/// the lock of the device itself.
#[derive(Debug)]
pub struct HeaderLock<'a> {
    on: LockedFile<'a>,
}

#[derive(Debug)]
enum LockedFile<'a> {
    Header(&'a File),
    // Dropping it gives the lock back.
    Device { _lock: NamedLock },
}

impl<'a> HeaderLock<'a> {
    /// Waits for the lock. A reader goes without where it cannot be had because the place does not allow locks (a device
    /// without root, some network filesystems): checksums still tell half an update from a whole one.
    pub(crate) fn take(file: &'a File, to: LockTo) -> Result<Option<Self>> {
        match (Self::wait(file, to), to) {
            (Ok(lock), _) => Ok(Some(lock)),
            (Err(e), LockTo::Read) if std::error::Error::source(&e).is_some() => Ok(None),
            (Err(e), _) => Err(e),
        }
    }

    fn wait(file: &'a File, to: LockTo) -> Result<Self> {
        let cannot = |e: io::Error| Error::new(ErrorKind::Busy, "the header cannot be locked").with_source(e);
        let about = file.metadata().map_err(cannot)?;
        if !about.file_type().is_block_device() {
            wait(file, to.operation(), PATIENCE)?;
            return Ok(Self { on: LockedFile::Header(file) });
        }
        let (major, minor) = (rustix::fs::major(about.rdev()), rustix::fs::minor(about.rdev()));
        let path = Path::new(FOLDER).join(format!("L_{major}:{minor}"));
        let start = Instant::now();
        loop {
            match NamedLock::attempt(&path, to).map_err(cannot)? {
                Some(lock) => return Ok(Self { on: LockedFile::Device { _lock: lock } }),
                None if start.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
                None => return Err(held()),
            }
        }
    }
}

/// The lock that cryptsetup takes while a volume is reencrypted, from reading its header to the end, and while it is opened. Held until
/// dropped: to change how far it is, or to read the volume while nobody does.
#[derive(Debug)]
pub struct ReencryptionLock {
    lock: NamedLock,
}

impl ReencryptionLock {
    /// Takes it, or refuses at once; none where this user cannot take it, as cryptsetup could not, or the volume has no UUID.
    ///
    /// # Errors
    /// `Busy` when somebody else has it.
    pub fn take(uuid: Option<Uuid>, to: LockTo) -> Result<Option<Self>> {
        let Some(uuid) = uuid else { return Ok(None) };
        let cannot =
            |e: io::Error| Error::new(ErrorKind::Busy, "the reencryption cannot be locked").with_source(e);
        let path = Self::path_of(uuid);
        match NamedLock::attempt(&path, to) {
            Ok(Some(lock)) => Ok(Some(Self { lock })),
            Ok(None) => {
                let context = "this volume is being reencrypted already, or is open in the middle of it; wait until that ends, or \
                               end it";
                Err(Error::new(ErrorKind::Busy, context))
            }
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
                ) =>
            {
                Ok(None)
            }
            Err(e) => Err(cannot(e)),
        }
    }

    /// Whether it is this volume's.
    pub(crate) fn is_of(&self, uuid: Option<Uuid>) -> bool {
        uuid.is_some_and(|uuid| self.lock.path() == Self::path_of(uuid))
    }

    fn path_of(uuid: Uuid) -> PathBuf {
        Path::new(FOLDER).join(format!("LN_LUKS2-reencryption-{uuid}"))
    }
}

fn wait(file: &File, operation: FlockOperation, patience: Duration) -> Result<()> {
    let start = Instant::now();
    loop {
        match rustix::fs::flock(file, operation) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if start.elapsed() < patience => {
                std::thread::sleep(PAUSE);
            }
            Err(Errno::WOULDBLOCK) => return Err(held()),
            Err(Errno::INTR) => {}
            Err(e) => {
                let e = io::Error::from(e);
                return Err(Error::new(ErrorKind::Busy, "the header cannot be locked").with_source(e));
            }
        }
    }
}

fn held() -> Error {
    let context = "somebody else holds the header's lock; close what uses this volume and try again";
    Error::new(ErrorKind::Locked, context)
}

impl Drop for HeaderLock<'_> {
    fn drop(&mut self) {
        if let LockedFile::Header(file) = self.on {
            // Nothing can be done about a lock that does not open; it goes with the file.
            let _ = rustix::fs::flock(file, FlockOperation::Unlock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_share_and_a_writer_waits_for_them() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let open = || File::open(path.path()).unwrap();
        let (one, two, three) = (open(), open(), open());
        let first = HeaderLock::take(&one, LockTo::Read).unwrap().unwrap();
        let _second = HeaderLock::take(&two, LockTo::Read).unwrap().unwrap();
        let brief = Duration::from_millis(60);
        let refused = wait(&three, FlockOperation::NonBlockingLockExclusive, brief).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Locked);
        drop(first);
        drop(_second);
        wait(&three, FlockOperation::NonBlockingLockExclusive, brief).unwrap();
    }

    #[test]
    fn a_volume_is_reencrypted_once_at_a_time() {
        let uuid = |number: u128| Some(Uuid::from_u128(0x5eed_0000_0000_4000_8000_0000_0000_0000 + number));
        let take = |number| ReencryptionLock::take(uuid(number), LockTo::Change);
        let Some(first) = take(1).unwrap() else {
            return underseal_testing::skip("the lock of reencryptions", "only root can take it");
        };
        assert_eq!(take(1).unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(ReencryptionLock::take(uuid(1), LockTo::Read).unwrap_err().kind(), ErrorKind::Busy);
        drop(take(2).unwrap());
        let path = first.lock.path().to_owned();
        assert!(path.exists());
        drop(first);
        assert!(!path.exists());
        drop(take(1).unwrap());
    }

    #[test]
    fn nobody_reencrypts_a_volume_that_some_read() {
        let uuid = Some(Uuid::from_u128(0x5eed_0000_0000_4000_8000_0000_0000_0005));
        let read = || ReencryptionLock::take(uuid, LockTo::Read).unwrap();
        let change = || ReencryptionLock::take(uuid, LockTo::Change);
        let Some(first) = read() else {
            return underseal_testing::skip("the lock of reencryptions", "only root can take it");
        };
        let second = read();
        assert_eq!(change().unwrap_err().kind(), ErrorKind::Busy);
        drop(first);
        assert_eq!(change().unwrap_err().kind(), ErrorKind::Busy, "one is left");
        drop(second);
        drop(change().unwrap());
    }
}
