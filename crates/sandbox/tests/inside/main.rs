//! The abilities of a process in the sandbox, from within. Each test runs in a separate process,
//! since the sandbox cannot be left.

mod helper;
mod levels;
mod links;
mod rights;
mod rings;

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use underseal_sandbox::{
    Asked, Helper, Needs, OfMount, RemovedKind, State, Target, connect_to, enter, is_inside, open_log,
    remove, will_connect, will_open_log, will_remove,
};

/// The records that were logged.
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Logger;

impl log::Log for Logger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        LOG.lock().unwrap().push(format!("{} {}", record.level(), record.args()));
    }

    fn flush(&self) {}
}

/// Runs the test's body in a separate process.
#[track_caller]
fn alone(test: &str, body: impl FnOnce()) {
    const MARK: &str = "UNDERSEAL_ALONE";
    if std::env::var_os(MARK).is_some() {
        log::set_logger(&Logger).unwrap();
        log::set_max_level(log::LevelFilter::Info);
        return body();
    }
    let ran = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(MARK, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && said.contains("1 passed"), "{}: {said}", ran.status);
}

fn errno<T>(result: io::Result<T>) -> Option<Errno> {
    result.err().and_then(|e| Errno::from_io_error(&e))
}

/// Checks the operations that must fail in every server.
#[track_caller]
fn is_shut_in() {
    assert_eq!(errno(File::open("/etc/passwd")), Some(Errno::ACCESS));
    assert_eq!(errno(fs::read_dir("/")), Some(Errno::ACCESS));
    assert!(Command::new("/bin/true").status().is_err());
    let internet = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None);
    assert_eq!(internet.err(), Some(Errno::PERM));
    // SAFETY: both are refused, and would not touch memory.
    let (traced, unshared) = unsafe {
        let traced = libc::ptrace(libc::PTRACE_TRACEME);
        (traced, libc::syscall(libc::SYS_unshare, libc::CLONE_NEWUSER))
    };
    assert_eq!((traced, unshared), (-1, -1));
    // SAFETY: an anonymous mapping of the kernel's choice.
    let code = unsafe {
        let both = libc::PROT_READ | libc::PROT_EXEC;
        libc::mmap(std::ptr::null_mut(), 4096, both, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    };
    assert_eq!(code, libc::MAP_FAILED);
    let sets = rustix::thread::capabilities(None);
    assert!(sets.is_err(), "not even asked for");
}

#[track_caller]
fn whole(state: &State) {
    let State { no_new_privileges, landlock, seccomp, missing, .. } = state;
    assert!(*no_new_privileges && landlock.is_some() && *seccomp && missing.is_empty(), "{state:?}");
}

#[test]
fn threads_of_before_and_after_are_shut_in() {
    alone("threads_of_before_and_after_are_shut_in", || {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let (go, gone) = mpsc::channel::<()>();
                (go, thread::spawn(move || gone.recv().map(|()| is_shut_in())))
            })
            .collect();
        whole(&enter(&Needs::default()));
        is_shut_in();
        thread::spawn(is_shut_in).join().unwrap();
        for (go, thread) in threads {
            go.send(()).unwrap();
            thread.join().unwrap().unwrap();
        }
    });
}

#[test]
fn threads_that_hold_back_all_signals_are_shut_in_too_and_are_not_the_process_s_end() {
    alone("threads_that_hold_back_all_signals_are_shut_in_too_and_are_not_the_process_s_end", || {
        let (go, gone) = mpsc::channel::<()>();
        let (is_deaf, deaf_by_now) = mpsc::channel();
        let deaf = thread::spawn(move || {
            // SAFETY: a set of signals that is filled before it is read.
            unsafe {
                let mut all = std::mem::zeroed();
                libc::sigfillset(&raw mut all);
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
            }
            is_deaf.send(()).unwrap();
            gone.recv().unwrap();
            // SIGSYS would end the process here.
            is_shut_in();
            thread::spawn(is_shut_in).join().unwrap();
        });
        deaf_by_now.recv().unwrap();
        whole(&enter(&Needs::default()));
        is_shut_in();
        go.send(()).unwrap();
        deaf.join().unwrap();
    });
}

#[test]
fn a_cluster_is_reached_wherever_it_is() {
    alone("a_cluster_is_reached_wherever_it_is", || {
        let machines = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        whole(&enter(&Needs { cluster: true, ..Needs::default() }));
        for machine in &machines {
            std::net::TcpStream::connect(machine.local_addr().unwrap()).unwrap();
        }
        assert!(std::net::TcpListener::bind("127.0.0.1:0").is_err());
    });
}

#[test]
fn threads_that_start_meanwhile_are_shut_in() {
    alone("threads_that_start_meanwhile_are_shut_in", || {
        let (sender, threads) = mpsc::channel();
        // The other threads outlive the steps.
        let entered = std::sync::Arc::new(std::sync::Barrier::new(CHAIN + 1));
        chain(CHAIN, &sender, &entered);
        whole(&enter(&Needs::default()));
        entered.wait();
        drop(sender);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

const CHAIN: usize = 300;

/// Starts a thread that starts the next thread.
fn chain(
    left: usize,
    sender: &mpsc::Sender<thread::JoinHandle<()>>,
    entered: &std::sync::Arc<std::sync::Barrier>,
) {
    if left > 0 {
        let (to, at) = (sender.clone(), entered.clone());
        let thread = thread::spawn(move || {
            chain(left - 1, &to, &at);
            drop(to);
            at.wait();
            is_shut_in();
        });
        sender.send(thread).unwrap();
    }
}

#[test]
fn files_are_those_that_were_asked_for() {
    alone("files_are_those_that_were_asked_for", files);
}

fn files() {
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name);
    for folder in ["images", "sockets", "logs"] {
        fs::create_dir(at(folder)).unwrap();
    }
    for name in
        ["images/one", "images/other", "sockets/s", "sockets/other", "logs/pid", "logs/log", "logs/secret"]
    {
        match name.strip_prefix("sockets/") {
            Some(_) => drop(UnixListener::bind(at(name)).unwrap()),
            None => fs::write(at(name), name).unwrap(),
        }
    }
    Helper::start(None, None).unwrap();
    will_remove(&at("sockets/s"), RemovedKind::Socket, number(&at("sockets/s")));
    will_remove(&at("logs/pid"), RemovedKind::RegularFile, number(&at("logs/pid")));
    // Files of another kind are not listed.
    will_remove(&at("logs/secret"), RemovedKind::Socket, number(&at("logs/secret")));
    will_remove(&at("sockets/other"), RemovedKind::RegularFile, number(&at("sockets/other")));
    will_open_log(&at("logs/log"), File::open(at("logs/log")).unwrap());
    whole(&enter(&Needs { images: vec![at("images/one")], ..Needs::default() }));
    File::options().read(true).write(true).open(at("images/one")).unwrap();
    assert_eq!(errno(File::open(at("images/other"))), Some(Errno::ACCESS));
    // No file in the folders can be opened: neither the listed files nor their neighbours.
    for name in
        ["images/one", "images/other", "sockets/s", "sockets/other", "logs/pid", "logs/log", "logs/secret"]
    {
        assert_eq!(errno(fs::remove_file(at(name))), Some(Errno::ACCESS), "{name}");
        if name != "images/one" {
            let append = File::options().append(true).open(at(name));
            assert_eq!(errno(append), Some(Errno::ACCESS), "{name}");
            assert_eq!(errno(File::open(at(name))), Some(Errno::ACCESS), "{name}");
        }
    }
    for name in ["images/new", "sockets/new", "logs/new"] {
        assert_eq!(errno(fs::write(at(name), "")), Some(Errno::ACCESS), "{name}");
    }
    // The helper performs listed operations only.
    for name in ["sockets/other", "logs/secret", "logs/../logs/pid"] {
        assert_eq!(errno(remove(&at(name))), Some(Errno::PERM), "{name}");
    }
    will_remove(&at("logs/secret"), RemovedKind::RegularFile, number(&at("logs/secret")));
    assert_eq!(errno(remove(&at("logs/secret"))), Some(Errno::PERM), "the list is sealed");
    will_open_log(&at("logs/secret"), File::open(at("images/one")).unwrap());
    io::Write::write_all(&mut open_log(&at("logs/secret")).unwrap(), b" more").unwrap();
    remove(&at("sockets/s")).unwrap();
    remove(&at("logs/pid")).unwrap();
    assert_eq!(errno(remove(&at("logs/pid"))), Some(Errno::NOENT));
    let there = |name: &str| fs::metadata(at(name)).map(|about| about.len()).ok();
    assert_eq!([there("sockets/s"), there("logs/pid")], [None, None]);
    assert_eq!([there("logs/log"), there("logs/secret")], [Some(13), Some(11)]);
    is_shut_in();
}

/// Returns a file's device and inode number.
fn number(path: &Path) -> (u64, u64) {
    let about = fs::symlink_metadata(path).unwrap();
    (about.dev(), about.ino())
}

#[test]
fn a_path_that_leads_elsewhere_by_the_time_it_is_listed_is_not_listed() {
    alone("a_path_that_leads_elsewhere_by_the_time_it_is_listed_is_not_listed", || {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        for folder in ["found", "later"] {
            fs::create_dir(at(folder)).unwrap();
            fs::write(at(folder).join("file"), folder).unwrap();
        }
        symlink(at("found"), at("link")).unwrap();
        let (path, log) = (at("link/file"), File::open(at("link/file")).unwrap());
        let found = number(&path);
        fs::remove_file(at("link")).unwrap();
        symlink(at("later"), at("link")).unwrap();
        Helper::start(None, None).unwrap();
        will_remove(&path, RemovedKind::RegularFile, found);
        will_open_log(&path, log);
        assert_eq!(errno(remove(&path)), Some(Errno::PERM));
        assert_eq!(errno(open_log(&path)), Some(Errno::PERM));
        assert!(at("later/file").exists());
    });
}

#[test]
fn a_file_that_took_a_listed_one_s_place_stays() {
    alone("a_file_that_took_a_listed_one_s_place_stays", || {
        let scratch = tempfile::tempdir().unwrap();
        let (path, aside) = (scratch.path().join("s"), scratch.path().join("aside"));
        fs::write(&path, "").unwrap();
        Helper::start(None, None).unwrap();
        will_remove(&path, RemovedKind::RegularFile, number(&path));
        fs::rename(&path, &aside).unwrap();
        fs::write(&path, "another").unwrap();
        whole(&enter(&Needs::default()));
        assert_eq!(errno(remove(&path)), Some(Errno::STALE));
        assert!(path.exists() && aside.exists());
    });
}

#[test]
fn nothing_is_connected_to_and_no_datagram_has_an_address() {
    alone("nothing_is_connected_to_and_no_datagram_has_an_address", || {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("other");
        let _other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        whole(&enter(&Needs::default()));
        assert_eq!(errno(UnixStream::connect(&path)), Some(Errno::PERM));
        assert_eq!(errno(std::os::unix::net::UnixDatagram::unbound()), Some(Errno::PERM));
        assert_eq!(errno(std::os::unix::net::UnixDatagram::pair()), Some(Errno::PERM));
        let (one, _two) = UnixStream::pair().unwrap();
        let to = rustix::net::SocketAddrUnix::new(&path).unwrap();
        assert_eq!(rustix::net::connect(&one, &to), Err(Errno::PERM));
        let flags = rustix::net::SendFlags::NOSIGNAL;
        assert_eq!(rustix::net::sendto(&one, b"x", flags, &to), Err(Errno::PERM));
        assert_eq!(rustix::net::send(&one, b"x", flags), Ok(1));
    });
}

#[test]
fn no_process_is_signalled_or_slowed() {
    use std::os::fd::AsRawFd;
    alone("no_process_is_signalled_or_slowed", || {
        let mut other = Command::new("sleep")
            .arg("5")
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let pid = i32::try_from(other.id()).unwrap();
        let (one, _two) = UnixStream::pair().unwrap();
        whole(&enter(&Needs::default()));
        let fd = one.as_raw_fd();
        let owner = [0, pid];
        let mask = [1_u64; 16];
        // SAFETY: numbers, and memory that outlives the calls.
        let results = unsafe {
            [
                libc::syscall(libc::SYS_kill, pid, libc::SIGKILL),
                libc::syscall(libc::SYS_fcntl, fd, libc::F_SETOWN, pid),
                libc::syscall(libc::SYS_fcntl, fd, 15, owner.as_ptr()),
                libc::syscall(libc::SYS_fcntl, fd, 10, libc::SIGKILL),
                libc::syscall(libc::SYS_fcntl, fd, 1024, libc::F_RDLCK),
                libc::syscall(libc::SYS_fcntl, fd, 1026, 1),
                libc::syscall(libc::SYS_ioctl, fd, 0x8901, &raw const pid),
                libc::syscall(libc::SYS_ioctl, fd, 0x8902, &raw const pid),
                libc::syscall(libc::SYS_ioctl, fd, 0x5452, &raw const pid),
                libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, pid, 19),
                libc::syscall(libc::SYS_setpriority, libc::PRIO_USER, 0, 19),
                libc::syscall(libc::SYS_sched_setaffinity, pid, 8, mask.as_ptr()),
            ]
        };
        assert_eq!(results, [-1; 12]);
        rustix::process::setpriority_process(None, 5).unwrap();
        // SAFETY: the standard calls, for descriptors of this process.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        assert!(flags >= 0);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) }, 0);
        assert!(other.try_wait().map_or(true, |ended| ended.is_none()), "the other process lives");
    });
}

#[test]
fn another_process_tells_that_this_one_is_inside() {
    alone("another_process_tells_that_this_one_is_inside", || {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(!is_inside(own).unwrap());
        Helper::start(None, None).unwrap();
        whole(&enter(&Needs::default()));
        assert!(is_inside(own).unwrap());
        let raised = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: an existing limit.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MSGQUEUE, &raw const raised) }, -1);
        assert!(is_inside(0).is_err() && is_inside(-1).is_err());
    });
}

#[test]
fn another_user_s_files_stay_within_reach() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    alone("another_user_s_files_stay_within_reach", || {
        let scratch = tempfile::tempdir().unwrap();
        let (image, folder) = (scratch.path().join("image"), scratch.path().join("folder"));
        fs::write(&image, "").unwrap();
        fs::create_dir(&folder).unwrap();
        let socket = folder.join("s");
        drop(UnixListener::bind(&socket).unwrap());
        for path in [&image, &folder] {
            fs::set_permissions(path, Permissions::from_mode(0o700)).unwrap();
            chown(path, Some(1234), Some(1234)).unwrap();
        }
        Helper::start(None, None).unwrap();
        will_remove(&socket, RemovedKind::Socket, number(&socket));
        let state = enter(&Needs { images: vec![image.clone()], ..Needs::default() });
        whole(&state);
        assert_eq!(state.capabilities, ["dac_override"]);
        File::options().read(true).write(true).open(&image).unwrap();
        remove(&socket).unwrap();
    });
}

#[test]
fn a_refused_call_is_named_once() {
    alone("a_refused_call_is_named_once", || {
        whole(&enter(&Needs::default()));
        for _ in 0..3 {
            // SAFETY: it is refused, and would not touch memory.
            assert_eq!(unsafe { libc::ptrace(libc::PTRACE_TRACEME) }, -1);
            assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EPERM));
        }
        let named = || LOG.lock().unwrap().iter().filter(|line| line.contains("call ptrace (")).count();
        let deadline = Instant::now() + Duration::from_secs(60);
        while named() == 0 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
        thread::sleep(Duration::from_millis(50));
        assert_eq!(named(), 1, "{:?}", LOG.lock().unwrap());
    });
}

#[test]
fn a_lower_server_is_reached_again_and_no_other() {
    alone("a_lower_server_is_reached_again_and_no_other", || {
        let listen = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (lower, other) = (listen(), listen());
        let (to, elsewhere) = [&lower, &other].map(|one| Target::Tcp(one.local_addr().unwrap())).into();
        Helper::start(None, None).unwrap();
        will_connect(to);
        whole(&enter(&Needs::default()));
        let (_socket, _) = connect_to(to).unwrap();
        lower.accept().unwrap();
        assert_eq!(errno(connect_to(elsewhere)), Some(Errno::PERM));
        let direct = std::net::TcpStream::connect(lower.local_addr().unwrap());
        assert_eq!(errno(direct), Some(Errno::PERM));
    });
}

#[test]
fn a_log_behind_another_user_s_link_is_not_opened_again() {
    alone("a_log_behind_another_user_s_link_is_not_opened_again", || {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        fs::write(at("secret"), "").unwrap();
        symlink("secret", at("log")).unwrap();
        if std::os::unix::fs::lchown(at("log"), Some(61_234), None).is_err() {
            return underseal_testing::skip("a link of another user", "giving it away needs root");
        }
        Helper::start(None, None).unwrap();
        will_open_log(&at("log"), File::open(at("log")).unwrap());
        assert_eq!(errno(open_log(&at("log"))), Some(Errno::PERM));
    });
}

#[test]
fn a_tree_can_be_worked_in() {
    alone("a_tree_can_be_worked_in", || {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        fs::create_dir_all(at("tree/folder")).unwrap();
        fs::write(at("beside"), "").unwrap();
        let tree = std::sync::Arc::new(File::open(at("tree")).unwrap().into());
        whole(&enter(&Needs { tree: Some(tree), ..Needs::default() }));
        fs::write(at("tree/file"), "x").unwrap();
        fs::rename(at("tree/file"), at("tree/folder/file")).unwrap();
        fs::hard_link(at("tree/folder/file"), at("tree/link")).unwrap();
        let open = File::open(at("tree/link")).unwrap();
        fs::remove_file(at("tree/link")).unwrap();
        fs::remove_file(at("tree/folder/file")).unwrap();
        // The open file has no name any more.
        use std::os::fd::AsRawFd;
        let again = format!("/proc/self/fd/{}", open.as_raw_fd());
        assert_eq!(fs::read(again).unwrap(), b"x");
        fs::remove_dir(at("tree/folder")).unwrap();
        assert_eq!(errno(File::open(at("beside"))), Some(Errno::ACCESS));
        assert_eq!(errno(fs::rename(at("beside"), at("tree/in"))), Some(Errno::ACCESS));
        File::open(format!("/proc/{}/status", std::process::id())).unwrap();
        if rustix::process::geteuid().is_root() {
            let (folder, mode) = (File::open(at("tree")).unwrap(), rustix::fs::Mode::RUSR);
            for kind in [rustix::fs::FileType::BlockDevice, rustix::fs::FileType::CharacterDevice] {
                let made = rustix::fs::mknodat(&folder, "node", kind, mode, rustix::fs::makedev(7, 0));
                // Landlock refuses it before the missing capability does.
                assert_eq!(made, Err(Errno::ACCESS));
            }
        }
    });
}
