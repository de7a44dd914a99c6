//! The lock that cryptsetup takes for its reads and updates of a header.

mod loops;
mod named;

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use uuid::Uuid;

use self::loops::OtherNames;
use self::named::NamedLock;
use crate::{Error, ErrorKind, Result};

/// How long to wait for the lock. An update takes less: slow work (a key derivation) happens
/// without the lock.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// How long the last of several readers may hold a lock exclusively, to remove its name.
const RELEASE: Duration = Duration::from_millis(100);

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(20);
/// The folder of cryptsetup's lock files.
const FOLDER: &str = "/run/cryptsetup";

/// The kind of a header's lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockTo {
    /// Shared, for reading.
    Read,
    /// Exclusive, for changing.
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

/// A lock that is held until it is dropped.
///
/// For a file it is flock on the file; for a block device on `/run/cryptsetup/L_<major>:<minor>`,
/// since udev takes the lock of the device itself. The header of a file that has loop devices over
/// it, and of such a device, is locked under all of these names, as far as this user may.
#[derive(Debug)]
pub struct HeaderLock<'a> {
    on: LockedFile<'a>,
    others: OtherLocks,
    /// The process that took the lock. A child of a fork shares the open file, and would release
    /// the lock of its parent.
    process: u32,
}

#[derive(Debug)]
enum LockedFile<'a> {
    Header(&'a File),
    /// The header, open for this lock alone.
    Own(File),
    // Dropping one of these releases the lock.
    Device {
        _lock: NamedLock,
    },
    Other {
        _guard: Box<dyn Debug + Send + Sync + 'a>,
    },
}

/// The locks of a header's other names.
#[derive(Debug, Default)]
struct OtherLocks {
    _devices: Vec<NamedLock>,
    file: Option<File>,
}

impl<'a> HeaderLock<'a> {
    /// Returns a lock of another kind than a file's: it is held until `guard` is dropped.
    pub fn of(guard: impl Debug + Send + Sync + 'a) -> Self {
        Self::on(LockedFile::Other { _guard: Box::new(guard) }, OtherLocks::default())
    }

    /// Waits for the lock to read, on an open file of no other user, which is closed with the lock.
    /// Returns `None` where locks are not possible.
    ///
    /// # Errors
    /// `Locked` when another process keeps the lock.
    pub fn to_read(file: File, patience: Duration) -> Result<Option<Self>> {
        let (lock, others) = match wait_for_file(&file, LockTo::Read, patience) {
            Ok(locks) => locks,
            Err(e) if cannot_lock(&e) => return Ok(None),
            Err(e) => return Err(e),
        };
        let on = lock.map_or(LockedFile::Own(file), |lock| LockedFile::Device { _lock: lock });
        Ok(Some(Self::on(on, others)))
    }

    /// Waits for the lock. A reader continues without the lock where locks are not possible (a
    /// device without root, some network filesystems): checksums still detect a partial update.
    pub(crate) fn take(file: &'a File, to: LockTo, patience: Duration) -> Result<Option<Self>> {
        match (Self::wait(file, to, patience), to) {
            (Ok(lock), _) => Ok(Some(lock)),
            (Err(e), LockTo::Read) if cannot_lock(&e) => Ok(None),
            (Err(e), _) => Err(e),
        }
    }

    fn wait(file: &'a File, to: LockTo, patience: Duration) -> Result<Self> {
        let (lock, others) = wait_for_file(file, to, patience)?;
        let on = lock.map_or(LockedFile::Header(file), |lock| LockedFile::Device { _lock: lock });
        Ok(Self::on(on, others))
    }

    fn on(on: LockedFile<'a>, others: OtherLocks) -> Self {
        Self { on, others, process: process::id() }
    }
}

/// Returns true for the error of a lock that is not possible, false where another process has it.
fn cannot_lock(e: &Error) -> bool {
    std::error::Error::source(e).is_some()
}

/// Waits for the lock of a header's file, or of its name where that is a block device, and for
/// those of its other names.
fn wait_for_file(file: &File, to: LockTo, patience: Duration) -> Result<(Option<NamedLock>, OtherLocks)> {
    let cannot = |e: io::Error| Error::new(ErrorKind::Busy, "the header cannot be locked").with_source(e);
    let until = Instant::now() + patience;
    let about = file.metadata().map_err(cannot)?;
    if about.file_type().is_block_device() {
        return wait_for_devices(file, Some(about.rdev()), to, until);
    }
    wait(file, to.operation(), until)?;
    wait_for_devices(file, None, to, until).inspect_err(|_| {
        // The caller's file stays open, and its lock with it.
        let _ = rustix::fs::flock(file, FlockOperation::Unlock);
    })
}

/// Waits for the locks of a header's other names, and for that of the device `own`, in one order.
fn wait_for_devices(
    file: &File,
    own: Option<u64>,
    to: LockTo,
    until: Instant,
) -> Result<(Option<NamedLock>, OtherLocks)> {
    let OtherNames { below, mut devices } = OtherNames::of(file);
    let below = below.map(|below| wait(&below, to.operation(), until).map(|()| below)).transpose();
    let below = may_lack(below)?.flatten();
    devices.extend(own);
    devices.sort_unstable();
    let (mut lock, mut others) = (None, Vec::new());
    for device in devices {
        let taken = wait_for_device(device, to, until);
        if own == Some(device) {
            lock = Some(taken?);
        } else {
            others.extend(may_lack(taken)?);
        }
    }
    Ok((lock, OtherLocks { _devices: others, file: below }))
}

/// Returns `None` for the lock of another name that is not possible: this user cannot change the
/// header under that name either.
fn may_lack<T>(lock: Result<T>) -> Result<Option<T>> {
    match lock {
        Err(e) if cannot_lock(&e) => Ok(None),
        lock => lock.map(Some),
    }
}

/// Waits for the lock of a block device.
fn wait_for_device(device: u64, to: LockTo, until: Instant) -> Result<NamedLock> {
    let cannot = |e: io::Error| Error::new(ErrorKind::Busy, "the header cannot be locked").with_source(e);
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let path = Path::new(FOLDER).join(format!("L_{major}:{minor}"));
    loop {
        match NamedLock::attempt(&path, to).map_err(cannot)? {
            Some(lock) => return Ok(lock),
            None if Instant::now() < until => std::thread::sleep(PAUSE),
            None => return Err(held()),
        }
    }
}

/// Returns true when another program is changing the header of this image, as far as its lock
/// tells.
pub fn is_header_locked(image: &File) -> bool {
    HeaderLock::wait(image, LockTo::Read, Duration::ZERO).is_err_and(|e| e.kind() == ErrorKind::Locked)
}

/// The lock that cryptsetup takes while it reencrypts a volume, and while it opens a volume with an
/// unfinished reencryption. It is held until dropped, and is one lock for all volumes with the same
/// UUID.
///
/// | program | cryptsetup's lock | the turn, a lock of this project |
/// | --- | --- | --- |
/// | reencrypts a closed volume, as cryptsetup does | exclusive | |
/// | has a volume open | shared | |
/// | has a volume with an unfinished reencryption open, for reading | shared | shared |
/// | reencrypts a volume that is open, or begins to | shared | exclusive |
///
/// So no program reencrypts a closed volume that is open somewhere, and one program at a time
/// reencrypts an open volume.
#[derive(Debug)]
pub struct ReencryptionLock {
    // The turn is released before the lock.
    _turn: Option<NamedLock>,
    lock: NamedLock,
}

impl ReencryptionLock {
    /// Takes cryptsetup's lock, or refuses without a wait: shared for an open volume, exclusive to
    /// reencrypt a closed one. Returns `None` where this user cannot take the lock, as cryptsetup
    /// could not, or the volume has no UUID.
    ///
    /// # Errors
    /// `Busy` when another program has it.
    pub fn take(uuid: Option<Uuid>, to: LockTo) -> Result<Option<Self>> {
        let Some(uuid) = uuid else { return Ok(None) };
        let held = match to {
            LockTo::Read => {
                "another program reencrypts this volume, or a copy of it; wait until that ends, or end it"
            }
            LockTo::Change => {
                "this volume, or a copy of it with the same UUID, is open or is being reencrypted; close it, or wait until \
                 the reencryption ends"
            }
        };
        let lock = attempt(&Self::path_of(uuid), to, held)?;
        Ok(lock.map(|lock| Self { lock, _turn: None }))
    }

    /// Takes the locks of a program that reencrypts an open volume (`LockTo::Change`), or reads one
    /// with an unfinished reencryption: its server, or a command that begins the server's work.
    ///
    /// # Errors
    /// The kinds of [`ReencryptionLock::take`].
    pub fn take_turn(uuid: Option<Uuid>, to: LockTo) -> Result<Option<Self>> {
        let Some(shared) = Self::take(uuid, LockTo::Read)? else { return Ok(None) };
        let mut name = shared.lock.path().as_os_str().to_owned();
        name.push("-underseal");
        let held = "this volume is being reencrypted already, or is open in the middle of it; wait until that ends, or \
                    end it";
        let turn = attempt(Path::new(&name), to, held)?;
        Ok(turn.map(|turn| Self { _turn: Some(turn), ..shared }))
    }

    /// Takes the locks of a program that begins the reencryption of an open or a closed volume.
    pub(crate) fn of_start(uuid: Option<Uuid>, is_open: bool) -> Result<Option<Self>> {
        let take = if is_open { Self::take_turn } else { Self::take };
        take(uuid, LockTo::Change)
    }

    /// Returns true when the lock is this volume's.
    pub(crate) fn is_of(&self, uuid: Option<Uuid>) -> bool {
        uuid.is_some_and(|uuid| self.lock.path() == Self::path_of(uuid))
    }

    fn path_of(uuid: Uuid) -> PathBuf {
        Path::new(FOLDER).join(format!("LN_LUKS2-reencryption-{uuid}"))
    }
}

/// Takes the lock of this name; `None` where this user cannot take it.
fn attempt(path: &Path, to: LockTo, held: &str) -> Result<Option<NamedLock>> {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    let start = Instant::now();
    loop {
        match NamedLock::attempt(path, to) {
            Ok(Some(lock)) => return Ok(Some(lock)),
            Ok(None) if start.elapsed() < RELEASE => std::thread::sleep(PAUSE),
            Ok(None) => return Err(Error::new(ErrorKind::Busy, held)),
            Err(e) if matches!(e.kind(), PermissionDenied | ReadOnlyFilesystem) => return Ok(None),
            Err(e) => {
                return Err(Error::new(ErrorKind::Busy, "the reencryption cannot be locked").with_source(e));
            }
        }
    }
}

fn wait(file: &File, operation: FlockOperation, until: Instant) -> Result<()> {
    loop {
        match rustix::fs::flock(file, operation) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if Instant::now() < until => {
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
    let context = "another process holds the header's lock; close users of this volume and try again";
    Error::new(ErrorKind::Locked, context)
}

impl Drop for HeaderLock<'_> {
    fn drop(&mut self) {
        if self.process != process::id() {
            return;
        }
        let own = match &self.on {
            LockedFile::Header(file) => Some(*file),
            LockedFile::Own(file) => Some(file),
            LockedFile::Device { .. } | LockedFile::Other { .. } => None,
        };
        for file in own.into_iter().chain(&self.others.file) {
            // A failure to unlock is ignored: the lock ends with the file.
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
        let first = HeaderLock::take(&one, LockTo::Read, PATIENCE).unwrap().unwrap();
        let _second = HeaderLock::take(&two, LockTo::Read, PATIENCE).unwrap().unwrap();
        let brief = || Instant::now() + Duration::from_millis(60);
        let refused = wait(&three, FlockOperation::NonBlockingLockExclusive, brief()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Locked);
        drop(first);
        drop(_second);
        wait(&three, FlockOperation::NonBlockingLockExclusive, brief()).unwrap();
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

    #[test]
    fn an_open_volume_is_reencrypted_by_one_program_beside_all_that_have_it_open() {
        let number = Uuid::from_u128(0x5eed_0000_0000_4000_8000_0000_0000_0007);
        let uuid = Some(number);
        let take = |to| ReencryptionLock::take(uuid, to);
        let turn = |to| ReencryptionLock::take_turn(uuid, to);
        let busy = |taken: Result<Option<ReencryptionLock>>| taken.unwrap_err().kind() == ErrorKind::Busy;
        let Some(open) = take(LockTo::Read).unwrap() else {
            return underseal_testing::skip("the lock of reencryptions", "only root can take it");
        };
        let copy = take(LockTo::Read).unwrap();
        let mine = turn(LockTo::Change).unwrap().unwrap();
        assert!(mine.is_of(uuid));
        assert!(busy(turn(LockTo::Change)) && busy(turn(LockTo::Read)) && busy(take(LockTo::Change)));
        drop((mine, copy));
        let readers = (turn(LockTo::Read).unwrap(), turn(LockTo::Read).unwrap());
        assert!(busy(turn(LockTo::Change)) && busy(take(LockTo::Change)));
        drop(readers);
        assert!(busy(take(LockTo::Change)), "it is open");
        let path = open.lock.path().to_owned();
        drop(open);
        let alone = take(LockTo::Change).unwrap().unwrap();
        assert!(busy(turn(LockTo::Change)) && busy(take(LockTo::Read)));
        drop(alone);
        assert!(!path.exists());
        let left = |name: &std::ffi::OsStr| name.to_string_lossy().contains(&number.to_string());
        let entries = std::fs::read_dir(FOLDER).unwrap();
        assert!(!entries.flatten().any(|entry| left(&entry.file_name())));
    }
}
