//! `--desktop`: the volume's file system mounted where the user's file manager shows it.
//!
//! ```text
//!   server   FUSE file in $XDG_RUNTIME_DIR/underseal-desktop      (sandboxed)
//!     | "show"  "end"          ^ answers
//!     v                        |
//!   helper   udisksctl: a loop device over that file, its file system mounted; both given back
//! ```
//! The helper is a process of its own, since the server starts no programs once it serves. It is in
//! another process group and ignores the signals that end a session, so that they end the server,
//! which tells it to take everything down while the file still answers. A file system that is in
//! use is served until it is not. The helper takes everything down, too, when the server is gone.

mod helper;
mod udisks;

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, ResolveFlags, Stat, flock, fstat, mkdirat, openat,
    openat2, statat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use underseal_export::control::Name;
use underseal_export::fuse::MountPoint;

pub(crate) use helper::run as help;

use crate::descriptors::standard_only;
use crate::error::{Error, Result};
use crate::exit::Exit;

/// The folder of the files, in the user's runtime folder.
const FOLDER: &str = "underseal-desktop";
/// Names tried for a volume whose name is in use.
const TRIES: u32 = 100;
/// How long a file system that is in use is left alone.
const AGAIN: Duration = Duration::from_secs(1);
/// How long a server that failed serves a file system that is in use.
const PATIENCE: Duration = Duration::from_secs(20);

/// A file for the volume in a folder that no other user can reach.
pub(super) struct DesktopFile {
    folder: OwnedFd,
    /// Locked: the helper of an earlier server removes none that is in use.
    file: OwnedFd,
    path: PathBuf,
    point: MountPoint,
}

/// The helper that shows the file on the desktop.
pub(super) struct Desktop {
    pipes: Mutex<Pipes>,
    path: PathBuf,
    _file: OwnedFd,
}

struct Pipes {
    /// Open as long as this process lives: at its end the helper removes the file.
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    end: Option<DesktopEnd>,
}

/// How a file system has left the desktop.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DesktopEnd {
    TakenDown,
    /// The file system is synced and mounted: nothing else can be done, and the server has to end.
    Left,
}

/// A file system on the desktop, until it is dropped.
pub(super) struct ShownVolume {
    at: String,
    desktop: Arc<Desktop>,
}

impl ShownVolume {
    /// Where it is mounted.
    pub(super) fn at(&self) -> &str {
        &self.at
    }
}

impl Drop for ShownVolume {
    fn drop(&mut self) {
        // The server may be gone already: the helper goes on when this process ends.
        let since = Instant::now();
        while let Err(why) = self.desktop.try_to_take_down() {
            if since.elapsed() >= PATIENCE {
                log::error!("{}: {why}", self.desktop.path.display());
                break;
            }
            thread::sleep(AGAIN);
        }
    }
}

impl DesktopFile {
    /// Makes the file, after a look at whether udisks is there.
    pub(super) fn make(name: &Name) -> Result<Self> {
        udisks::find()?;
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let Some(runtime) = runtime.filter(|path| path.is_absolute()) else {
            let error = Error::usage("XDG_RUNTIME_DIR names no folder: this is no desktop session");
            return Err(error.with_remedy("run it in a desktop session, or pass --fuse PATH"));
        };
        let folder = folder_in(&runtime)?;
        let above = runtime.join(FOLDER);
        for number in 1..=TRIES {
            let name = if number == 1 { name.to_string() } else { format!("{name}-{number}") };
            let path = above.join(&name);
            let failed = |e: Errno| Error::io(&path, "cannot be made", e);
            let file = match file_in(&folder, &name).map_err(failed)? {
                FoundFile::Ours(file) => file,
                FoundFile::InUse => continue,
                // By a server that serves, or by one that was killed: that mount is taken away
                // here.
                FoundFile::Mounted => match MountPoint::new(&path).map(|_| file_in(&folder, &name)) {
                    Ok(Ok(FoundFile::Ours(file))) => file,
                    Ok(Err(e)) => return Err(failed(e)),
                    Ok(_) => continue,
                    Err(e) if e.kind() == underseal_export::ErrorKind::Mounted => continue,
                    Err(e) => return Err(e.into()),
                },
            };
            let point = MountPoint::new(&path)?;
            // The path was looked up once more: it leads into the folder that was checked.
            let found = fstat(point.point().descriptors()[0]).map(|about| identity(&about));
            if found != fstat(&folder).map(|about| identity(&about)) {
                return Err(strange(&above, "it was replaced meanwhile"));
            }
            return Ok(Self { folder, file, path: point.path().to_owned(), point });
        }
        Err(Error::new(Exit::InUse, format!("{}: all names are in use", above.display())))
    }

    pub(super) fn point(&self) -> &MountPoint {
        &self.point
    }

    /// Starts the helper: before there are keys.
    pub(super) fn helper(self) -> Result<(MountPoint, Desktop)> {
        let failed = |e: std::io::Error| Error::new(Exit::Failed, "no process for --desktop").because(&e);
        let mut command = Command::new("/proc/self/exe");
        command.arg0("underseal").arg("desktop-helper").process_group(0);
        // The file is removed from the folder that was checked.
        command.current_dir(format!("/proc/self/fd/{}", self.folder.as_raw_fd()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = standard_only(&mut command).spawn().map_err(failed)?;
        let (Some(orders), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::new(Exit::Failed, "no pipe to the process for --desktop"));
        };
        let pipes = Mutex::new(Pipes { orders, answers: BufReader::new(answers), end: None });
        Ok((self.point, Desktop { pipes, path: self.path, _file: self.file }))
    }
}

impl Desktop {
    /// Shows the file, which is served.
    pub(super) fn show(self: Arc<Self>, size: u64, read_only: bool) -> Result<ShownVolume> {
        let access = if read_only { "read-only" } else { "writable" };
        let order = format!("show {size} {access} {}", self.path.display());
        let answer = self.ask(&mut self.lock(), &order);
        match answer.split_once(' ') {
            Some(("mounted", at)) => Ok(ShownVolume { at: at.to_owned(), desktop: self }),
            Some(("failed", why)) => {
                let remedy = if why.contains("Timed out waiting") && !may_allow_root() {
                    "write a line `user_allow_other` into /etc/fuse.conf: udisks looks at the file as root"
                } else if why.contains("Not authorized") {
                    "log in at the machine itself, have polkit allow it, or pass --fuse PATH"
                } else {
                    "pass --fuse PATH and mount it by hand, to see the volume without udisks"
                };
                Err(Error::new(Exit::Failed, format!("--desktop: {why}")).with_remedy(remedy))
            }
            _ => Err(Error::new(Exit::Failed, "--desktop: the process that asks udisks has ended")),
        }
    }

    /// Takes everything down, while the file is served still: waits until the file system is not
    /// in use. Returns early where the helper has ended.
    pub(super) fn take_down(&self) -> DesktopEnd {
        let mut told = String::new();
        loop {
            let why = match self.try_to_take_down() {
                Ok(end) => return end,
                Err(why) => why,
            };
            if told != why {
                let path = self.path.display();
                log::warn!("{path}: {why}; it is served until that ends, or until another signal");
                told = why;
            }
            thread::sleep(AGAIN);
        }
    }

    /// Takes everything down, or returns why that cannot be done now. Where it is done, or the
    /// helper has ended, there is nothing left to do.
    fn try_to_take_down(&self) -> std::result::Result<DesktopEnd, String> {
        let mut pipes = self.lock();
        if let Some(end) = pipes.end {
            return Ok(end);
        }
        let answer = self.ask(&mut pipes, "end");
        let end = match answer.strip_prefix("left: ") {
            Some(why) => {
                log::error!("{}: {why}", self.path.display());
                DesktopEnd::Left
            }
            None if matches!(&*answer, "ended" | "") => DesktopEnd::TakenDown,
            None => return Err(answer),
        };
        Ok(*pipes.end.insert(end))
    }

    fn lock(&self) -> MutexGuard<'_, Pipes> {
        self.pipes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to an order; nothing where the helper has ended.
    fn ask(&self, pipes: &mut Pipes, order: &str) -> String {
        let mut answer = String::new();
        let told = writeln!(pipes.orders, "{order}").and_then(|()| pipes.answers.read_line(&mut answer));
        if !matches!(told, Ok(1..)) {
            let path = self.path.display();
            log::error!("{path}: the process that asks udisks has ended: unmount the file system by hand");
        }
        answer.trim_end().to_owned()
    }
}

/// Returns whether this user may let root use a mount. udisks, which is root, asks the kernel about
/// the loop device (LOOP_GET_STATUS64); the kernel then asks the file on behalf of udisks.
pub(super) fn may_allow_root() -> bool {
    let lines = std::fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    geteuid().is_root() || lines.lines().any(|line| line.trim() == "user_allow_other")
}

/// The folder for the files, by descriptors: of this user, closed to others, no link, and nothing
/// mounted over it.
fn folder_in(runtime: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let above = openat(CWD, runtime, flags, Mode::empty());
    let above = above.map_err(|e| strange(runtime, &e.to_string()))?;
    check(&above, runtime)?;
    let path = runtime.join(FOLDER);
    match mkdirat(&above, FOLDER, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(Error::io(&path, "cannot be made", e)),
    }
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let folder = match openat2(&above, FOLDER, flags.difference(OFlags::NOFOLLOW), Mode::empty(), how) {
        Err(Errno::XDEV) => return Err(strange(&path, "something is mounted there")),
        Err(Errno::LOOP) => return Err(strange(&path, "it is a symbolic link")),
        folder => folder.map_err(|e| strange(&path, &e.to_string()))?,
    };
    check(&folder, &path)?;
    Ok(folder)
}

fn check(folder: &OwnedFd, path: &Path) -> Result<()> {
    let about = fstat(folder).map_err(|e| strange(path, &e.to_string()))?;
    if about.st_uid != geteuid().as_raw() {
        return Err(strange(path, "it belongs to another user"));
    }
    if about.st_mode & 0o077 != 0 {
        return Err(strange(path, "others may enter it").with_remedy("make it your own alone: chmod 700"));
    }
    Ok(())
}

fn strange(path: &Path, why: &str) -> Error {
    let error = Error::usage(format!("{}: --desktop does not use this folder: {why}", path.display()));
    error.with_remedy("run it in a desktop session of this user, or pass --fuse PATH")
}

/// The file that has a name in the folder.
enum FoundFile {
    /// An empty file, new or of an earlier server; locked.
    Ours(OwnedFd),
    Mounted,
    InUse,
}

/// Makes an empty file, or finds one that an earlier server has left.
fn file_in(folder: &OwnedFd, name: &str) -> rustix::io::Result<FoundFile> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    for _ in 0..20 {
        let file = match openat(folder, name, flags, Mode::RUSR | Mode::WUSR) {
            Err(Errno::NOTCONN) => return Ok(FoundFile::Mounted),
            file => file?,
        };
        let about = fstat(&file)?;
        if about.st_dev != fstat(folder)?.st_dev {
            return Ok(FoundFile::Mounted);
        }
        let is_file = FileType::from_raw_mode(about.st_mode) == FileType::RegularFile;
        if !is_file || about.st_uid != geteuid().as_raw() || about.st_nlink > 1 || about.st_size > 0 {
            return Err(Errno::EXIST);
        }
        let is_locked = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        let is_there = |there: Stat| identity(&there) == identity(&about);
        if is_locked && statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(is_there) {
            return Ok(FoundFile::Ours(file));
        }
        // The helper of a server that has just ended removes it.
        thread::sleep(Duration::from_millis(50));
    }
    Ok(FoundFile::InUse)
}

fn identity(about: &Stat) -> (u64, u64) {
    (about.st_dev, about.st_ino)
}
