//! A process that does one thing when it is asked: to unmount.
//!
//! Unmounting takes root's `CAP_SYS_ADMIN`, or for a user a program with more privileges than its caller, fusermount3. A server
//! that serves has neither any more. So before it has threads and keys it forks a process that does nothing else, and ends
//! with the server, however that ends:
//!
//! ```text
//!   server   one byte: at once, or lazily   ---->   helper    no files, no keys, nobody else to hear
//!            errno, length, words           <----             unmounts the one path that it was started for
//! ```

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::CapabilitySet;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};

use crate::threads::{self, Steps};

/// The server's end.
#[derive(Debug)]
pub struct Helper(Mutex<UnixStream>);

static HELPER: OnceLock<Helper> = OnceLock::new();

/// What unmounting takes of root: to do it, and to reach it in a folder of another user's.
const OF_ROOT: CapabilitySet = CapabilitySet::SYS_ADMIN.union(CapabilitySet::DAC_READ_SEARCH);

/// In the place of an error's number where there is none.
const IN_WORDS: i32 = -1;

/// How long one waits for another thread that is asking.
const PATIENCE: Duration = Duration::from_secs(1);

/// The longest that it says of an error.
const MOST_WORDS: usize = 4096;

impl Helper {
    /// Forks the process, which calls `unmount` with whether it is to be lazy. There must be no other thread yet.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn start(unmount: impl Fn(bool) -> io::Result<()>) -> io::Result<()> {
        let (ours, its) = UnixStream::pair()?;
        // SAFETY: this is the only thread, by the caller's promise, so the child has the whole process's state and may go on
        // as the parent would have.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(ours);
                let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    alone(&its).and_then(|()| serve(its, &unmount))
                }));
                // Nothing of the server's is put in order here: no exit handlers.
                // SAFETY: it ends the process.
                unsafe { libc::_exit(i32::from(!matches!(ended, Ok(Ok(()))))) }
            }
            _ => {
                drop(its);
                // A second one would be for a second mount, which no server has.
                HELPER.set(Self(Mutex::new(ours))).map_err(|_| io::ErrorKind::AlreadyExists.into())
            }
        }
    }

    /// The one of this process, if it has one.
    pub fn get() -> Option<&'static Self> {
        HELPER.get()
    }

    /// Asks it to unmount.
    ///
    /// # Errors
    /// What unmounting said; that the helper is gone; for `lazily`, that it is busy with what another thread has asked.
    pub fn unmount(&self, lazily: bool) -> io::Result<()> {
        self.ask(lazily).map_err(|e| match e.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                io::Error::new(e.kind(), "the process that was started to unmount it is gone")
            }
            _ => e,
        })?
    }

    /// The answer; an error when there is none.
    fn ask(&self, lazily: bool) -> io::Result<io::Result<()>> {
        let mut socket = if lazily { self.free()? } else { self.socket() };
        socket.write_all(&[u8::from(lazily)])?;
        let mut head = [0; 8];
        socket.read_exact(&mut head)?;
        let [errno, len] =
            [0, 4].map(|at| i32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
        let len = usize::try_from(len).ok().filter(|len| *len <= MOST_WORDS);
        let mut words = vec![0; len.ok_or(io::ErrorKind::InvalidData)?];
        socket.read_exact(&mut words)?;
        Ok(match errno {
            0 => Ok(()),
            IN_WORDS => Err(io::Error::other(String::from_utf8_lossy(&words).into_owned())),
            errno => Err(io::Error::from_raw_os_error(errno)),
        })
    }

    fn socket(&self) -> MutexGuard<'_, UnixStream> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For who may be about to end the process, and waits no longer for another thread: unmounting writes back what is dirty, and
    /// that can stand still.
    fn free(&self) -> io::Result<MutexGuard<'_, UnixStream>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.0.try_lock() {
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

/// Keeps the socket and nothing else.
fn alone(socket: &UnixStream) -> io::Result<()> {
    // The terminal's signals are the server's, and so is whatever ends a service: it asks for one thing more then. What is
    // executed has the defaults.
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
    let own = socket.as_raw_fd();
    let open = std::fs::read_dir("/proc/self/fd")?;
    let open: Vec<i32> = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    for fd in open.into_iter().filter(|&fd| fd > 2 && fd != own) {
        // SAFETY: nothing in this process owns any of them but the server's copies, which are never used here. The folder that
        // was read is closed already, and nothing was opened since.
        unsafe { libc::close(fd) };
    }
    // A user's needs a program that has more than its caller.
    let sets = rustix::thread::capabilities(None)?;
    if sets.effective.contains(CapabilitySet::SYS_ADMIN) {
        let (_, done) = threads::take(Steps { kept: OF_ROOT.bits(), ..Steps::default() });
        done?;
    }
    Ok(())
}

/// Until the server is gone.
fn serve(mut socket: UnixStream, unmount: &impl Fn(bool) -> io::Result<()>) -> io::Result<()> {
    loop {
        let mut lazily = [0];
        match socket.read(&mut lazily) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        }
        let (errno, words) = match unmount(lazily[0] != 0) {
            Ok(()) => (0, String::new()),
            Err(e) => (e.raw_os_error().unwrap_or(IN_WORDS), e.to_string()),
        };
        let words = &words.as_bytes()[..words.len().min(MOST_WORDS)];
        let len = i32::try_from(words.len()).unwrap_or(0);
        socket.write_all(&[&errno.to_ne_bytes()[..], &len.to_ne_bytes(), words].concat())?;
    }
}
