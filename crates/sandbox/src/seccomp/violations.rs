//! Refused calls: they fail, and the log names each of them once.
//!
//! The kernel sends the thread SIGSYS instead of making the call. A handler cannot log, so the
//! number goes through a pipe to a thread that logs.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::IntoRawFd;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::thread;

use rustix::pipe::{PipeFlags, pipe_with};
use syscalls::Sysno;

/// The pipe's end in the handler.
static TOLD_TO: AtomicI32 = AtomicI32::new(-1);
/// A bit for each call that was logged.
static TOLD: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

/// The siginfo of SIGSYS (sigaction(2), after three numbers and their padding).
#[repr(C)]
struct Refused {
    head: [c_int; 4],
    address: *const c_void,
    number: c_int,
    arch: u32,
}

/// Makes refused calls fail from now on, in this process.
///
/// Returns the error of a failed pipe, thread or `sigaction(2)`.
pub(crate) fn listen() -> io::Result<()> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    // A handler never waits.
    rustix::io::ioctl_fionbio(&write, true)?;
    let mut numbers = File::from(read);
    thread::Builder::new().name("sandbox".into()).spawn(move || {
        let mut number = [0; 4];
        while numbers.read_exact(&mut number).is_ok() {
            tell(i32::from_ne_bytes(number));
        }
    })?;
    // The handler keeps it for good.
    TOLD_TO.store(write.into_raw_fd(), Ordering::Release);
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: zeros are a valid sigaction, whose handler and flags are set before it is used; the
    // handler calls only async-signal-safe functions.
    let done = unsafe {
        let action = action.assume_init_mut();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK | libc::SA_NODEFER;
        libc::sigaction(libc::SIGSYS, action, ptr::null_mut())
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn tell(number: i32) {
    let name = usize::try_from(number).ok().and_then(Sysno::new).map_or("an unknown one", |call| call.name());
    log::error!(
        "the sandbox has refused the system call {name} ({number}): a fault of underseal's or of a library's, or an \
         intruder's attempt; it failed with EPERM, and is logged once"
    );
}

extern "C" fn handle(_: c_int, info: *const Refused, context: *mut c_void) {
    // SAFETY: the kernel gives both, for as long as the handler runs.
    let (number, context) = unsafe { ((*info).number, &mut *context.cast::<libc::ucontext_t>()) };
    fail(context);
    let bit = 1_u64 << (number & 63);
    let word = usize::try_from(number / 64).ok().and_then(|word| TOLD.get(word));
    if word.is_some_and(|word| word.fetch_or(bit, Ordering::Relaxed) & bit == 0) {
        // SAFETY: errno is the thread's own; the bytes are on the stack.
        unsafe {
            let errno = *libc::__errno_location();
            libc::write(TOLD_TO.load(Ordering::Acquire), (&raw const number).cast(), size_of::<c_int>());
            *libc::__errno_location() = errno;
        }
    }
}

/// Writes the call's result to the register where the kernel would leave it.
#[cfg(target_arch = "x86_64")]
fn fail(context: &mut libc::ucontext_t) {
    const RAX: usize = libc::REG_RAX as usize;
    context.uc_mcontext.gregs[RAX] = i64::from(-libc::EPERM);
}

#[cfg(target_arch = "aarch64")]
fn fail(context: &mut libc::ucontext_t) {
    context.uc_mcontext.regs[0] = i64::from(-libc::EPERM).cast_unsigned();
}

#[cfg(target_arch = "riscv64")]
fn fail(context: &mut libc::ucontext_t) {
    const A0: usize = 10;
    context.uc_mcontext.__gregs[A0] = i64::from(-libc::EPERM).cast_unsigned();
}

/// Processors without filters never refuse a call: see `filters`.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
fn fail(_: &mut libc::ucontext_t) {}
