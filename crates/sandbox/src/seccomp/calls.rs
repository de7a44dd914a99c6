//! The lists of system calls.

use libc::*;

use crate::{Needs, Rings};

/// An allowed system call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Call {
    /// A call with any arguments.
    Any(c_long),
    /// When the low half of this argument, counted from 0, passes.
    When(c_long, u8, Test),
    /// When both arguments pass.
    Both(c_long, (u8, Test), (u8, Test)),
}

/// A test of an argument.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Test {
    Is(u64),
    HasNot(u64),
    /// The bits of the first value have the second value.
    Bits(u64, u64),
    /// The whole argument is 0: a null pointer.
    Null,
}

use Call::{Any, Both, When};

/// System calls for each request.
#[rustfmt::skip]
const REQUESTS: &[c_long] = &[
    SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_pread64, SYS_pwrite64, SYS_preadv, SYS_pwritev, SYS_preadv2,
    SYS_pwritev2, SYS_recvfrom, SYS_recvmsg, SYS_ppoll, SYS_futex,
    SYS_fdatasync, SYS_fsync, SYS_fallocate, SYS_fadvise64, SYS_sync_file_range, SYS_lseek, SYS_clock_gettime,
    SYS_clock_nanosleep, SYS_nanosleep, SYS_sched_yield, SYS_getrandom, SYS_getcpu,
];

/// The calls for starting and ending queues and clients.
#[rustfmt::skip]
const QUEUES: &[c_long] = &[
    SYS_eventfd2, SYS_pipe2, SYS_close, SYS_close_range, SYS_dup, SYS_dup3,
    SYS_accept4, SYS_accept, SYS_shutdown, SYS_getsockname, SYS_getpeername, SYS_getsockopt,
    SYS_setsockopt,
];

/// The calls for memory and threads in the C library and Rust's.
#[rustfmt::skip]
const RUNTIME: &[c_long] = &[
    SYS_brk, SYS_munmap, SYS_mremap, SYS_madvise, SYS_mlock, SYS_mlock2, SYS_munlock, SYS_rt_sigaction,
    SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_sigaltstack, SYS_restart_syscall, SYS_exit, SYS_exit_group,
    // Refused as unknown: see `filters`.
    SYS_clone3, SYS_set_robust_list, SYS_get_robust_list, SYS_rseq, SYS_set_tid_address, SYS_membarrier,
    SYS_sched_getaffinity, SYS_sched_getparam, SYS_sched_getscheduler, SYS_getpriority, SYS_gettid, SYS_getpid, SYS_getppid, SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, SYS_uname,
    SYS_sysinfo, SYS_getrusage, SYS_times, SYS_gettimeofday, SYS_clock_getres, SYS_setsid,
];

/// The calls for files; Landlock decides on the files.
#[rustfmt::skip]
const FILES: &[c_long] = &[
    SYS_openat, SYS_fstat, SYS_newfstatat, SYS_statx, SYS_fstatfs, SYS_unlinkat, SYS_readlinkat, SYS_faccessat,
    SYS_faccessat2, SYS_getcwd, SYS_chdir, SYS_getdents64, SYS_flock, SYS_ftruncate,
];

/// System calls in which the threads of Ceph's library wait.
#[rustfmt::skip]
const CLUSTER: &[c_long] = &[
    SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, SYS_timerfd_create, SYS_timerfd_settime, SYS_eventfd2,
    #[cfg(target_arch = "x86_64")]
    SYS_epoll_wait,
];

/// Older calls that only this processor has.
#[rustfmt::skip]
#[cfg(target_arch = "x86_64")]
const OLDER: &[c_long] =
    &[SYS_poll, SYS_stat, SYS_lstat, SYS_open, SYS_unlink, SYS_readlink, SYS_access, SYS_dup2, SYS_getrlimit];
#[rustfmt::skip]
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[c_long] = &[];

/// fchmodat2(2), the same number on all architectures. The crate libc lacks its name for some.
const FCHMODAT2: c_long = 452;

/// The calls of eCryptfs: everything about files and folders.
#[rustfmt::skip]
const TREE: &[c_long] = &[
    SYS_mkdirat, SYS_mknodat, SYS_symlinkat, SYS_linkat, SYS_renameat, SYS_renameat2, SYS_fchmod, SYS_fchmodat,
    FCHMODAT2, SYS_fchown, SYS_fchownat, SYS_utimensat, SYS_statfs, SYS_getxattr, SYS_lgetxattr,
    SYS_fgetxattr, SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr, SYS_listxattr, SYS_llistxattr, SYS_flistxattr,
    SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr, SYS_copy_file_range, SYS_syncfs, SYS_umask, SYS_capget,
    SYS_capset, SYS_setfsuid, SYS_setfsgid,
];

#[rustfmt::skip]
#[cfg(target_arch = "x86_64")]
const TREE_OLDER: &[c_long] = &[SYS_rename, SYS_mkdir, SYS_rmdir, SYS_link, SYS_symlink, SYS_mknod, SYS_chmod, SYS_chown, SYS_lchown];
#[rustfmt::skip]
#[cfg(not(target_arch = "x86_64"))]
const TREE_OLDER: &[c_long] = &[];

/// ioctls of block devices (linux/fs.h, linux/blkzoned.h): sizes, discards, zones; of sockets and
/// pipes: the number of available bytes.
#[rustfmt::skip]
const IOCTLS: [u64; 14] = [
    0x1260, 0x1268, 0x1277, 0x127b, 0x127f, 0x8008_1272, 0xc010_1282, 0x4010_1283, 0x4010_1286, 0x4010_1287, 0x4010_1288,
    FIONREAD, FIONBIO, 0x5451, // FIOCLEX
];

/// Commands of fcntl(2): descriptors, flags, locks, pipes, seals. None sends signals: `F_SETOWN`
/// and `F_SETSIG` reach every process that kill(2) would.
#[rustfmt::skip]
const FCNTLS: [c_int; 17] = [
    F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK, F_SETLK, F_SETLKW, F_OFD_GETLK, F_OFD_SETLK,
    F_OFD_SETLKW, F_SETPIPE_SZ, F_GETPIPE_SZ, F_ADD_SEALS, F_GET_SEALS, 1036, // F_SET_RW_HINT
];

/// Names of threads; names of memory, which newer C libraries set; and the parent death signal of a
/// process that leaves the terminal.
#[rustfmt::skip]
const PRCTLS: [u64; 6] = [15, 16, 0x5356_4d41, 1, PR_GET_NO_NEW_PRIVS as u64, PROBE];

/// An option that prctl(2) does not have. The kernel answers with `EINVAL` and the filters with
/// `EPERM`, so a thread finds out whether it has them.
pub(crate) const PROBE: u64 = 0x756e_6473;

/// io_uring_register(2): `IORING_REGISTER_EVENTFD`, `_RESTRICTIONS`, `_ENABLE_RINGS`.
const EVENTFD: u64 = 4;
const RESTRICTIONS: u64 = 11;
const ENABLE_RINGS: u64 = 12;

/// The system calls that the exports need.
pub(crate) fn of(needs: &Needs) -> Vec<Call> {
    let mut calls: Vec<Call> =
        [REQUESTS, QUEUES, RUNTIME, FILES, OLDER].into_iter().flatten().map(|call| Any(*call)).collect();
    let executable = PROT_EXEC as u64;
    let own = u64::from(std::process::id());
    calls.extend([
        When(SYS_mmap, 2, Test::HasNot(executable)),
        When(SYS_mprotect, 2, Test::HasNot(executable)),
        // For threads; for processes see `filters`.
        Any(SYS_clone),
        When(SYS_tgkill, 0, Test::Is(own)),
        // Only queries: a raised limit would remove the mark of a sandbox.
        When(SYS_prlimit64, 2, Test::Null),
        // A connected socket needs no address. Filters cannot see an address in sendmsg(2)'s
        // memory, which only datagram sockets use, so no datagram socket can be made.
        When(SYS_sendto, 4, Test::Null),
        // A stream socket that is not connected, as a listening one after shutdown(2), connects to
        // such an address with TCP Fast Open.
        When(SYS_sendmsg, 2, Test::HasNot(MSG_FASTOPEN as u64)),
        Both(SYS_socketpair, (0, Test::Is(AF_UNIX as u64)), (1, Test::Bits(0xf, SOCK_STREAM as u64))),
        // For the calling thread only, not for other threads and processes.
        When(SYS_sched_setaffinity, 0, Test::Is(0)),
        Both(SYS_setpriority, (0, Test::Is(PRIO_PROCESS as u64)), (1, Test::Is(0))),
    ]);
    calls.extend(FCNTLS.map(|command| When(SYS_fcntl, 1, Test::Is(u64::from(command.cast_unsigned())))));
    calls.extend(IOCTLS.map(|request| When(SYS_ioctl, 1, Test::Is(request & 0xffff_ffff))));
    calls.extend(PRCTLS.map(|option| When(SYS_prctl, 0, Test::Is(option))));
    if needs.cluster {
        calls.extend(CLUSTER.iter().map(|call| Any(*call)));
    }
    if needs.cluster {
        // Only the cluster knows the addresses of its machines.
        calls.push(Any(SYS_connect));
        calls.extend([AF_INET, AF_INET6].map(|family| {
            Both(SYS_socket, (0, Test::Is(family as u64)), (1, Test::Bits(0xf, SOCK_STREAM as u64)))
        }));
    } else if needs.hand_over {
        // For a socket that a handover transferred, so that its clients learn its new owner. A new
        // listening socket has no way to get an address: a socket of the internet families would
        // get a port that Linux chooses.
        calls.push(Any(SYS_listen));
    }
    if needs.rings == Rings::There {
        calls.push(Any(SYS_io_uring_enter));
    } else if needs.rings != Rings::None {
        // The helper decides on each of these calls, if possible: see `helper/rings.rs`.
        calls.extend([Any(SYS_io_uring_setup), Any(SYS_io_uring_enter)]);
        calls.push(When(SYS_io_uring_register, 1, Test::Is(ENABLE_RINGS)));
        if needs.rings == Rings::Any {
            calls.push(When(SYS_io_uring_register, 1, Test::Is(RESTRICTIONS)));
        }
    }
    if needs.vhost_user {
        calls.push(Any(SYS_memfd_create));
        // The driver is woken through a ring.
        calls.push(When(SYS_io_uring_register, 1, Test::Is(EVENTFD)));
    }
    if needs.ublk.is_some() {
        calls.extend([Any(SYS_mlockall), When(SYS_prctl, 0, Test::Is(57))]); // PR_SET_IO_FLUSHER
        if needs.hand_over {
            // An existing timer, which ends a process that holds another process's device for too
            // long.
            calls.push(Any(SYS_timer_settime));
        }
    }
    if needs.tree.is_some() {
        calls.extend([TREE, TREE_OLDER].into_iter().flatten().map(|call| Any(*call)));
        calls.push(When(SYS_unshare, 0, Test::Is(CLONE_FS as u64)));
    }
    calls
}
