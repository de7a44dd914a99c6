//! The table: attempts of hostile code, row by row of docs/sandbox.md, and where each may work.

use std::ffi::c_long;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use libc as l;
use rustix::io::Errno;

use crate::hostile::inject::{Answer, Inside};
use crate::support::Scratch;

/// The exports and lower devices of the servers under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExportKind {
    Nbd,
    Fuse,
    VhostUser,
    /// `ecryptfs mount`.
    Tree,
    /// NBD with certificates.
    Tls,
    /// NBD, over another NBD server.
    Lower,
    /// NBD, over a Ceph cluster.
    Cluster,
    Ublk,
}

use ExportKind::{Cluster, Fuse, Lower, Nbd, Tls, Tree, Ublk, VhostUser};

pub(super) const NOBODY: &[ExportKind] = &[];
const ALL: &[ExportKind] = &[Nbd, Fuse, VhostUser, Tree, Tls, Lower, Cluster, Ublk];

/// The surroundings of a server, which it must not touch.
pub(crate) struct Around {
    pub(super) scratch: Scratch,
    pub(super) door: ExportKind,
    /// Where certificates are read again.
    pub(super) certificates: Option<PathBuf>,
    /// The image, or a file in the encrypted folder.
    pub(crate) own: PathBuf,
    /// The log file, which it has open.
    pub(super) log: PathBuf,
    pub(crate) victim: Child,
    socket: UnixListener,
    tcp: TcpListener,
    udp: UdpSocket,
}

impl Around {
    pub(crate) fn new(door: ExportKind, own: PathBuf, log: PathBuf, certificates: Option<PathBuf>) -> Self {
        let scratch = Scratch::new();
        scratch.file("secret", b"secret");
        let victim = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        let socket = UnixListener::bind(scratch.path("socket")).unwrap();
        socket.set_nonblocking(true).unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        tcp.set_nonblocking(true).unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        udp.set_nonblocking(true).unwrap();
        Self { scratch, door, certificates, own, log, victim, socket, tcp, udp }
    }

    pub(crate) fn secret(&self) -> PathBuf {
        self.scratch.path("secret")
    }

    pub(super) fn victim(&self) -> u64 {
        self.victim.id().into()
    }

    /// Asserts that no connection was made, and nothing was sent, made, or changed.
    #[track_caller]
    pub(crate) fn is_untouched(&mut self) {
        assert!(self.victim.try_wait().unwrap().is_none(), "the other process has ended");
        assert!(self.socket.accept().is_err() && self.tcp.accept().is_err(), "somebody has connected");
        assert!(self.udp.recv(&mut [0; 64]).is_err(), "a datagram came");
        assert_eq!(std::fs::read(self.secret()).unwrap(), b"secret");
        let mut names: Vec<_> = std::fs::read_dir(self.scratch.folder()).unwrap().flatten().collect();
        names.sort_by_key(std::fs::DirEntry::file_name);
        let names: Vec<_> = names.iter().map(|entry| entry.file_name().into_string().unwrap()).collect();
        assert_eq!(names, ["secret", "socket"]);
    }
}

impl Drop for Around {
    fn drop(&mut self) {
        let _ = self.victim.kill();
        let _ = self.victim.wait();
    }
}

/// An attempt, and the exports at which it works.
pub(crate) struct Row {
    pub(crate) what: &'static str,
    pub(crate) works: &'static [ExportKind],
    /// The attempt works there on some kernels only.
    pub(crate) at_most: bool,
    pub(crate) try_it: fn(&mut Inside, &Around) -> Answer,
}

pub(super) const CWD: u64 = l::AT_FDCWD as i64 as u64;
const NONE: u64 = u64::MAX;

/// A descriptor that is closed again.
pub(super) fn makes(inside: &mut Inside, number: c_long, arguments: &[u64]) -> Answer {
    let fd = inside.call(number, arguments)?;
    inside.call(l::SYS_close, &[fd])
}

/// Does something with two ends of a socket of its own.
fn with_pair(inside: &mut Inside, does: impl FnOnce(&mut Inside, u64) -> Answer) -> Answer {
    let pair = inside.put(&[0; 8]);
    inside.call(l::SYS_socketpair, &[l::AF_UNIX as u64, l::SOCK_STREAM as u64, 0, pair])?;
    let both: [u8; 8] = inside.read(pair);
    let [one, other] = [0, 4].map(|at| u64::from(u32::from_ne_bytes(both[at..at + 4].try_into().unwrap())));
    let answer = does(inside, one);
    for fd in [one, other] {
        inside.call(l::SYS_close, &[fd])?;
    }
    answer
}

/// Connects a socket that is connected already: without the call no new one of that kind can be
/// had.
fn connects(inside: &mut Inside, fd: u64, address: u64, len: u64) -> Answer {
    match inside.call(l::SYS_connect, &[fd, address, len]) {
        Err(Errno::ISCONN | Errno::INVAL) => Err(Errno::ACCESS),
        answer => answer,
    }
}

/// An address of `AF_UNIX`.
fn unix(inside: &mut Inside, around: &Around) -> (u64, u64) {
    use std::os::unix::ffi::OsStrExt;
    let path = around.scratch.path("socket");
    let address = [&1_u16.to_ne_bytes()[..], path.as_os_str().as_bytes(), b"\0"].concat();
    (inside.put(&address), address.len() as u64)
}

/// An address of `AF_INET`.
fn internet(inside: &mut Inside, port: u16) -> u64 {
    let head = [&2_u16.to_ne_bytes()[..], &port.to_be_bytes(), &[127, 0, 0, 1], &[0; 8]];
    inside.put(&head.concat())
}

/// Sends four bytes by sendmsg(2), to an address of a length.
fn sends_message(inside: &mut Inside, fd: u64, (address, len): (u64, u64), flags: u64) -> Answer {
    let bytes = inside.put(&[0; 4]);
    let vector = inside.put(&[bytes, 4].map(u64::to_ne_bytes).concat());
    let header = [address, len, vector, 1, 0, 0, 0].map(u64::to_ne_bytes).concat();
    let header = inside.put(&header);
    inside.call(l::SYS_sendmsg, &[fd, header, flags]).map(|_| 0)
}

macro_rules! row {
    ($what:expr, $works:expr, $try_it:expr) => {
        Row { what: $what, works: $works, at_most: false, try_it: $try_it }
    };
}
pub(super) use row;

/// A call with these numbers for arguments, which no server may make.
macro_rules! refused {
    ($($call:ident $arguments:expr),+ $(,)?) => {
        &[$(row!(stringify!($call), NOBODY, |inside, _| inside.call(l::$call, &$arguments))),+]
    };
}

/// Row "capabilities": what takes them.
pub(crate) const CAPABILITIES: &[Row] = refused![
    SYS_mount [0, 0, 0, 0, 0], SYS_umount2 [0, 0], SYS_pivot_root [0, 0], SYS_chroot [0], SYS_setns [0, 0],
    SYS_fsopen [0, 0], SYS_fsmount [0, 0, 0], SYS_move_mount [0, 0, 0, 0, 0], SYS_open_tree [CWD, 0, 1],
    SYS_mount_setattr [CWD, 0, 0, 0, 0], SYS_swapon [0, 0], SYS_reboot [0, 0, 0, 0], SYS_init_module [0, 0, 0],
    SYS_finit_module [0, 0, 0], SYS_delete_module [0, 0], SYS_kexec_load [0, 0, 0, 0],
    SYS_sethostname [0, 0], SYS_settimeofday [0, 0], SYS_clock_settime [0, 0], SYS_adjtimex [0],
    SYS_setuid [0], SYS_setgid [0], SYS_setresuid [0, 0, 0], SYS_setgroups [0, 0], SYS_iopl [3],
    SYS_ioperm [0, 1, 1], SYS_syslog [3, 0, 0], SYS_acct [0], SYS_quotactl [0, 0, 0, 0],
    SYS_open_by_handle_at [0, 0, 0], SYS_name_to_handle_at [CWD, 0, 0, 0, 0], SYS_bpf [0, 0, 0],
    SYS_perf_event_open [0, 0, NONE, NONE, 0], SYS_fanotify_init [0, 0], SYS_lookup_dcookie [0, 0, 0],
    SYS_unshare [l::CLONE_NEWUSER as u64], SYS_unshare [l::CLONE_NEWNS as u64], SYS_userfaultfd [0],
];

/// Row "TCP" and all other rows about the network.
pub(crate) const NETWORK: &[Row] = &[
    row!("a socket of any family", NOBODY, |inside, around| {
        for family in 0..48 {
            for kind in [l::SOCK_STREAM, l::SOCK_DGRAM, l::SOCK_RAW, l::SOCK_SEQPACKET] {
                for protocol in [0, l::IPPROTO_UDP, l::IPPROTO_MPTCP] {
                    let what = [family, kind as u64, protocol as u64];
                    let is_tcp = kind == l::SOCK_STREAM && [2, 10].contains(&family);
                    if is_tcp && around.door == Cluster {
                        continue;
                    }
                    match inside.call(l::SYS_socket, &what) {
                        Err(Errno::PERM) => {}
                        answer => panic!("socket {what:?}: {answer:?}"),
                    }
                }
            }
        }
        Err(Errno::PERM)
    }),
    row!("a pair of datagram sockets", NOBODY, |inside, _| {
        let pair = inside.put(&[0; 8]);
        inside.call(l::SYS_socketpair, &[l::AF_UNIX as u64, l::SOCK_DGRAM as u64, 0, pair])
    }),
    row!("a pair of sockets", ALL, |inside, _| with_pair(inside, |_, _| Ok(0))),
    row!("connect to a socket file", NOBODY, |inside, around| {
        let (address, len) = unix(inside, around);
        with_pair(inside, |inside, fd| connects(inside, fd, address, len))
    }),
    row!("connect over TCP", NOBODY, |inside, around| {
        let address = internet(inside, around.tcp.local_addr().unwrap().port());
        with_pair(inside, |inside, fd| connects(inside, fd, address, 16))
    }),
    row!("send to an address", NOBODY, |inside, around| {
        let address = internet(inside, around.udp.local_addr().unwrap().port());
        with_pair(inside, |inside, fd| inside.call(l::SYS_sendto, &[fd, address, 4, 0, address, 16]))
    }),
    row!("send to a socket file", NOBODY, |inside, around| {
        let (address, len) = unix(inside, around);
        with_pair(inside, |inside, fd| inside.call(l::SYS_sendto, &[fd, address, 4, 0, address, len]))
    }),
    row!("a message", ALL, |inside, _| with_pair(inside, |inside, fd| sends_message(inside, fd, (0, 0), 0))),
    // A listening socket connects so after shutdown(2).
    row!("connect by sending a message", NOBODY, |inside, around| {
        let address = internet(inside, around.tcp.local_addr().unwrap().port());
        with_pair(inside, |inside, fd| sends_message(inside, fd, (address, 16), l::MSG_FASTOPEN as u64))
    }),
    row!("bind", NOBODY, |inside, _| {
        let address = internet(inside, 0);
        with_pair(inside, |inside, fd| inside.call(l::SYS_bind, &[fd, address, 16]))
    }),
    row!("many messages at once", NOBODY, |inside, _| inside.call(l::SYS_sendmmsg, &[0, 0, 0, 0])),
];

/// The rest of row "system calls": other processes.
pub(crate) const PROCESSES: &[Row] = &[
    row!("its own number", ALL, |inside, _| inside.call(l::SYS_getpid, &[])),
    row!("kill", NOBODY, |inside, around| inside.call(l::SYS_kill, &[around.victim(), 9])),
    row!("kill all", NOBODY, |inside, _| inside.call(l::SYS_kill, &[NONE, 0])),
    row!("tkill", NOBODY, |inside, around| inside.call(l::SYS_tkill, &[around.victim(), 9])),
    row!("tgkill", NOBODY, |inside, around| {
        inside.call(l::SYS_tgkill, &[around.victim(), around.victim(), 9])
    }),
    row!("rt_sigqueueinfo", NOBODY, |inside, around| {
        let info = inside.put(&[0; 128]);
        inside.call(l::SYS_rt_sigqueueinfo, &[around.victim(), 9, info])
    }),
    row!("pidfd_open", NOBODY, |inside, around| inside.call(l::SYS_pidfd_open, &[around.victim(), 0])),
    row!("pidfd_send_signal", NOBODY, |inside, _| inside.call(l::SYS_pidfd_send_signal, &[0, 9, 0, 0])),
    row!("pidfd_getfd", NOBODY, |inside, _| inside.call(l::SYS_pidfd_getfd, &[0, 0, 0])),
    row!("F_SETOWN", NOBODY, |inside, around| {
        let victim = around.victim();
        with_pair(inside, |inside, fd| inside.call(l::SYS_fcntl, &[fd, l::F_SETOWN as u64, victim]))
    }),
    row!("F_SETOWN_EX", NOBODY, |inside, around| {
        let owner = inside.put(&[&0_i32.to_ne_bytes()[..], &around.victim.id().to_ne_bytes()].concat());
        with_pair(inside, |inside, fd| inside.call(l::SYS_fcntl, &[fd, 15, owner]))
    }),
    row!("F_SETSIG", NOBODY, |inside, _| {
        with_pair(inside, |inside, fd| inside.call(l::SYS_fcntl, &[fd, 10, 9]))
    }),
    row!("F_SETLEASE", NOBODY, |inside, _| {
        with_pair(inside, |inside, fd| inside.call(l::SYS_fcntl, &[fd, 1024, 0]))
    }),
    row!("FIOSETOWN", NOBODY, |inside, around| {
        let owner = inside.put(&around.victim.id().to_ne_bytes());
        with_pair(inside, |inside, fd| inside.call(l::SYS_ioctl, &[fd, 0x8901, owner]))
    }),
    row!("SIOCSPGRP", NOBODY, |inside, around| {
        let owner = inside.put(&around.victim.id().to_ne_bytes());
        with_pair(inside, |inside, fd| inside.call(l::SYS_ioctl, &[fd, 0x8902, owner]))
    }),
    row!("characters into a terminal", NOBODY, |inside, _| inside.call(l::SYS_ioctl, &[2, l::TIOCSTI, 0])),
    row!("setpriority", NOBODY, |inside, around| inside.call(l::SYS_setpriority, &[0, around.victim(), 19])),
    row!("sched_setaffinity", NOBODY, |inside, around| {
        let mask = inside.put(&[1; 128]);
        inside.call(l::SYS_sched_setaffinity, &[around.victim(), 128, mask])
    }),
    row!("sched_setscheduler", NOBODY, |inside, around| {
        let parameter = inside.put(&[0; 4]);
        inside.call(l::SYS_sched_setscheduler, &[around.victim(), 5, parameter])
    }),
    row!("ioprio_set", NOBODY, |inside, around| inside.call(l::SYS_ioprio_set, &[1, around.victim(), 0])),
    row!("prlimit", NOBODY, |inside, around| {
        let limit = inside.put(&[0; 16]);
        inside.call(l::SYS_prlimit64, &[around.victim(), 7, limit, 0])
    }),
    row!("its own limits", NOBODY, |inside, _| {
        let limit = inside.put(&[0; 16]);
        inside.call(l::SYS_prlimit64, &[0, l::RLIMIT_MSGQUEUE.into(), limit, 0])
    }),
    row!("ptrace", NOBODY, |inside, around| inside.call(l::SYS_ptrace, &[16, around.victim(), 0, 0])),
    row!("process_vm_readv", NOBODY, |inside, around| {
        inside.call(l::SYS_process_vm_readv, &[around.victim(), 0, 0, 0, 0, 0])
    }),
    row!("process_vm_writev", NOBODY, |inside, around| {
        inside.call(l::SYS_process_vm_writev, &[around.victim(), 0, 0, 0, 0, 0])
    }),
    row!("execve", NOBODY, |inside, _| {
        let path = inside.text("/bin/true");
        inside.call(l::SYS_execve, &[path, 0, 0])
    }),
    row!("execveat", NOBODY, |inside, _| {
        let path = inside.text("/bin/true");
        inside.call(l::SYS_execveat, &[CWD, path, 0, 0, 0])
    }),
    row!("fork", NOBODY, |inside, _| inside.call(l::SYS_fork, &[])),
    row!("vfork", NOBODY, |inside, _| inside.call(l::SYS_vfork, &[])),
    row!("a process by clone", NOBODY, |inside, _| inside.call(l::SYS_clone, &[l::SIGCHLD as u64, 0])),
    row!("a process with the same memory", NOBODY, |inside, _| {
        inside.call(l::SYS_clone, &[(l::CLONE_VM | l::CLONE_FILES) as u64, 0])
    }),
    row!("clone3", NOBODY, |inside, _| match inside.call(l::SYS_clone3, &[0, 0]) {
        // The filter answers ENOSYS, so that the C library falls back to clone.
        Err(Errno::NOSYS) => Err(Errno::PERM),
        answer => answer,
    }),
];

/// The rest of row "system calls": memory, and what undoes the sandbox.
pub(crate) const ITSELF: &[Row] = &[
    row!("memory", ALL, |inside, _| maps(inside, l::PROT_READ | l::PROT_WRITE)),
    row!("executable memory", NOBODY, |inside, _| maps(inside, l::PROT_READ | l::PROT_EXEC)),
    row!("executable memory, afterwards", NOBODY, |inside, _| {
        let page = inside.put(&[0; 64]) & !4095;
        inside.call(l::SYS_mprotect, &[page, 4096, (l::PROT_READ | l::PROT_EXEC) as u64])
    }),
    row!("executable memory, by a key", NOBODY, |inside, _| {
        let page = inside.put(&[0; 64]) & !4095;
        inside.call(l::SYS_pkey_mprotect, &[page, 4096, (l::PROT_READ | l::PROT_EXEC) as u64, NONE])
    }),
    row!("what is readable is executable", NOBODY, |inside, _| inside.call(l::SYS_personality, &[0x40_0000])),
    row!("shared memory", NOBODY, |inside, _| inside.call(l::SYS_shmget, &[0, 4096, 0o1600])),
    row!("a memory file", &[VhostUser], |inside, _| {
        let name = inside.text("x");
        makes(inside, l::SYS_memfd_create, &[name, 0])
    }),
    row!("to be dumped", NOBODY, |inside, _| inside
        .call(l::SYS_prctl, &[l::PR_SET_DUMPABLE as u64, 1, 0, 0, 0])),
    row!("a parent that traces", NOBODY, |inside, _| {
        inside.call(l::SYS_prctl, &[l::PR_SET_PTRACER as u64, NONE, 0, 0, 0])
    }),
    row!("another memory map", NOBODY, |inside, _| {
        inside.call(l::SYS_prctl, &[l::PR_SET_MM as u64, 0, 0, 0, 0])
    }),
    row!("another filter", NOBODY, |inside, _| inside.call(l::SYS_seccomp, &[1, 0, 0])),
    row!("the old way to it", NOBODY, |inside, _| {
        inside.call(l::SYS_prctl, &[l::PR_SET_SECCOMP as u64, 2, 0, 0, 0])
    }),
    row!("landlock", NOBODY, |inside, _| inside.call(l::SYS_landlock_create_ruleset, &[0, 0, 1])),
    row!("a key of the kernel's", NOBODY, |inside, _| inside.call(l::SYS_keyctl, &[0, NONE - 2, 0])),
    row!("a new key", NOBODY, |inside, _| inside.call(l::SYS_add_key, &[0, 0, 0, 0, 0])),
    row!("request_key", NOBODY, |inside, _| inside.call(l::SYS_request_key, &[0, 0, 0, 0])),
    row!("capset", &[Tree], |inside, _| {
        let header = inside.put(&[&0x2008_0522_u32.to_ne_bytes()[..], &[0; 4]].concat());
        let sets = inside.put(&[0; 24]);
        inside.call(l::SYS_capget, &[header, sets])?;
        inside.call(l::SYS_capset, &[header, sets])
    }),
    row!("the other calls for asynchronous I/O", NOBODY, |inside, _| {
        let context = inside.put(&[0; 8]);
        inside.call(l::SYS_io_setup, &[8, context])
    }),
    row!("splice", NOBODY, |inside, _| inside.call(l::SYS_splice, &[0, 0, 0, 0, 0, 0])),
    row!("modify_ldt", NOBODY, |inside, _| inside.call(l::SYS_modify_ldt, &[0, 0, 0])),
    row!("message queues", NOBODY, |inside, _| inside.call(l::SYS_msgget, &[0, 0o1600])),
    row!("a socket by the numbers of x32", NOBODY, |inside, _| {
        inside.call(l::SYS_socket | 0x4000_0000, &[l::AF_INET as u64, l::SOCK_DGRAM as u64, 0])
    }),
];

fn maps(inside: &mut Inside, access: i32) -> Answer {
    let flags = (l::MAP_PRIVATE | l::MAP_ANONYMOUS) as u64;
    let at = inside.call(l::SYS_mmap, &[0, 4096, access as u64, flags, NONE, 0])?;
    inside.call(l::SYS_munmap, &[at, 4096])
}
