//! A system call that the kernel asks about: its caller, the caller's memory, the answer.

#![expect(unsafe_code, reason = "seccomp's notices")]

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use underseal_dm::supervised::CallerMemory;

const PAGE: u64 = 4096;

/// A call that waits for its answer. A call without an answer is left to the kernel.
pub(super) struct Notice {
    listener: Arc<OwnedFd>,
    id: u64,
    /// The thread that makes the call.
    pub(super) thread: u32,
    pub(super) number: i64,
    pub(super) arguments: [u64; 6],
    answered: bool,
}

impl Notice {
    /// Returns the next call; `None` for one whose caller has ended.
    pub(super) fn receive(listener: &Arc<OwnedFd>) -> io::Result<Option<Self>> {
        // SAFETY: zeros are a valid notification, and the form that the kernel requires of the
        // memory.
        let mut notice: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes the structure during the call.
        let received =
            unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notice) };
        if received < 0 {
            let e = io::Error::last_os_error();
            return match Errno::from_io_error(&e) {
                Some(Errno::NOENT | Errno::INTR) => Ok(None),
                _ => Err(e),
            };
        }
        let libc::seccomp_notif { id, pid, data, .. } = notice;
        Ok(Some(Self {
            listener: listener.clone(),
            id,
            thread: pid,
            number: data.nr.into(),
            arguments: data.args,
            answered: false,
        }))
    }

    /// Returns true while the caller waits; memory read before then belongs to the caller.
    pub(super) fn waits(&self) -> bool {
        // SAFETY: the kernel reads the number during the call.
        let valid = unsafe {
            libc::ioctl(self.listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const self.id)
        };
        valid == 0
    }

    /// Duplicates the caller's descriptor of this number, if it is a socket's. Each close of
    /// another file may wait for the file's server.
    pub(super) fn socket(&self, number: u64) -> Option<OwnedFd> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.thread)).ok()?;
        let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()?;
        let number = i32::try_from(number).ok()?;
        let name = fs::read_link(format!("/proc/{process}/fd/{number}")).ok()?;
        if !name.as_os_str().as_encoded_bytes().starts_with(b"socket:") {
            return None;
        }
        let process = pidfd_open(Pid::from_raw(process)?, PidfdFlags::empty()).ok()?;
        pidfd_getfd(process, number, PidfdGetfdFlags::empty()).ok()
    }

    /// Answers with a value, or an error number.
    pub(super) fn answer(mut self, with: Result<i64, Errno>) {
        let (val, error) = match with {
            Ok(val) => (val, 0),
            Err(errno) => (0, -errno.raw_os_error()),
        };
        self.send(&libc::seccomp_notif_resp { id: self.id, val, error, flags: 0 });
    }

    /// Answers with a descriptor, which the caller gets as one of its descriptors.
    pub(super) fn answer_with(mut self, fd: BorrowedFd<'_>, close_on_exec: bool) {
        let flags = if close_on_exec { libc::O_CLOEXEC.cast_unsigned() } else { 0 };
        let srcfd = fd.as_raw_fd().cast_unsigned();
        let send = u32::try_from(libc::SECCOMP_ADDFD_FLAG_SEND).unwrap_or_default();
        let added =
            libc::seccomp_notif_addfd { id: self.id, flags: send, srcfd, newfd: 0, newfd_flags: flags };
        let listener = self.listener.as_raw_fd();
        // SAFETY: the kernel reads the structure during the call.
        let done = unsafe { libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw const added) };
        if done >= 0 {
            self.answered = true;
            return;
        }
        let e = io::Error::last_os_error();
        let errno = Errno::from_io_error(&e).unwrap_or(Errno::MFILE);
        self.answer(Err(errno));
    }

    fn send(&mut self, answer: &libc::seccomp_notif_resp) {
        self.answered = true;
        let listener = self.listener.as_fd().as_raw_fd();
        // SAFETY: the kernel reads the structure during the call. A caller that has ended needs no
        // answer.
        unsafe { libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_SEND, std::ptr::from_ref(answer)) };
    }
}

impl CallerMemory for Notice {
    fn read_some(&self, at: u64, into: &mut [u8]) -> usize {
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        // The kernel reads whole parts only: nothing of a part that ends in unmapped memory.
        let first = usize::try_from(PAGE - at % PAGE).unwrap_or(into.len()).min(into.len());
        let part = |at: u64, len| libc::iovec { iov_base: at as *mut libc::c_void, iov_len: len };
        let remote = [part(at, first), part(at.saturating_add(first as u64), into.len() - first)];
        // SAFETY: the kernel writes at most the local bytes, and checks that the remote ones are
        // mapped.
        let n = unsafe {
            libc::process_vm_readv(self.thread.cast_signed(), &raw const local, 1, remote.as_ptr(), 2, 0)
        };
        usize::try_from(n).unwrap_or(0)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let remote = libc::iovec { iov_base: at as *mut libc::c_void, iov_len: bytes.len() };
        // SAFETY: the kernel reads the local bytes, and checks that the remote ones are mapped.
        let n = unsafe {
            let thread = self.thread.cast_signed();
            libc::process_vm_writev(thread, &raw const local, 1, &raw const remote, 1, 0)
        };
        if usize::try_from(n) == Ok(bytes.len()) { Ok(()) } else { Err(Errno::FAULT) }
    }
}

impl Drop for Notice {
    fn drop(&mut self) {
        if !self.answered {
            let flags = u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE).unwrap_or(1);
            self.send(&libc::seccomp_notif_resp { id: self.id, val: 0, error: 0, flags });
        }
    }
}
