//! Code inside a running server: one of its threads is stopped (ptrace(2), from outside, as root)
//! and executes system calls itself, so that they pass that thread's filters, its Landlock domain
//! and its capabilities, as an attacker's would.
//!
//! The thread is found in a system call, whose instruction is executed again with other registers.
//! Afterwards it goes on where it was.

use std::ffi::c_long;
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::ptr;

use libc::{pid_t, user_regs_struct as Registers};
use rustix::io::Errno;

/// The result of a system call.
pub(crate) type Answer = Result<u64, Errno>;

/// Bytes of memory that calls can refer to.
const ROOM: usize = 1 << 16;

/// A thread of another process that makes the system calls of a test.
pub(crate) struct Inside {
    pub(crate) pid: pid_t,
    thread: pid_t,
    memory: File,
    before: Registers,
    /// The address of a `syscall` instruction.
    syscall: u64,
    /// Memory for arguments: its address, and the bytes in use.
    room: u64,
    used: usize,
}

fn trace(request: libc::c_uint, thread: pid_t, data: *mut Registers) -> bool {
    // SAFETY: the requests of this file take a thread, and registers that are there.
    unsafe { libc::ptrace(request, thread, ptr::null_mut::<u8>(), data) == 0 }
}

/// The signal that has stopped the thread.
#[track_caller]
fn stopped(thread: pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: it writes a number.
    let waited = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) };
    assert!(waited == thread && libc::WIFSTOPPED(status), "the thread has ended: {status:#x}");
    libc::WSTOPSIG(status)
}

#[track_caller]
fn registers(thread: pid_t) -> Registers {
    let mut registers = MaybeUninit::<Registers>::zeroed();
    assert!(trace(libc::PTRACE_GETREGS, thread, registers.as_mut_ptr()), "registers");
    // SAFETY: numbers, which the kernel has filled in.
    unsafe { registers.assume_init() }
}

impl Inside {
    /// Gets into a process: into a thread whose name begins so.
    #[track_caller]
    pub(crate) fn of(pid: u32, name: &str) -> Self {
        let pid = pid_t::try_from(pid).unwrap();
        let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem")).unwrap();
        let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let threads = threads.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap());
        for thread in threads {
            let comm = fs::read_to_string(format!("/proc/{pid}/task/{thread}/comm")).unwrap_or_default();
            if !comm.starts_with(name) {
                continue;
            }
            assert!(trace(libc::PTRACE_SEIZE, thread, ptr::null_mut()), "{thread}: not traced");
            assert!(trace(libc::PTRACE_INTERRUPT, thread, ptr::null_mut()));
            stopped(thread);
            let before = registers(thread);
            let (syscall, mut code) = (before.rip - 2, [0; 2]);
            if memory.read_exact_at(&mut code, syscall).is_ok() && code == [0x0f, 0x05] {
                let mut inside = Self { pid, thread, memory, before, syscall, room: 0, used: 0 };
                let both = (libc::PROT_READ | libc::PROT_WRITE) as u64;
                let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
                inside.room =
                    inside.call(libc::SYS_mmap, &[0, ROOM as u64, both, flags, u64::MAX, 0]).unwrap();
                return inside;
            }
            assert!(trace(libc::PTRACE_DETACH, thread, ptr::null_mut()));
        }
        panic!("no thread of {pid} is in a system call");
    }

    /// Makes the thread call the kernel. What a filter refuses with a signal is `EPERM`, as the
    /// server's handler would have it.
    #[track_caller]
    pub(crate) fn call(&mut self, number: c_long, arguments: &[u64]) -> Answer {
        let of = |at: usize| arguments.get(at).copied().unwrap_or(0);
        let mut registers_now = Registers {
            rip: self.syscall,
            rax: number.cast_unsigned(),
            orig_rax: u64::MAX,
            rdi: of(0),
            rsi: of(1),
            rdx: of(2),
            r10: of(3),
            r8: of(4),
            r9: of(5),
            ..self.before
        };
        assert!(trace(libc::PTRACE_SETREGS, self.thread, &raw mut registers_now));
        loop {
            assert!(trace(libc::PTRACE_SINGLESTEP, self.thread, ptr::null_mut()));
            match stopped(self.thread) {
                libc::SIGSYS => return Err(Errno::PERM),
                libc::SIGTRAP => {
                    let after = registers(self.thread);
                    if after.rip == self.syscall + 2 {
                        let result = after.rax.cast_signed();
                        return match i32::try_from(result) {
                            // A signal came first: the kernel makes the call anew.
                            Ok(-516..=-512) => continue,
                            Ok(errno @ -4095..=-1) => Err(Errno::from_raw_os_error(-errno)),
                            _ => Ok(after.rax),
                        };
                    }
                }
                _ => {}
            }
        }
    }

    /// Puts bytes into memory that is used for nothing else: where.
    #[track_caller]
    pub(crate) fn put(&mut self, bytes: &[u8]) -> u64 {
        assert!(self.used + bytes.len() <= ROOM, "no room");
        let at = self.room + self.used as u64;
        self.used += bytes.len().next_multiple_of(64);
        self.write(at, bytes);
        at
    }

    pub(crate) fn write(&self, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, at).unwrap();
    }

    pub(crate) fn read<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.memory.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }

    /// Puts a path, or another string.
    pub(crate) fn text(&mut self, text: impl AsRef<std::ffi::OsStr>) -> u64 {
        use std::os::unix::ffi::OsStrExt;
        self.put(&[text.as_ref().as_bytes(), b"\0"].concat())
    }

    /// Frees the memory of all arguments that were put.
    pub(crate) fn forget(&mut self) {
        self.used = 0;
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = self.call(libc::SYS_munmap, &[self.room, ROOM as u64]);
        let mut before = self.before;
        // A call that was interrupted is made again: ERESTARTSYS to ERESTART_RESTARTBLOCK.
        if before.orig_rax != u64::MAX && (-516..=-512).contains(&before.rax.cast_signed()) {
            before.rip -= 2;
            before.rax = before.orig_rax;
        }
        before.orig_rax = u64::MAX;
        trace(libc::PTRACE_SETREGS, self.thread, &raw mut before);
        trace(libc::PTRACE_DETACH, self.thread, ptr::null_mut());
    }
}
