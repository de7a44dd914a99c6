//! Every thread of the process gives up what it does not need.
//!
//! The kernel lets a thread do that for itself alone, and at this moment there are several: they
//! wait for signals, clients and requests. So each is sent a signal, in whose handler it takes the
//! steps, as libpsx and Go's runtime have it. All that a handler uses was made ready before, and is
//! never freed. Threads of libraries (Ceph's) hold back every signal that the C library lets them;
//! they are sent one that it keeps for itself.

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

/// A step that a thread could not take; all of them in one word.
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

/// What each thread does.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    /// The folder in which paths begin, open until all have taken the steps.
    pub(crate) root: Option<RawFd>,
    /// The capabilities that stay.
    pub(crate) kept: u64,
    /// Landlock's rules, open until all have taken the steps.
    pub(crate) landlock: Option<RawFd>,
    /// In their order: what the last one forbids, installing filters among it, the others need not
    /// know.
    pub(crate) filters: Vec<BpfProgram>,
    /// The same for threads that hold back SIGSYS, and would end the process with it.
    pub(crate) silent: Vec<BpfProgram>,
}

#[expect(clippy::cast_possible_truncation, reason = "31 bits")]
const PROBE: c_int = calls::PROBE as c_int;

/// Version 3: two words for each set.
const CAPABILITY_VERSION: u32 = 0x2008_0522;
/// As many as two words hold; the kernel refuses those that it does not know.
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
    /// Takes them, for the calling thread, which holds back SIGSYS or does not. Nothing here
    /// allocates, locks or panics.
    fn take(&self, is_deaf: bool) -> Failed {
        if !self.filters.is_empty() && has_filters() {
            return Failed::NONE;
        }
        // While the capability is there.
        let rooted = self.root.is_none_or(change_root);
        let prctl = |option: c_int, argument: c_ulong| {
            // SAFETY: these options take numbers, and access no memory.
            unsafe { libc::prctl(option, argument, 0 as c_ulong, 0 as c_ulong, 0 as c_ulong) == 0 }
        };
        let no_new_privileges = prctl(libc::PR_SET_NO_NEW_PRIVS, 1);
        // Before 4.3 there are none.
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
            // SAFETY: as above. 1: it is in the set; less: there is no such capability.
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

/// A thread that was started by one that has taken the steps has them from it, and could not take
/// them again. True as well where a filter around the whole process answers so.
pub(crate) fn has_filters() -> bool {
    // SAFETY: there is no such option, so no memory is accessed.
    let answer = unsafe { libc::prctl(PROBE, 0 as c_ulong, 0 as c_ulong, 0 as c_ulong, 0 as c_ulong) };
    // SAFETY: the thread's own; the handler puts it back.
    answer == -1 && unsafe { *libc::__errno_location() } == libc::EPERM
}

/// Of this thread, and of those that it shares its folders with.
fn change_root(root: RawFd) -> bool {
    // SAFETY: they take a descriptor, and a string that is there for good.
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
    // Kernels before 5.16 make a process with filters slow, to be safe from code in it that was
    // translated from somebody else's. There is none here. Before 4.17 they do not know the flag.
    set(libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW) || set(0)
}

/// For the handler.
static STEPS: AtomicPtr<Steps> = AtomicPtr::new(ptr::null_mut());
/// Threads that have taken the steps.
static TAKEN: AtomicU32 = AtomicU32::new(0);
/// What they could not do.
static FAILED: AtomicU32 = AtomicU32::new(0);

extern "C" fn handle(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the thread's own.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel gives what the thread was doing, with the signals that it holds back then.
    let is_deaf = unsafe {
        libc::sigismember(&raw const (*context.cast::<libc::ucontext_t>()).uc_sigmask, libc::SIGSYS)
    } == 1;
    let steps = STEPS.load(Ordering::Acquire);
    // SAFETY: null, or steps that are never freed.
    if let Some(steps) = unsafe { steps.as_ref() } {
        FAILED.fetch_or(steps.take(is_deaf).0, Ordering::AcqRel);
        TAKEN.fetch_add(1, Ordering::AcqRel);
    }
    // SAFETY: as above; what was interrupted may be about to look at it.
    unsafe { *libc::__errno_location() = errno };
}

/// How long a thread may take to come out of a system call that cannot be interrupted.
const PATIENCE: Duration = Duration::from_secs(5);

/// Makes every thread take the steps, this one last.
///
/// # Errors
/// When threads cannot be seen (no /proc) or do not answer: then some may not have taken them.
pub(crate) fn take(steps: Steps) -> (Failed, io::Result<()>) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock();
    // A signal can come late, so they stay.
    let steps: &'static Steps = Box::leak(Box::new(steps));
    FAILED.store(0, Ordering::Release);
    STEPS.store(ptr::from_ref(steps).cast_mut(), Ordering::Release);
    let others = on_others();
    STEPS.store(ptr::null_mut(), Ordering::Release);
    let failed = steps.take(false) | Failed(FAILED.load(Ordering::Acquire));
    (failed, others)
}

fn on_others() -> io::Result<()> {
    // The last one: libraries take from the other end.
    let signal = libc::SIGRTMAX();
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: zeros are a valid sigaction, whose handler and flags are set before it is used; the
    // handler calls only what a handler may.
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
    // One that has not answered may do so yet: the default would end the process.
    if done.is_ok() {
        kept_before.set(KEPT)?;
        // SAFETY: what the kernel has just given.
        unsafe { libc::sigaction(signal, before.as_ptr(), ptr::null_mut()) };
    }
    done
}

/// The C library's own, to make all threads take another user's identity (`SIGSETXID`): no thread
/// can hold it back. Nobody does that meanwhile.
const KEPT: c_int = 33;

/// What is done on a signal, as the kernel has it, which the C library does not let be set for its
/// own. It is only copied.
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
        // SAFETY: what the kernel has given for one signal does for another: the same handler, and
        // the same way back from it.
        let set = unsafe {
            libc::syscall(libc::SYS_rt_sigaction, signal, self.0.as_ptr(), ptr::null_mut::<u64>(), Self::SET)
        };
        if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// A thread that has not taken the steps may start another one meanwhile: until a look finds no new
/// ones.
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

/// A thread of this process; numbers are used again, so with the time of its start.
#[derive(Debug, PartialEq, Eq)]
struct Thread {
    id: i32,
    started: u64,
}

impl Thread {
    /// Those that run code of ours. The kernel's own, which do a ring's slow work, take no signals,
    /// and have what whoever submits has.
    fn all() -> io::Result<Vec<Self>> {
        let mut all = Vec::new();
        for entry in fs::read_dir("/proc/self/task")? {
            // One that has ended meanwhile.
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

    /// One that does so for a moment gets the other signal as well.
    fn holds_back(&self, signal: c_int) -> bool {
        let status = fs::read_to_string(format!("/proc/self/task/{}/status", self.id)).unwrap_or_default();
        held_back(&status).is_some_and(|signals| signals >> (signal - 1) & 1 == 1)
    }

    /// False when it has ended.
    fn signal(&self, signal: c_int) -> io::Result<bool> {
        // SAFETY: it accesses no memory; the process is this one.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), self.id, signal) };
        match io::Error::last_os_error() {
            _ if sent == 0 => Ok(true),
            e if e.raw_os_error() == Some(libc::ESRCH) => Ok(false),
            e => Err(e),
        }
    }
}

/// proc(5): the number, the name in parentheses with anything in it, the state; the 9th field are
/// flags, the 22nd the start. `Some(None)` for a thread of the kernel's.
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

/// The signals that a thread holds back, the first one in the lowest bit.
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
    fn names_do_not_move_fields() {
        let stat = "77 (a) R 1 (b) S 1 2 3 4 -1 4194368 5 6 7 8 9 10 11 12 20 0 3 0 4711 0 0";
        assert_eq!(parse(stat).unwrap(), Some(Thread { id: 77, started: 4711 }));
        let worker = "78 (iou-wrk-77) S 1 2 3 4 -1 4194384 5 6 7 8 9 10 11 12 20 0 3 0 4711 0 0";
        assert_eq!(parse(worker).unwrap(), None);
        assert_eq!(parse("78 (x"), None);
    }
}
