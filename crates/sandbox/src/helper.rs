//! A process that performs for a sandboxed server a fixed list of operations that the sandbox
//! forbids.
//!
//! The server forks the helper before it has threads and keys, lists the files and servers that may
//! be requested later, and seals that list when it enters the sandbox. The helper ends with the
//! server, for any cause of the server's end, and ends the mount's requests when the server was
//! killed and cannot end (`helper/killed.rs`).
//!
//! ```text
//!   server   one byte: at once, or lazily   ---->   helper    unmounts the one listed mount
//!            errno, length, text            <----
//!            a message: the operation       ---->             removes a file, opens the log again,
//!            errno, a descriptor            <----             connects to a server: only those of
//!                                                             the sealed list   helper/files.rs
//!            a message: ring parameters     ---->             makes a restricted ring
//!                                                                               helper/rings.rs
//! ```
//!
//! Unmounting takes root's `CAP_SYS_ADMIN`, or for a user a program with more privileges than its
//! caller, fusermount3. Each socket has a thread in the helper, as unmounting writes back dirty
//! data, which may block.

pub(crate) mod files;
mod killed;
pub(crate) mod rings;

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::thread::CapabilitySet;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};

use self::killed::KilledWatch;
use self::rings::RingMaker;
use crate::capabilities;
use crate::threads::{self, Steps};

/// The server's end of the helper's sockets.
#[derive(Debug)]
pub struct Helper {
    mount: Mutex<UnixStream>,
    files: Mutex<HelperSocket>,
    rings: Option<Mutex<HelperSocket>>,
    /// True once a request about the mount had no answer.
    is_silent: AtomicBool,
}

/// A socket for messages to the helper.
#[derive(Debug)]
struct HelperSocket {
    fd: OwnedFd,
    /// True once a message had no answer: a late one would be taken for that to another message.
    is_silent: bool,
}

static HELPER: OnceLock<Helper> = OnceLock::new();

/// The part of root's capabilities that the helper keeps: to remove files in another user's folder
/// and to connect to another user's socket.
const FOR_FILES: CapabilitySet =
    CapabilitySet::DAC_READ_SEARCH.union(CapabilitySet::DAC_OVERRIDE).union(CapabilitySet::FOWNER);

/// A request about a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked<'a> {
    /// The volume is mounted: the bytes identify its mount. Comes once, before the server enters
    /// the sandbox.
    Mounted(&'a [u8; IDENTITY]),
    /// A request to unmount it.
    Unmount {
        /// A lazy unmount: the mount disappears at once, while open files remain usable.
        lazily: bool,
    },
    /// The server was killed, and its process does not end: its mount is to answer all requests
    /// with errors. The result is not used.
    Killed,
    /// The server is gone, for any cause: the last call. Its result is not used.
    Gone,
}

/// The length of a mount's identity, in bytes.
pub const IDENTITY: usize = 24;

/// The first byte of [`Asked::Mounted`]; an unmount request has 0 or 1 there, 1 for a lazy one.
const MOUNTED: u8 = 2;
/// The byte of a server whose mount is another server's from now on.
const HANDED_OVER: u8 = 3;

/// The helper's part for a mount: a function, and the descriptors that the function uses.
#[expect(missing_debug_implementations, reason = "a closure")]
pub struct OfMount<'a> {
    /// Answers a request.
    pub answer: &'a (dyn Fn(Asked<'_>) -> io::Result<()> + Sync),
    /// The open descriptors that `answer` needs. The helper closes all others.
    pub keeps: &'a [BorrowedFd<'a>],
}

/// The value in place of an errno when the error has only text.
const IN_WORDS: i32 = -1;

/// How long a thread waits for another thread's request.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long the helper may take for an answer. Unmounting has no limit, as long as the helper
/// answers other requests meanwhile: a helper that was stopped must not keep the server from its
/// end.
const ANSWERS: Duration = Duration::from_secs(10);

/// The length of the longest error text.
const MOST_WORDS: usize = 4096;

impl Helper {
    /// Forks the process, which must have no other thread yet. `rings` makes the rings of a server
    /// that needs any.
    ///
    /// # Errors
    /// When the system refuses a socket or the fork.
    pub fn start(mount: Option<OfMount<'_>>, rings: Option<RingMaker>) -> io::Result<()> {
        let (ours, its) = UnixStream::pair()?;
        let (our_files, its_files) = files::pair()?;
        let (our_rings, its_rings) = rings.map(|_| files::pair()).transpose()?.unzip();
        // SAFETY: this is the only thread, by the caller's promise, so the child has the whole
        // process's state and may continue as the parent would have.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop((ours, our_files, our_rings));
                let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    let keeps = mount.as_ref().map_or(&[][..], |mount| mount.keeps);
                    let keeps = keeps.iter().map(AsRawFd::as_raw_fd);
                    let sockets = [Some(its.as_raw_fd()), Some(its_files.as_raw_fd())];
                    let sockets = sockets.into_iter().chain([its_rings.as_ref().map(AsRawFd::as_raw_fd)]);
                    alone(keeps.chain(sockets.flatten()).collect(), mount.is_some())?;
                    let watch = mount.is_some().then(KilledWatch::new).transpose()?;
                    let is_handed_over = AtomicBool::new(false);
                    thread::scope(|scope| {
                        if let Some((socket, make)) = its_rings.zip(rings) {
                            thread::Builder::new()
                                .spawn_scoped(scope, move || rings::serve(&socket, make))?;
                        }
                        if let Some((mount, watch)) = mount.as_ref().zip(watch) {
                            let (end, over) = mpsc::channel();
                            let (handle, is_handed_over) = (watch.handle(), &is_handed_over);
                            thread::Builder::new().spawn_scoped(scope, move || {
                                watch.run(&over, || {
                                    if !is_handed_over.load(Ordering::SeqCst) {
                                        let _ = (mount.answer)(Asked::Killed);
                                    }
                                });
                            })?;
                            thread::Builder::new().spawn_scoped(scope, move || {
                                let served = serve(its, mount.answer, is_handed_over);
                                drop::<mpsc::Sender<()>>(end);
                                handle.close();
                                let _ = (mount.answer)(Asked::Gone);
                                served
                            })?;
                        }
                        files::serve(&its_files)
                    })
                }));
                // SAFETY: it ends the process. No exit handlers run, so nothing of the server's is
                // touched.
                unsafe { libc::_exit(i32::from(!matches!(ended, Ok(Ok(()))))) }
            }
            _ => {
                drop((its, its_files, its_rings));
                // The sandbox permits no later change of sockets.
                ours.set_read_timeout(Some(ANSWERS))?;
                let rings = our_rings.map(HelperSocket::new).transpose()?.map(Mutex::new);
                let files = Mutex::new(HelperSocket::new(our_files)?);
                let is_silent = AtomicBool::new(false);
                let helper = Self { mount: Mutex::new(ours), files, rings, is_silent };
                // A second helper would be for a second mount, which no server has.
                HELPER.set(helper).map_err(|_| io::ErrorKind::AlreadyExists.into())
            }
        }
    }

    /// Returns the helper of this process, if it has one.
    pub fn get() -> Option<&'static Self> {
        HELPER.get()
    }

    /// Requests an unmount.
    ///
    /// # Errors
    /// The error of unmounting, `BrokenPipe` and the like when the helper is gone, `TimedOut` when
    /// the helper answers nothing, and for `lazily` `ResourceBusy` when the helper is busy with
    /// another thread's request.
    pub fn unmount(&self, lazily: bool) -> io::Result<()> {
        self.ask(lazily).map_err(|e| match e.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                io::Error::new(e.kind(), "the process that was started to unmount it is gone")
            }
            _ => e,
        })?
    }

    /// Identifies the mount that the helper is to unmount.
    ///
    /// # Errors
    /// `BrokenPipe` and the like when the helper is gone, `EPERM` when the mount was identified
    /// before.
    pub fn mounted(&self, identity: &[u8; IDENTITY]) -> io::Result<()> {
        let mut message = vec![MOUNTED];
        message.extend(identity);
        self.answer(self.socket(), &message)?
    }

    /// Says that the mount is another server's from now on. The helper does not answer.
    ///
    /// # Errors
    /// `BrokenPipe` and the like when the helper is gone; `ResourceBusy` when it unmounts just now.
    pub fn handed_over(&self) -> io::Result<()> {
        self.free()?.write_all(&[HANDED_OVER])
    }

    /// The answer to an unmount request; an outer error when the helper gives no answer.
    fn ask(&self, lazily: bool) -> io::Result<io::Result<()>> {
        let socket = if lazily { self.free()? } else { self.socket() };
        self.answer(socket, &[u8::from(lazily)])
    }

    fn answer(&self, mut socket: MutexGuard<'_, UnixStream>, message: &[u8]) -> io::Result<io::Result<()>> {
        if self.is_silent.load(Ordering::SeqCst) {
            return Err(silent());
        }
        socket.write_all(message)?;
        let mut head = [0; 8];
        self.receive(&mut socket, &mut head)?;
        let [errno, len] =
            [0, 4].map(|at| i32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
        let len = usize::try_from(len).ok().filter(|len| *len <= MOST_WORDS);
        let mut words = vec![0; len.ok_or(io::ErrorKind::InvalidData)?];
        self.receive(&mut socket, &mut words)?;
        Ok(match errno {
            0 => Ok(()),
            IN_WORDS => Err(io::Error::other(String::from_utf8_lossy(&words).into_owned())),
            errno => Err(io::Error::from_raw_os_error(errno)),
        })
    }

    /// Receives a part of an answer, as long as the helper's other thread answers.
    fn receive(&self, socket: &mut UnixStream, mut part: &mut [u8]) -> io::Result<()> {
        while !part.is_empty() {
            match socket.read(part) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => part = &mut std::mem::take(&mut part)[len..],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    files::check_answers(self)
                        .inspect_err(|_| self.is_silent.store(true, Ordering::SeqCst))?;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn socket(&self) -> MutexGuard<'_, UnixStream> {
        self.mount.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for another thread's request only for [`PATIENCE`], because the caller may be about to
    /// end the process: unmounting writes back dirty data, which may block.
    fn free(&self) -> io::Result<MutexGuard<'_, UnixStream>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.mount.try_lock() {
                Ok(socket) => return Ok(socket),
                Err(TryLockError::Poisoned(e)) => return Ok(e.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => thread::sleep(PATIENCE / 100),
                Err(TryLockError::WouldBlock) => {
                    let why = "it is being unmounted already, which takes its time";
                    return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
                }
            }
        }
    }
}

impl HelperSocket {
    fn new(fd: OwnedFd) -> io::Result<Self> {
        set_socket_timeout(&fd, Timeout::Recv, Some(ANSWERS))?;
        Ok(Self { fd, is_silent: false })
    }

    /// Sends a message, with a descriptor if any, and receives the answer, of which it returns the
    /// length and the descriptor. Fails with `TimedOut` without an answer.
    fn exchange(
        &mut self,
        message: &[&[u8]],
        fd: Option<BorrowedFd<'_>>,
        answer: &mut [u8],
    ) -> io::Result<(usize, Option<OwnedFd>)> {
        let gone =
            |e: Errno| io::Error::new(io::Error::from(e).kind(), "the sandbox's helper process is gone");
        if self.is_silent {
            return Err(silent());
        }
        files::send(&self.fd, message, fd).map_err(gone)?;
        let received = files::receive(self.fd.as_fd(), answer);
        self.is_silent = received.as_ref().is_err_and(|e| *e == Errno::AGAIN);
        received.map_err(|e| if e == Errno::AGAIN { silent() } else { gone(e) })
    }
}

fn silent() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the sandbox's helper process does not answer")
}

/// Keeps these descriptors and closes all others. With `unmounts`, the privilege to unmount is
/// kept.
fn alone(keeps: Vec<i32>, unmounts: bool) -> io::Result<()> {
    // Signals of the terminal and of a service manager are the server's, which sends one more
    // request before it ends. Executed programs get the default actions.
    let nothing = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP] {
        signal_hook::flag::register(signal, nothing.clone())?;
    }
    rustix::process::setsid()?;
    rustix::process::chdir("/")?;
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    drop(null);
    let open = std::fs::read_dir("/proc/self/fd")?;
    let open: Vec<i32> = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    for fd in open.into_iter().filter(|fd| *fd > 2 && !keeps.contains(fd)) {
        // SAFETY: this process owns none of these descriptors but the server's copies, which are
        // never used here. The folder that was read is closed already, and nothing was opened
        // since.
        unsafe { libc::close(fd) };
    }
    // The helper's rings count as locked memory of its user.
    capabilities::keep_locking();
    let sets = rustix::thread::capabilities(None)?;
    let is_root = sets.effective.contains(CapabilitySet::SYS_ADMIN);
    // A user unmounts with a program that has more privileges than its caller.
    if is_root || !unmounts {
        let mount = if unmounts { CapabilitySet::SYS_ADMIN } else { CapabilitySet::empty() };
        let (_, done) = threads::take(Steps { kept: (FOR_FILES | mount).bits(), ..Steps::default() });
        done?;
    }
    Ok(())
}

/// Answers requests for the mount, until the server is gone.
fn serve(
    mut socket: UnixStream,
    answer: &dyn Fn(Asked<'_>) -> io::Result<()>,
    is_handed_over: &AtomicBool,
) -> io::Result<()> {
    let mut knows = false;
    loop {
        let mut first = [0];
        match socket.read(&mut first) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        }
        let done = if first[0] == MOUNTED {
            let mut identity = [0; IDENTITY];
            socket.read_exact(&mut identity)?;
            match std::mem::replace(&mut knows, true) {
                false => answer(Asked::Mounted(&identity)),
                true => Err(io::Error::from_raw_os_error(libc::EPERM)),
            }
        } else if first[0] == HANDED_OVER {
            is_handed_over.store(true, Ordering::SeqCst);
            continue;
        } else {
            answer(Asked::Unmount { lazily: first[0] != 0 })
        };
        let (errno, words) = match done {
            Ok(()) => (0, String::new()),
            Err(e) => (e.raw_os_error().unwrap_or(IN_WORDS), e.to_string()),
        };
        let words = &words.as_bytes()[..words.len().min(MOST_WORDS)];
        let len = i32::try_from(words.len()).unwrap_or(0);
        socket.write_all(&[&errno.to_ne_bytes()[..], &len.to_ne_bytes(), words].concat())?;
    }
}
