//! Every thread of the process drops the rights that it does not need.
//!
//! Linux lets a thread do that for itself alone, and several threads exist at this moment: they
//! wait for signals, clients and requests. So each thread receives a signal, in whose handler it
//! takes the steps, as libpsx and Go's runtime do. All data that a handler uses are prepared
//! before, and are never freed. Threads of libraries (Ceph's) block every signal that the C library
//! lets them; they receive a signal that the C library reserves for itself.

use std::ffi::{c_int, c_ulong, c_void};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use seccompiler::BpfProgram;

use crate::seccomp::calls;

/// The steps that a thread could not take, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failed(u32);

impl Failed {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const NO_NEW_PRIVILEGES: Self = Self(1);
    pub(crate) const BOUNDING: Self = Self(1 << 1);
    pub(crate) const CAPABILITIES: Self = Self(1 << 2);
    pub(crate) const LANDLOCK: Self = Self(1 << 3);
    pub(crate) const SECCOMP: Self = Self(1 << 4);
    pub(crate) const ROOT: Self = Self(1 << 5);

    pub(crate) fn has(self, step: Self) -> bool {
        self.0 & step.0 != 0
    }

    fn unless(self, done: bool) -> Self {
        if done { Self::NONE } else { self }
    }
}

impl std::ops::BitOr for Failed {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The steps of each thread.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    /// The new root folder, open until all threads have taken the steps.
    pub(crate) root: Option<RawFd>,
    /// The capabilities that stay.
    pub(crate) kept: u64,
    /// Landlock's rules, open until all have taken the steps.
    pub(crate) landlock: Option<RawFd>,
    /// The filters in their order: the last one forbids installing filters, so the earlier filters
    /// need not allow it.
    pub(crate) filters: Vec<BpfProgram>,
    /// The same for threads that block SIGSYS, which would end the process.
    pub(crate) silent: Vec<BpfProgram>,
}

#[expect(clippy::cast_possible_truncation, reason = "31 bits")]
const PROBE: c_int = calls::PROBE as c_int;

/// Version 3: two words for each set.
const CAPABILITY_VERSION: u32 = 0x2008_0522;
/// The number of capabilities in two words; Linux refuses unknown numbers.
const CAPABILITIES: c_ulong = 64;

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilityWords {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

impl Steps {
    /// Takes the steps, for the calling thread. `is_deaf` is true when it blocks SIGSYS. No code
    /// here allocates, locks or panics.
    fn take(&self, is_deaf: bool) -> Failed {
        if !self.filters.is_empty() && has_filters() {
            return Failed::NONE;
        }
        // Before the capability is dropped.
        let rooted = self.root.is_none_or(change_root);
        let prctl = |option: c_int, argument: c_ulong| {
            // SAFETY: these options take numbers, and access no memory.
            unsafe { libc::prctl(option, argument, 0 as c_ulong, 0 as c_ulong, 0 as c_ulong) == 0 }
        };
        let no_new_privileges = prctl(libc::PR_SET_NO_NEW_PRIVS, 1);
        // Linux before 4.3 has no ambient capabilities.
        // SAFETY: as above.
        let _ = unsafe {
            libc::prctl(
                libc::PR_CAP_AMBIENT,
                libc::PR_CAP_AMBIENT_CLEAR_ALL as c_ulong,
                0 as c_ulong,
                0 as c_ulong,
                0 as c_ulong,
            )
        };
        let mut bounded = true;
        for number in (0..CAPABILITIES).filter(|number| self.kept >> number & 1 == 0) {
            // SAFETY: as above. 1: the capability is in the set; less: the capability does not
            // exist.
            let is_in = unsafe {
                libc::prctl(libc::PR_CAPBSET_READ, number, 0 as c_ulong, 0 as c_ulong, 0 as c_ulong)
            };
            bounded &= is_in != 1 || prctl(libc::PR_CAPBSET_DROP, number);
        }
        Failed::ROOT.unless(rooted)
            | Failed::NO_NEW_PRIVILEGES.unless(no_new_privileges)
            | Failed::BOUNDING.unless(bounded)
            | Failed::LANDLOCK.unless(self.landlock.is_none_or(restrict_files))
            | Failed::CAPABILITIES.unless(self.keep_capabilities())
            | Failed::SECCOMP
                .unless(if is_deaf { &self.silent } else { &self.filters }.iter().all(restrict_calls))
    }

    fn keep_capabilities(&self) -> bool {
        let mut header = CapabilityHeader { version: CAPABILITY_VERSION, pid: 0 };
        let mut words = [CapabilityWords::default(); 2];
        // SAFETY: version 3 of the header, and the two words that it goes with.
        if unsafe { libc::syscall(libc::SYS_capget, &raw mut header, words.as_mut_ptr()) } != 0 {
            return false;
        }
        for (word, of) in words.iter_mut().enumerate() {
            #[expect(clippy::cast_possible_truncation, reason = "a half at a time")]
            let kept = (self.kept >> (32 * word)) as u32;
            *of = CapabilityWords {
                effective: of.effective & kept,
                permitted: of.permitted & kept,
                inheritable: 0,
            };
        }
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_capset, &raw const header, words.as_ptr()) == 0 }
    }
}

/// Whether this thread inherited the filters from a thread that has taken the steps, and so cannot
/// take the steps again. Also true when a filter around the whole process answers `EPERM`.
pub(crate) fn has_filters() -> bool {
    // SAFETY: the option does not exist, so no memory is accessed.
    let answer = unsafe { libc::prctl(PROBE, 0 as c_ulong, 0 as c_ulong, 0 as c_ulong, 0 as c_ulong) };
    // SAFETY: the thread's own; the handler puts it back.
    answer == -1 && unsafe { *libc::__errno_location() } == libc::EPERM
}

/// Changes the root of this thread, and of the threads that share its folders.
fn change_root(root: RawFd) -> bool {
    // SAFETY: they take a descriptor, and a static string.
    unsafe { libc::fchdir(root) == 0 && libc::chroot(c".".as_ptr()) == 0 }
}

fn restrict_files(rules: RawFd) -> bool {
    // SAFETY: it takes a descriptor and flags.
    unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules, 0_usize) == 0 }
}

fn restrict_calls(filter: &BpfProgram) -> bool {
    let Ok(len) = u16::try_from(filter.len()) else { return false };
    let program = libc::sock_fprog { len, filter: filter.as_ptr().cast_mut().cast() };
    let set = |flags: c_ulong| {
        // SAFETY: both types are the kernel's sock_filter; it reads the program, and keeps a copy.
        unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::c_ulong::from(libc::SECCOMP_SET_MODE_FILTER),
                flags,
                &raw const program,
            ) == 0
        }
    };
    // Linux before 5.16 slows down a process with filters, as a defence against translated code of
    // another origin, which this process does not run. Linux before 4.17 does not support the flag.
    set(libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW) || set(0)
}

/// The steps, for the handler.
static STEPS: AtomicPtr<Steps> = AtomicPtr::new(ptr::null_mut());
/// The number of threads that have taken the steps.
static TAKEN: AtomicU32 = AtomicU32::new(0);
/// The steps that failed.
static FAILED: AtomicU32 = AtomicU32::new(0);

extern "C" fn handle(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the thread's own.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: Linux passes the interrupted context, with the signals that the thread blocks.
    let is_deaf = unsafe {
        libc::sigismember(&raw const (*context.cast::<libc::ucontext_t>()).uc_sigmask, libc::SIGSYS)
    } == 1;
    let steps = STEPS.load(Ordering::Acquire);
    // SAFETY: null, or steps that are never freed.
    if let Some(steps) = unsafe { steps.as_ref() } {
        FAILED.fetch_or(steps.take(is_deaf).0, Ordering::AcqRel);
        TAKEN.fetch_add(1, Ordering::AcqRel);
    }
    // SAFETY: as above; the interrupted code may be about to read it.
    unsafe { *libc::__errno_location() = errno };
}

/// How long a thread may take to return from an uninterruptible system call.
const PATIENCE: Duration = Duration::from_secs(5);

/// Makes every thread take the steps, this thread last.
///
/// Returns an error when threads cannot be listed (no /proc) or do not answer: then some may not
/// have taken the steps.
pub(crate) fn take(steps: Steps) -> (Failed, io::Result<()>) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock();
    // A signal may arrive late, so the steps are never freed.
    let steps: &'static Steps = Box::leak(Box::new(steps));
    FAILED.store(0, Ordering::Release);
    STEPS.store(ptr::from_ref(steps).cast_mut(), Ordering::Release);
    let others = on_others();
    STEPS.store(ptr::null_mut(), Ordering::Release);
    let failed = steps.take(false) | Failed(FAILED.load(Ordering::Acquire));
    (failed, others)
}

fn on_others() -> io::Result<()> {
    // The last real-time signal: libraries allocate from the other end.
    let signal = libc::SIGRTMAX();
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: zeros are a valid sigaction, whose handler and flags are set before it is used; the
    // handler calls only async-signal-safe functions.
    unsafe {
        let action = action.assume_init_mut();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK | libc::SA_SIGINFO;
        libc::sigfillset(&raw mut action.sa_mask);
        if libc::sigaction(signal, action, before.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let kept_before = KernelAction::of(KEPT)?;
    KernelAction::of(signal)?.set(KEPT)?;
    let done = until_all_have(signal);
    // A thread that has not answered may still do so: the default action would end the process.
    if done.is_ok() {
        kept_before.set(KEPT)?;
        // SAFETY: the action that Linux has just returned.
        unsafe { libc::sigaction(signal, before.as_ptr(), ptr::null_mut()) };
    }
    done
}

/// The C library's signal for changing the user of all threads (`SIGSETXID`): no thread can block
/// it. The process does not change its user meanwhile.
const KEPT: c_int = 33;

/// A signal's action in Linux's form, which the C library does not let programs set for its own
/// signals. The value is only copied.
struct KernelAction([u64; 8]);

impl KernelAction {
    /// The size of the kernel's sets of signals.
    const SET: usize = 8;

    fn of(signal: c_int) -> io::Result<Self> {
        let mut this = Self([0; 8]);
        // SAFETY: it writes the kernel's structure, which is smaller.
        let got = unsafe {
            libc::syscall(libc::SYS_rt_sigaction, signal, ptr::null::<u64>(), this.0.as_mut_ptr(), Self::SET)
        };
        if got == 0 { Ok(this) } else { Err(io::Error::last_os_error()) }
    }

    fn set(&self, signal: c_int) -> io::Result<()> {
        // SAFETY: the action that Linux returned for one signal is valid for another: the same
        // handler, and the same return code.
        let set = unsafe {
            libc::syscall(libc::SYS_rt_sigaction, signal, self.0.as_ptr(), ptr::null_mut::<u64>(), Self::SET)
        };
        if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// Signals threads until a scan finds no new ones, since a thread without the steps may start
/// another thread meanwhile.
fn until_all_have(signal: c_int) -> io::Result<()> {
    let own = rustix::thread::gettid().as_raw_nonzero().get();
    let mut done: Vec<Thread> = Vec::new();
    loop {
        let all = Thread::all()?;
        let new: Vec<_> =
            all.into_iter().filter(|thread| thread.id != own && !done.contains(thread)).collect();
        if new.is_empty() {
            return Ok(());
        }
        for thread in new {
            thread.take_steps(signal)?;
            done.push(thread);
        }
    }
}

/// A thread of this process. Numbers are reused, so its start time is a part.
#[derive(Debug, PartialEq, Eq)]
struct Thread {
    id: i32,
    started: u64,
}

impl Thread {
    /// The threads that run this process's code. Linux's own, which do a ring's slow work, take no
    /// signals, and have the credentials of the submitter.
    fn all() -> io::Result<Vec<Self>> {
        let mut all = Vec::new();
        for entry in fs::read_dir("/proc/self/task")? {
            // A thread that has ended in the meantime.
            let Ok(stat) = fs::read_to_string(entry?.path().join("stat")) else { continue };
            let thread = parse(&stat).ok_or_else(|| io::Error::other("/proc/self/task/*/stat is strange"))?;
            all.extend(thread);
        }
        Ok(all)
    }

    fn take_steps(&self, signal: c_int) -> io::Result<()> {
        let signal = if self.holds_back(signal) { KEPT } else { signal };
        let before = TAKEN.load(Ordering::Acquire);
        if !self.signal(signal)? {
            return Ok(());
        }
        let deadline = Instant::now() + PATIENCE;
        while TAKEN.load(Ordering::Acquire) == before && self.signal(0)? {
            if Instant::now() > deadline {
                return Err(io::Error::other(format!("thread {} does not answer", self.id)));
            }
            thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    /// Whether the thread blocks the signal; a thread that blocks it only for a moment gets `KEPT`
    /// as well.
    fn holds_back(&self, signal: c_int) -> bool {
        let status = fs::read_to_string(format!("/proc/self/task/{}/status", self.id)).unwrap_or_default();
        held_back(&status).is_some_and(|signals| signals >> (signal - 1) & 1 == 1)
    }

    /// Signals the thread. Returns false when it has ended.
    fn signal(&self, signal: c_int) -> io::Result<bool> {
        // SAFETY: the call accesses no memory; the process is this one.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), self.id, signal) };
        match io::Error::last_os_error() {
            _ if sent == 0 => Ok(true),
            e if e.raw_os_error() == Some(libc::ESRCH) => Ok(false),
            e => Err(e),
        }
    }
}

/// Parses proc(5)'s stat: the number, the name in parentheses with any characters, the state; the
/// 9th field has flags, the 22nd the start. `Some(None)` stands for a kernel thread.
#[expect(clippy::option_option, reason = "strange, or none of ours")]
fn parse(stat: &str) -> Option<Option<Thread>> {
    /// `PF_IO_WORKER` and `PF_USER_WORKER`.
    const OF_THE_KERNEL: u64 = 0x10 | 0x4000;
    let (id, rest) = stat.split_once(" (")?;
    let fields: Vec<&str> = rest.rsplit_once(") ")?.1.split(' ').collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let thread = Thread { id: id.parse().ok()?, started: number(22)? };
    Some((number(9)? & OF_THE_KERNEL == 0).then_some(thread))
}

/// Returns the signals that a thread blocks, the first in the lowest bit.
fn held_back(status: &str) -> Option<u64> {
    let set = status.lines().find_map(|line| line.strip_prefix("SigBlk:"))?;
    u64::from_str_radix(set.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_tells_which_signals_it_holds_back() {
        let status =
            "Name:\tx\nSigPnd:\t0000000000000000\nSigBlk:\tfffffffe7ffbfeff\nSigIgn:\t0000000000001000\n";
        let set = held_back(status).unwrap();
        assert_eq!([SIGRTMAX_BIT, KEPT - 1].map(|bit| set >> bit & 1), [1, 0]);
        assert_eq!(held_back("Name:\tx\n"), None);
    }

    const SIGRTMAX_BIT: c_int = 63;

    #[test]
    fn a_thread_that_has_ended_is_no_failure_and_a_refused_signal_is() {
        let id = |thread: rustix::thread::Pid| thread.as_raw_nonzero().get();
        let of = |id| Thread { id, started: 0 };
        let own = of(id(rustix::thread::gettid()));
        let ended = of(thread::spawn(move || id(rustix::thread::gettid())).join().unwrap());
        // A joined thread may be in the kernel for a moment longer.
        while std::path::Path::new(&format!("/proc/self/task/{}", ended.id)).exists() {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(own.signal(0).unwrap() && !ended.signal(0).unwrap());
        ended.take_steps(KEPT).unwrap();
        assert_eq!(own.signal(4711).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn names_do_not_move_fields() {
        let stat = "77 (a) R 1 (b) S 1 2 3 4 -1 4194368 5 6 7 8 9 10 11 12 20 0 3 0 4711 0 0";
        assert_eq!(parse(stat).unwrap(), Some(Thread { id: 77, started: 4711 }));
        let worker = "78 (iou-wrk-77) S 1 2 3 4 -1 4194384 5 6 7 8 9 10 11 12 20 0 3 0 4711 0 0";
        assert_eq!(parse(worker).unwrap(), None);
        assert_eq!(parse("78 (x"), None);
    }
}
