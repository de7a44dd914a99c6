//! Lower devices: claimed once, for all tables on them, as the kernel claims them for device
//! mapper.
//!
//!
//! The file of a loop device is locked as well, as `underseal open` and QEMU lock an image: a claim
//! of the loop device alone leaves the file open to other programs.
//!
//! Processes apart open, lock and close devices. One that hangs holds up no other: no lock is held
//! meanwhile but the device's own.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::thread;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, StatxFlags, makedev, statx};
use rustix::io::Errno;
use underseal_device::FileId;
use underseal_dm::{DeviceNumber, Error, Result};

use super::syscall_helper::{HelperOutcome, HelperWork, SyscallHelpers, nonsense};

/// How long opening a lower device may take: a disk may have to spin up.
const OPENS: Duration = Duration::from_secs(20);
/// How long finding a path, or locking a file, may take.
const FINDS: Duration = Duration::from_secs(10);
/// How long closing the file of a loop device may take before its caller goes on.
const CLOSES: Duration = Duration::from_secs(5);

/// Claims of lower devices, and locks of the files below them.
pub(super) struct Lowers {
    known: Mutex<Known>,
    apart: SyscallHelpers,
    /// Devices and files with which a claim is busy.
    busy: Mutex<BTreeSet<ClaimSubject>>,
    done: Condvar,
}

#[derive(Default)]
struct Known {
    claims: BTreeMap<DeviceNumber, Weak<Claim>>,
    /// By device and inode number: several loop devices lie on one file.
    locks: BTreeMap<FileId, Weak<LockedFile>>,
}

/// A device or a file, with which one claim at a time is busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ClaimSubject {
    Device(DeviceNumber),
    File(FileId),
}

/// A device that no other program can claim as long as this exists.
pub(super) struct Claim {
    number: DeviceNumber,
    /// Opened exclusively; a table server gets a duplicate, so that the claim lasts while one of
    /// them is there.
    file: Option<File>,
    read_only: bool,
    lock: Option<Arc<LockedFile>>,
    /// The devices that it lies on.
    beneath: Vec<DeviceNumber>,
    apart: SyscallHelpers,
}

/// The file of a loop device, which is locked while one of its descriptors is open.
///
/// Each close of a descriptor asks the server of a FUSE mount to flush, and waits for it in a state
/// that no signal ends. Another process could not close this one's descriptor, so a thread does,
/// which holds up no other.
struct LockedFile {
    /// Its name in the log.
    name: String,
    file: Option<File>,
}

impl LockedFile {
    fn new(name: String, file: File) -> Self {
        Self { name, file: Some(file) }
    }

    fn file(&self) -> &File {
        self.file.as_ref().expect("it is taken as the lock ends")
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        let (file, (closed, closes)) = (self.file.take(), mpsc::channel());
        let close = move || {
            drop(file);
            let _ = closed.send(());
        };
        match thread::Builder::new().name("closes".into()).spawn(close) {
            // A lock that is waited for is free when its device is.
            Ok(_) if closes.recv_timeout(CLOSES).is_err() => {
                log::error!("{}, closed: hangs, for {} s by now", self.name, CLOSES.as_secs());
            }
            Ok(_) => {}
            Err(e) => log::error!("no thread to close {}: {e}", self.name),
        }
    }
}

impl Claim {
    /// The device.
    pub(super) fn file(&self) -> &File {
        self.file.as_ref().expect("it is taken as the claim ends")
    }

    /// The file of a loop device, which is locked while a duplicate of this is open.
    pub(super) fn lock(&self) -> Option<&File> {
        self.lock.as_ref().map(|lock| lock.file())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            self.apart.close(self.number, file);
        }
    }
}

/// The devices that claimed devices lie on, as far as they are known.
pub(super) fn beneath(claims: &[Arc<Claim>]) -> Vec<DeviceNumber> {
    claims.iter().flat_map(|claim| claim.beneath.iter().copied()).collect()
}

impl Lowers {
    pub(super) fn new(apart: SyscallHelpers) -> Self {
        Self { known: Mutex::default(), apart, busy: Mutex::default(), done: Condvar::new() }
    }

    /// Finds devices by the names that a table has for them.
    pub(super) fn lookups(&self) -> Lookups<'_> {
        Lookups { apart: &self.apart, known: RefCell::default() }
    }

    /// Claims a device, or shares the claim that there is.
    ///
    /// # Errors
    /// `EBUSY` where others have it, or the file that it lies on; `ETIMEDOUT` where it hangs;
    /// `ENXIO` and others as the system says.
    pub(super) fn claim(&self, number: DeviceNumber, read_only: bool) -> Result<Arc<Claim>> {
        let _turn = self.turn(ClaimSubject::Device(number), number)?;
        let known = self.known().claims.get(&number).and_then(Weak::upgrade);
        if let Some(claim) = known.filter(|claim| read_only || !claim.read_only) {
            if let (Some(file), false) = (claim.lock(), read_only) {
                self.lock(number, file, true)?;
            }
            return Ok(claim);
        }
        let (outcome, fds) = self.apart.run(&HelperWork::Open { number, read_only }, &[], OPENS)?;
        let HelperOutcome::Opened { read_only: opened_read_only, file: below, beneath } = outcome else {
            return Err(nonsense());
        };
        let mut fds = fds.into_iter().map(File::from);
        let file = fds.next().ok_or_else(nonsense)?;
        // From here on it is closed apart, too.
        let apart = self.apart.clone();
        let mut claim =
            Claim { number, file: Some(file), read_only: opened_read_only, lock: None, beneath, apart };
        if let Some((id, exclusive)) = below {
            let file = fds.next().ok_or_else(nonsense)?;
            let file = LockedFile::new(format!("the file of lower device {number}"), file);
            claim.lock = Some(self.lock_below(number, id, file, exclusive, read_only)?);
        }
        let claim = Arc::new(claim);
        let mut known = self.known();
        known.claims.retain(|_, claim| claim.strong_count() > 0);
        known.claims.insert(number, Arc::downgrade(&claim));
        Ok(claim)
    }

    /// Locks the file of a loop device, or shares the lock that there is.
    fn lock_below(
        &self,
        number: DeviceNumber,
        id: FileId,
        file: LockedFile,
        exclusive: bool,
        read_only: bool,
    ) -> Result<Arc<LockedFile>> {
        let _turn = self.turn(ClaimSubject::File(id), number)?;
        let known = self.known().locks.get(&id).and_then(Weak::upgrade);
        if let Some(file) = known {
            if !read_only {
                self.lock(number, file.file(), true)?;
            }
            return Ok(file);
        }
        self.lock(number, file.file(), exclusive)?;
        let file = Arc::new(file);
        let mut known = self.known();
        known.locks.retain(|_, lock| lock.strong_count() > 0);
        known.locks.insert(id, Arc::downgrade(&file));
        Ok(file)
    }

    fn lock(&self, number: DeviceNumber, file: &File, exclusive: bool) -> Result<()> {
        self.apart.run(&HelperWork::Lock { number, exclusive }, &[file.as_fd()], FINDS).map(drop)
    }

    /// Takes the claims and locks of a table server that was another back end's: block devices, and
    /// the files of loop devices.
    pub(super) fn adopt(&self, files: Vec<OwnedFd>) -> Result<Vec<Arc<Claim>>> {
        let mut locks = Vec::new();
        let mut devices = Vec::new();
        for file in files.into_iter().map(File::from) {
            let (kind, id) = id_of(&file).map_err(|e| Error::system("a claimed device", &e))?;
            if let Some(number) = kind {
                devices.push((number, file));
                continue;
            }
            let file = Arc::new(LockedFile::new("the file below a lower device".into(), file));
            let mut known = self.known();
            // Two tables on one file have a lock each, of the same open file. The one that is not
            // needed is closed after the others may continue.
            if known.locks.get(&id).is_none_or(|lock| lock.strong_count() == 0) {
                known.locks.insert(id, Arc::downgrade(&file));
            }
            drop(known);
            locks.push(file);
        }
        let claims = devices.into_iter().map(|(number, file)| self.adopt_one(number, file));
        let claims = claims.collect();
        drop(locks);
        claims
    }

    fn adopt_one(&self, number: DeviceNumber, file: File) -> Result<Arc<Claim>> {
        let _turn = self.turn(ClaimSubject::Device(number), number)?;
        let known = self.known().claims.get(&number).and_then(Weak::upgrade);
        if let Some(claim) = known {
            return Ok(claim);
        }
        let flags =
            rustix::fs::fcntl_getfl(&file).map_err(|e| Error::system("a claimed device", &e.into()))?;
        let read_only = !flags.contains(rustix::fs::OFlags::RDWR);
        let (below, beneath) = match self.apart.run(&HelperWork::Below { number }, &[file.as_fd()], FINDS) {
            Ok((HelperOutcome::Below { file, beneath }, _)) => (file, beneath),
            Ok(_) => return Err(nonsense()),
            Err(e) => {
                log::warn!("{number}: the file that it lies on is not known: {e}");
                (None, Vec::new())
            }
        };
        let mut known = self.known();
        let lock = below.and_then(|id| known.locks.get(&id).and_then(Weak::upgrade));
        let apart = self.apart.clone();
        let claim = Arc::new(Claim { number, file: Some(file), read_only, lock, beneath, apart });
        known.claims.insert(number, Arc::downgrade(&claim));
        Ok(claim)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other claim is busy with this, for as long as opening may take.
    fn turn(&self, subject: ClaimSubject, number: DeviceNumber) -> Result<ClaimTurn<'_>> {
        let busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.done.wait_timeout_while(busy, OPENS, |busy| busy.contains(&subject));
        let (mut busy, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return Err(Error::new(
                Errno::BUSY,
                format!("lower device {number}: it is being opened, and hangs"),
            ));
        }
        busy.insert(subject);
        Ok(ClaimTurn { lowers: self, subject })
    }
}

/// The turn of a claim with a device or a file.
struct ClaimTurn<'l> {
    lowers: &'l Lowers,
    subject: ClaimSubject,
}

impl Drop for ClaimTurn<'_> {
    fn drop(&mut self) {
        self.lowers.busy.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.subject);
        self.lowers.done.notify_all();
    }
}

/// The number of a block device, and the numbers of a file. The kernel asks no file's server for
/// them.
fn id_of(file: &File) -> io::Result<(Option<DeviceNumber>, FileId)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let of = statx(file, c"", flags, StatxFlags::TYPE | StatxFlags::INO)?;
    let is_device = FileType::from_raw_mode(of.stx_mode.into()).is_block_device();
    let number = is_device.then(|| DeviceNumber::new(of.stx_rdev_major, of.stx_rdev_minor));
    let place = makedev(of.stx_dev_major, of.stx_dev_minor);
    Ok((number, (place, of.stx_ino)))
}

/// The numbers of the devices that one table names. Each is looked up once.
pub(super) struct Lookups<'l> {
    apart: &'l SyscallHelpers,
    known: RefCell<BTreeMap<String, Option<DeviceNumber>>>,
}

impl Lookups<'_> {
    /// The number of the block device that a path leads to, or that a text like `7:0` says. None
    /// for a path that leads to no block device.
    pub(super) fn find(&self, name: &str) -> Result<Option<DeviceNumber>> {
        if let Ok(number) = name.parse() {
            return Ok(Some(number));
        }
        if let Some(known) = self.known.borrow().get(name) {
            return Ok(*known);
        }
        let (outcome, _) = self.apart.run(&HelperWork::Find { path: name.into() }, &[], FINDS)?;
        let HelperOutcome::Found { number } = outcome else { return Err(nonsense()) };
        self.known.borrow_mut().insert(name.into(), number);
        Ok(number)
    }
}
