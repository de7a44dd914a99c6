//! Rings that the helper makes for the sandboxed server: seccomp sees no operation of a ring, so a
//! ring made by the server itself would bypass the filters.
//!
//! ```text
//!   server                                    helper
//!   a message: ring parameters      ---->     makes the ring, disabled, with its restrictions
//!                                   <----     errno, and Linux's `struct io_uring_params`
//!   io_uring_setup(2), which waits  ---->     answers with the ring's descriptor (seccomp_unotify)
//!   maps the ring, and enables it
//! ```
//!
//! A socket carries no descriptor of a ring (Linux 6.7); the answer to a system call does. Linux
//! notifies the helper of every io_uring_setup(2) of the server, whose arguments are never read:
//! without a message before it, it fails with `EPERM`. A ring belongs to the thread that enables
//! it, and takes no other restrictions than its first.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{PoisonError, RwLock};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::files::{self, send};
use super::{HELPER, HelperSocket};

/// A server's request for a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingRequest {
    /// The number of operations at a time.
    pub entries: u32,
    /// The number of completions that it stores; larger than `entries`.
    pub completions: u32,
    /// Only the thread that enables the ring uses it.
    pub single_issuer: bool,
    /// Whether the ring sends drivers their own commands. The helper's rings may do so only if
    /// [`will_give_commands`] came before the sandbox.
    pub commands: bool,
}

/// A finished ring.
#[derive(Debug)]
pub struct RingMade {
    /// The ring, disabled and with its restrictions.
    pub fd: OwnedFd,
    /// `struct io_uring_params`, as filled in by the kernel.
    pub parameters: Vec<u8>,
}

/// A function that makes a ring in the helper, and decides on the ring's restrictions.
pub type RingMaker = fn(RingRequest) -> io::Result<RingMade>;

/// The longest message: an opcode byte, and a request.
const LONGEST: usize = 11;
/// The length of the longest answer: an errno, and `struct io_uring_params`, which has 120 bytes.
const LONGEST_ANSWER: usize = 4 + 256;

/// True when the helper makes this process's rings. Locked for reading while a ring is made, so
/// that it does not change meanwhile.
static BY_HELPER: RwLock<bool> = RwLock::new(false);

/// Makes a ring: by `itself` until the sandbox, later with `of_helper` and the helper's ring.
///
/// # Errors
/// Errors of `itself` or `of_helper`, and `BrokenPipe` when the helper is gone.
pub fn ring<T>(
    request: RingRequest,
    itself: impl FnOnce() -> io::Result<T>,
    of_helper: impl FnOnce(RingMade) -> io::Result<T>,
) -> io::Result<T> {
    let by_helper = BY_HELPER.read().unwrap_or_else(PoisonError::into_inner);
    if *by_helper { of_helper(ask_for(request)?) } else { itself() }
}

/// Tells the helper, before the sandbox, that rings of this process send drivers their own
/// commands.
pub fn will_give_commands() {
    if let Some(socket) = HELPER.get().and_then(|helper| helper.rings.as_ref()) {
        let mut socket = socket.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(e) = exchange(&mut socket, b"c", None, &mut [0; LONGEST_ANSWER]) {
            log::warn!("later rings cannot send commands to drivers: {e}");
        }
    }
}

fn gone(_: Errno) -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the sandbox's helper process is gone")
}

fn ask_for(request: RingRequest) -> io::Result<RingMade> {
    let helper = HELPER.get().and_then(|helper| helper.rings.as_ref()).ok_or(Errno::PERM)?;
    // Locked until the ring is here: the helper keeps one at a time.
    let mut socket = helper.lock().unwrap_or_else(PoisonError::into_inner);
    let mut message = [0; LONGEST];
    message[0] = b'r';
    message[1..5].copy_from_slice(&request.entries.to_ne_bytes());
    message[5..9].copy_from_slice(&request.completions.to_ne_bytes());
    message[9..].copy_from_slice(&[request.single_issuer.into(), request.commands.into()]);
    let mut answer = [0; LONGEST_ANSWER];
    let len = exchange(&mut socket, &message, None, &mut answer)?;
    let fd = loop {
        // SAFETY: the call is not made: the helper answers it, and the arguments are never read.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 0, std::ptr::null::<u8>()) };
        match i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            fd => break fd?,
        }
    };
    // SAFETY: the descriptor was installed for this thread, and no other code knows it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    Ok(RingMade { fd, parameters: answer[4..len].to_vec() })
}

/// Sends a message, with a descriptor if any, and receives the answer. Returns the answer's length.
fn exchange(
    socket: &mut HelperSocket,
    message: &[u8],
    fd: Option<BorrowedFd<'_>>,
    answer: &mut [u8],
) -> io::Result<usize> {
    let (len, _) = socket.exchange(&[message], fd, answer)?;
    let errno = answer.get(..4).filter(|_| len >= 4).and_then(|errno| errno.try_into().ok());
    match i32::from_ne_bytes(errno.ok_or(Errno::PIPE).map_err(gone)?) {
        0 => Ok(len),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Makes the helper the only source of rings for every thread of this process.
///
/// Returns the reason when the process keeps making its rings.
pub(crate) fn hand_over() -> Result<(), String> {
    let helper = HELPER.get().and_then(|helper| helper.rings.as_ref()).ok_or("there is no helper")?;
    let mut by_helper = BY_HELPER.write().unwrap_or_else(PoisonError::into_inner);
    let listener = listener().map_err(|e| match e.raw_os_error() {
        Some(libc::EBUSY) => "another program is told of this one's system calls already".into(),
        Some(libc::EINVAL) => "this kernel, before 5.9, cannot send system calls to another process".into(),
        _ => format!("the kernel does not send system calls to the helper: {e}"),
    })?;
    // This step is final: if the listener fails, the server still makes no ring itself.
    *by_helper = true;
    let mut socket = helper.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(e) = exchange(&mut socket, b"!", Some(listener.as_fd()), &mut [0; LONGEST_ANSWER]) {
        log::error!("no ring can be made any more, so no client can connect: {e}");
    }
    Ok(())
}

/// Makes Linux notify the holder of the descriptor of every io_uring_setup(2) of every thread of
/// this process.
fn listener() -> io::Result<OwnedFd> {
    #[expect(clippy::cast_possible_truncation, reason = "codes of 16 bits")]
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let program = [
        // The number of the call, which is the first field of `struct seccomp_data`. The other
        // filters check the architecture.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        #[expect(clippy::cast_possible_truncation, reason = "425 everywhere")]
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_io_uring_setup as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_USER_NOTIF),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: program.as_ptr().cast_mut() };
    // SAFETY: the option takes numbers. The filter needs it if the thread is not root's.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    let set = |flags: libc::c_ulong| {
        // SAFETY: the kernel reads the program, and keeps a copy.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::c_ulong::from(libc::SECCOMP_SET_MODE_FILTER),
                flags,
                &raw const program,
            )
        };
        match i32::try_from(fd) {
            // SAFETY: the kernel has just made it.
            Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let all = libc::SECCOMP_FILTER_FLAG_TSYNC
        | libc::SECCOMP_FILTER_FLAG_TSYNC_ESRCH
        | libc::SECCOMP_FILTER_FLAG_NEW_LISTENER
        | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    // A thread that waits for the helper is interrupted only by its end (Linux 5.19): not by a
    // signal, which would repeat the call.
    set(all | WAIT_KILLABLE_RECV).or_else(|_| set(all))
}

/// `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV`.
const WAIT_KILLABLE_RECV: libc::c_ulong = 1 << 5;

/// The helper's state of rings.
#[derive(Default)]
struct Rings {
    /// True when rings may send drivers commands.
    commands: bool,
    /// The descriptor of Linux's notifications, from the sandbox on.
    listener: Option<OwnedFd>,
    /// A ring that is ready for the server's call.
    made: Option<OwnedFd>,
}

/// Answers until the server has ended.
pub(super) fn serve(socket: &OwnedFd, make: RingMaker) -> io::Result<()> {
    let mut rings = Rings::default();
    let mut message = [0; LONGEST];
    loop {
        let mut fds = vec![PollFd::new(socket, PollFlags::IN)];
        fds.extend(rings.listener.as_ref().map(|listener| PollFd::new(listener, PollFlags::IN)));
        // A ring that ends interrupts the poll as well, since Linux cleans it up in the thread that
        // made it.
        rustix::io::retry_on_intr(|| poll(&mut fds, None))?;
        let told = fds[0].revents();
        let asked = fds.get(1).map_or(PollFlags::empty(), PollFd::revents);
        if asked.contains(PollFlags::IN) {
            rings.answer_kernel();
        } else if asked.intersects(PollFlags::HUP | PollFlags::NVAL) {
            // An error alone comes for a poll that was interrupted, and passes.
            rings.listener = None;
        }
        if told.is_empty() {
            continue;
        }
        let (len, fd) = files::receive(socket.as_fd(), &mut message)?;
        if len == 0 {
            return Ok(());
        }
        let answer = rings.answer(&message[..len], fd, make);
        let errno = answer.as_ref().map_or_else(|e| e.raw_os_error().unwrap_or(libc::EIO), |_| 0);
        send(socket, &[&errno.to_ne_bytes(), &answer.unwrap_or_default()], None)?;
    }
}

impl Rings {
    fn answer(&mut self, message: &[u8], fd: Option<OwnedFd>, make: RingMaker) -> io::Result<Vec<u8>> {
        match *message {
            [b'c' | b'!'] if self.listener.is_some() => Err(Errno::PERM.into()),
            [b'c'] => {
                self.commands = true;
                Ok(Vec::new())
            }
            [b'!'] => {
                self.listener = Some(fd.ok_or(Errno::INVAL)?);
                Ok(Vec::new())
            }
            [b'r', a, b, c, d, e, f, g, h, single_issuer, commands] => {
                let request = RingRequest {
                    entries: u32::from_ne_bytes([a, b, c, d]),
                    completions: u32::from_ne_bytes([e, f, g, h]),
                    single_issuer: single_issuer != 0,
                    commands: commands != 0 && self.commands,
                };
                let RingMade { fd, parameters } = make(request)?;
                self.made = Some(fd);
                Ok(parameters)
            }
            _ => Err(Errno::INVAL.into()),
        }
    }

    /// Answers the kernel's request for a thread of the server.
    fn answer_kernel(&mut self) {
        let Some(listener) = &self.listener else { return };
        let listener = listener.as_raw_fd();
        // SAFETY: numbers, of which zeros are a value.
        let mut asked: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the structure that the request is made for. After an error the thread has ended
        // meanwhile, or was interrupted.
        if unsafe { libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut asked) } != 0 {
            return;
        }
        let mut errno = libc::EPERM;
        if let Some(made) = &self.made {
            match put(listener, asked.id, made) {
                Ok(()) => {
                    self.made = None;
                    return;
                }
                // The thread repeats its call.
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return,
                Err(e) => errno = e.raw_os_error().unwrap_or(libc::EIO),
            }
        }
        respond(listener, asked.id, 0, -errno);
    }
}

/// Installs the descriptor as the call's result, in two steps. In one step
/// (`SECCOMP_ADDFD_FLAG_SEND`) the result would be 0 when this thread is interrupted; and Linux
/// interrupts the thread that made a ring when the ring ends.
fn put(listener: i32, id: u64, fd: &OwnedFd) -> io::Result<()> {
    let number = |fd: i32| fd.cast_unsigned();
    let added = libc::seccomp_notif_addfd {
        id,
        flags: 0,
        srcfd: number(fd.as_raw_fd()),
        newfd: 0,
        newfd_flags: number(libc::O_CLOEXEC),
    };
    loop {
        // SAFETY: the structure that the request is made for, which the kernel reads.
        match unsafe { libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw const added) } {
            -1 => match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::Interrupted => {}
                e => return Err(e),
            },
            fd => {
                respond(listener, id, fd.into(), 0);
                return Ok(());
            }
        }
    }
}

fn respond(listener: i32, id: u64, val: i64, error: i32) {
    let response = libc::seccomp_notif_resp { id, val, error, flags: 0 };
    // SAFETY: the structure that the request is made for. A thread that has ended needs no answer.
    unsafe { libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const response) };
}
