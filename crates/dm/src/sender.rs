//! The sender of each request. Connections are inherited, also by processes that have dropped
//! root's rights since: the kernel checks `CAP_SYS_ADMIN` at each ioctl, not when the node is
//! opened.

#![expect(unsafe_code, reason = "the kernel's word on who is connected")]

use std::fs;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use rustix::net::sockopt::set_socket_passcred;

/// The room for the sender's credentials, without any descriptors: the kernel drops descriptors in
/// a request.
// SAFETY: a computation.
const ROOM: usize = unsafe { libc::CMSG_SPACE(CREDENTIALS) } as usize;
#[expect(clippy::cast_possible_truncation, reason = "twelve bytes")]
const CREDENTIALS: u32 = size_of::<libc::ucred>() as u32;

/// A control message, aligned like its header.
#[repr(C, align(8))]
struct Control([u8; ROOM]);

/// Reads bytes that were sent with the rights of this process's user, and fails with `EPERM` for
/// other bytes.
pub(crate) struct RequestReader<'s>(&'s UnixStream);

impl<'s> RequestReader<'s> {
    /// Requests the sender of each byte from the kernel.
    pub(crate) fn of(socket: &'s UnixStream) -> io::Result<Self> {
        set_socket_passcred(socket, true)?;
        Ok(Self(socket))
    }
}

impl Read for RequestReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let (n, sender) = receive(self.0, into)?;
        if n > 0 && !sender.is_some_and(may_ask) {
            let uid = sender.map_or("unknown".to_owned(), |sender| sender.uid.to_string());
            log::warn!("a request of user {uid} is refused: it needs the rights of this back end's user");
            return Err(rustix::io::Errno::PERM.into());
        }
        Ok(n)
    }
}

/// Returns true when the sender of a request has the right to it: this process's user, and for root
/// also `CAP_SYS_ADMIN` in its user namespace, as in the kernel. A sender that has ended has no
/// right.
fn may_ask(sender: libc::ucred) -> bool {
    let own = rustix::process::geteuid().as_raw();
    if sender.uid != own {
        return false;
    }
    own != 0 || has_capability(sender.pid).unwrap_or(false)
}

/// Returns a thread's present effective user; `None` for a thread that has ended.
pub fn user_of_thread(thread: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let user = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    user.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Returns true when a thread has the right to requests, by its present effective user and
/// capabilities.
pub fn thread_may_ask(thread: u32) -> bool {
    let (Some(uid), Ok(pid)) = (user_of_thread(thread), thread.try_into()) else { return false };
    may_ask(libc::ucred { pid, uid, gid: 0 })
}

fn has_capability(pid: libc::pid_t) -> io::Result<bool> {
    const SYS_ADMIN: u32 = 21;
    let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/user"));
    if namespace(&pid.to_string())? != namespace("self")? {
        return Ok(false);
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    Ok(effective.is_some_and(|set| set >> SYS_ADMIN & 1 == 1))
}

/// Receives bytes of one sender, with the sender. The kernel keeps bytes of different senders
/// apart.
fn receive(socket: &UnixStream, into: &mut [u8]) -> io::Result<(usize, Option<libc::ucred>)> {
    let mut bytes = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let mut control = Control([0; ROOM]);
    // SAFETY: zeros are an empty message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut bytes, 1);
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = ROOM as _;
    // SAFETY: the kernel writes into both buffers, which have the lengths in the message.
    let n = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has filled the message in: the header is in the control buffer, or is
    // null.
    let sender = unsafe {
        libc::CMSG_FIRSTHDR(&raw const message).as_ref().and_then(|head| {
            let is_whole = head.cmsg_len >= libc::CMSG_LEN(CREDENTIALS) as usize;
            let is_sender = (head.cmsg_level, head.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_CREDENTIALS);
            let data = libc::CMSG_DATA(std::ptr::from_ref(head)).cast::<libc::ucred>();
            (is_whole && is_sender).then(|| data.read_unaligned())
        })
    };
    Ok((n, sender))
}
