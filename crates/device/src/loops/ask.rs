//! The questions to loop devices, asked by a process that may wait forever.
//!
//! The kernel asks a server for the numbers of a FUSE file below a loop device, or of a file on
//! another machine. A process that waits for such an answer may not end even by SIGKILL, and a
//! thread would keep its process from ending. So a child asks, which has no descriptors, no lock
//! and no folder of this process, and is left behind when no answer comes.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::thread;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, open, statx};
use rustix::io::{Errno, write};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{FileId, loop_file_id};

/// A loop device and the path of its file, by the kernel's text.
pub(super) struct BoundLoop {
    pub(super) node: CString,
    pub(super) path: CString,
}

/// A child's report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Report {
    /// The next device is open and free for questions; the file below it is asked now.
    AsksFile,
    /// The file has no number that this user may learn.
    Unknown,
    Is(FileId),
    /// The device is closed again.
    Closed,
}

const REPORT: usize = 24;

/// A child that asks one device after the other.
pub(super) struct LoopSurvey {
    child: libc::pid_t,
    /// The child itself. Its number may be another's once it has ended, in a program that ignores
    /// the end of children.
    killed_by: Option<OwnedFd>,
    reports: PipeReader,
    /// The device has taken the question, and asks its file.
    pub(super) asks_file: bool,
    /// The device that answered last is being closed, which may wait for its file.
    pub(super) closes: bool,
}

impl LoopSurvey {
    /// Starts to ask.
    pub(super) fn start(devices: &[BoundLoop]) -> io::Result<Self> {
        let (reports, to) = io::pipe()?;
        // SAFETY: the child makes system calls only, and neither allocates nor returns from here.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                if alone(&to) {
                    let _ = ask(devices);
                }
                // SAFETY: it ends the child without exit handlers.
                unsafe { libc::_exit(0) }
            }
            child => {
                let number = Pid::from_raw(child);
                let killed_by = number.and_then(|number| pidfd_open(number, PidfdFlags::empty()).ok());
                Ok(Self { child, killed_by, reports, asks_file: false, closes: false })
            }
        }
    }

    /// Returns the next device's file, and `None` when no answer came in time.
    pub(super) fn answer(&mut self, until: Instant) -> Option<Option<FileId>> {
        loop {
            match self.report(until)? {
                Report::AsksFile => self.asks_file = true,
                Report::Unknown => break self.answered(None),
                Report::Is(id) => break self.answered(Some(id)),
                Report::Closed => self.closes = false,
            }
        }
    }

    fn answered(&mut self, id: Option<FileId>) -> Option<Option<FileId>> {
        (self.asks_file, self.closes) = (false, true);
        Some(id)
    }

    fn report(&mut self, until: Instant) -> Option<Report> {
        loop {
            let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok()?;
            match poll(&mut [PollFd::new(&self.reports, PollFlags::IN)], Some(&left)) {
                Ok(0) => return None,
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
        let mut bytes = [0; REPORT];
        self.reports.read_exact(&mut bytes).ok()?;
        Report::of(bytes)
    }
}

impl Drop for LoopSurvey {
    fn drop(&mut self) {
        let child = self.child;
        if let Some(fd) = &self.killed_by {
            // The child may have ended by itself.
            let _ = pidfd_send_signal(fd, Signal::KILL);
        }
        // SAFETY: the call has no memory to write to.
        let wait = move |how| unsafe { libc::waitpid(child, ptr::null_mut(), how) };
        // A child that the signal does not end is waited for in the background.
        if wait(libc::WNOHANG) == 0 {
            let _ = thread::Builder::new().name("loop-question".into()).spawn(move || wait(0));
        }
    }
}

impl Report {
    fn of(bytes: [u8; REPORT]) -> Option<Self> {
        let (words, []) = bytes.as_chunks::<8>() else { return None };
        match [words[0], words[1], words[2]].map(u64::from_ne_bytes) {
            [0, ..] => Some(Self::AsksFile),
            [1, ..] => Some(Self::Unknown),
            [2, device, inode] => Some(Self::Is((device, inode))),
            [3, ..] => Some(Self::Closed),
            _ => None,
        }
    }

    fn bytes(self) -> [u8; REPORT] {
        let words = match self {
            Self::AsksFile => [0, 0, 0],
            Self::Unknown => [1, 0, 0],
            Self::Is((device, inode)) => [2, device, inode],
            Self::Closed => [3, 0, 0],
        };
        let mut bytes = [0; REPORT];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

/// Gives up all that the child has of its parent, but for the pipe, which becomes descriptor 0.
fn alone(to: &PipeWriter) -> bool {
    let mut all = MaybeUninit::uninit();
    // SAFETY: the calls change this process only; `sigfillset` fills the set that the next one
    // reads. The parent's handlers would run here otherwise.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), ptr::null_mut());
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::chdir(c"/".as_ptr()) != 0 || libc::dup2(to.as_raw_fd(), 0) != 0 {
            return false;
        }
        if libc::syscall(libc::SYS_close_range, 1, libc::c_uint::MAX, 0) != 0 {
            // Linux before 5.9.
            for number in 1..1024 {
                libc::close(number);
            }
        }
    }
    true
}

/// The child's whole work.
fn ask(devices: &[BoundLoop]) -> rustix::io::Result<()> {
    // SAFETY: `alone` has made it the pipe, and nothing closes it.
    let to = unsafe { BorrowedFd::borrow_raw(0) };
    for device in devices {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let device_open = open(&*device.node, flags, Mode::empty()).ok().map(File::from);
        device_open.as_ref().map(wait_until_free);
        write(to, &Report::AsksFile.bytes())?;
        let id = device_open.as_ref().and_then(loop_file_id).or_else(|| id_at(&device.path));
        write(to, &id.map_or(Report::Unknown, Report::Is).bytes())?;
        // Closed before the next one is asked, which may keep the child waiting: a device that is
        // open cannot be removed.
        drop(device_open);
        write(to, &Report::Closed.bytes())?;
    }
    Ok(())
}

/// Waits for the device's lock, which another process may hold while the device is set up or
/// changed: the driver takes it before it refuses a command that it does not know.
fn wait_until_free(device: &File) {
    const UNKNOWN: libc::Ioctl = 0x4c7f;
    // SAFETY: the driver refuses the command, and has no memory to write to.
    unsafe { libc::ioctl(device.as_raw_fd(), UNKNOWN, 0) };
}

/// The numbers of the file at a path, from the kernel's memory where that has them.
pub(super) fn id_at(path: &CStr) -> Option<FileId> {
    let flags = AtFlags::STATX_DONT_SYNC;
    let is_absolute = path.to_bytes().first() == Some(&b'/');
    let of = statx(CWD, path, flags, StatxFlags::INO).ok().filter(|_| is_absolute)?;
    Some((libc::makedev(of.stx_dev_major, of.stx_dev_minor), of.stx_ino))
}
