//! What a process can do in the sandbox, from within. Each test runs in a process of its own, since there is no way back.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use underseal_sandbox::{Helper, Needs, Server, State, enter};

/// What was logged.
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

/// Runs the test's body in a process of its own.
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

/// What must fail wherever servers run.
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
            // With SIGSYS this would end the process.
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
        // The others outlive the moment.
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

/// Starts a thread that starts the next one.
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
    for name in ["images/one", "images/other", "sockets/s", "logs/pid", "logs/secret"] {
        fs::write(at(name), name).unwrap();
    }
    let needs = Needs {
        images: vec![at("images/one")],
        removed: vec![at("sockets/s")],
        pid_file: Some(at("logs/pid")),
        log_file: Some(at("logs/log")),
        ..Needs::default()
    };
    whole(&enter(&needs));
    File::options().read(true).write(true).open(at("images/one")).unwrap();
    assert_eq!(errno(File::open(at("images/other"))), Some(Errno::ACCESS));
    assert_eq!(errno(fs::remove_file(at("images/one"))), Some(Errno::ACCESS));
    fs::remove_file(at("sockets/s")).unwrap();
    assert_eq!(errno(fs::write(at("sockets/t"), "")), Some(Errno::ACCESS));
    assert_eq!(fs::read_to_string(at("logs/pid")).unwrap(), "logs/pid");
    fs::remove_file(at("logs/pid")).unwrap();
    File::options().append(true).create(true).open(at("logs/log")).unwrap();
    assert_eq!(errno(File::open(at("logs/secret"))), Some(Errno::ACCESS));
    is_shut_in();
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
        fs::write(&socket, "").unwrap();
        for path in [&image, &folder] {
            fs::set_permissions(path, Permissions::from_mode(0o700)).unwrap();
            chown(path, Some(1234), Some(1234)).unwrap();
        }
        let needs = Needs { images: vec![image.clone()], removed: vec![socket.clone()], ..Needs::default() };
        let state = enter(&needs);
        whole(&state);
        assert_eq!(state.capabilities, ["dac_override", "fowner"]);
        File::options().read(true).write(true).open(&image).unwrap();
        fs::remove_file(&socket).unwrap();
    });
}

#[test]
fn what_is_not_there_needs_no_capability() {
    alone("what_is_not_there_needs_no_capability", || {
        let scratch = tempfile::tempdir().unwrap();
        let needs = Needs { removed: vec![scratch.path().join("no folder/s")], ..Needs::default() };
        let state = enter(&needs);
        whole(&state);
        assert!(state.capabilities.is_empty(), "{state:?}");
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

/// Makes a system call unknown to this process.
fn lacks(call: i64, errno: i32) {
    lacks_where(call, Vec::new(), errno);
}

/// The same, where a rule says so of its arguments.
fn lacks_where(call: i64, rules: Vec<SeccompRule>, errno: i32) {
    let filter = SeccompFilter::new(
        [(call, rules)].into(),
        SeccompAction::Allow,
        SeccompAction::Errno(errno.cast_unsigned()),
        std::env::consts::ARCH.try_into().unwrap(),
    );
    let filter: BpfProgram = filter.unwrap().try_into().unwrap();
    seccompiler::apply_filter(&filter).unwrap();
}

#[test]
fn a_kernel_without_landlock_is_told_of_once() {
    alone("a_kernel_without_landlock_is_told_of_once", || {
        lacks(libc::SYS_landlock_create_ruleset, libc::ENOSYS);
        let state = enter(&Needs::default());
        assert_eq!((state.landlock, state.seccomp, state.no_new_privileges), (None, true, true));
        assert_eq!(state.missing.len(), 1, "{state:?}");
        File::open("/etc/passwd").unwrap();
        let log = LOG.lock().unwrap();
        assert!(log.len() == 1 && log[0].starts_with("WARN the sandbox goes without Landlock"), "{log:?}");
    });
}

#[test]
fn a_kernel_without_seccomp_keeps_the_rest() {
    alone("a_kernel_without_seccomp_keeps_the_rest", || {
        lacks(libc::SYS_seccomp, libc::EINVAL);
        let state = enter(&Needs::default());
        assert_eq!((state.landlock.is_some(), state.seccomp, state.no_new_privileges), (true, false, true));
        assert!(state.missing.len() == 1 && state.missing[0].contains("seccomp"), "{state:?}");
        assert_eq!(errno(File::open("/etc/passwd")), Some(Errno::ACCESS));
        let sets = rustix::thread::capabilities(None).unwrap();
        assert!(sets.permitted.is_empty() && sets.effective.is_empty() && sets.inheritable.is_empty());
    });
}

#[test]
fn a_filter_that_is_there_already_is_not_taken_for_ours() {
    alone("a_filter_that_is_there_already_is_not_taken_for_ours", || {
        // As some sandboxes have it: an option of prctl(2) that they do not know is not permitted.
        let known = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Gt, 100).unwrap();
        lacks_where(libc::SYS_prctl, vec![SeccompRule::new(vec![known]).unwrap()], libc::EPERM);
        let (go, gone) = mpsc::channel::<()>();
        let thread = thread::spawn(move || gone.recv().map(|()| errno(File::open("/etc/passwd"))));
        let state = enter(&Needs::default());
        assert_eq!((state.landlock.is_some(), state.seccomp, state.no_new_privileges), (true, false, true));
        assert!(state.missing.len() == 1 && state.missing[0].contains("seccomp"), "{state:?}");
        assert_eq!(errno(File::open("/etc/passwd")), Some(Errno::ACCESS));
        go.send(()).unwrap();
        assert_eq!(thread.join().unwrap().unwrap(), Some(Errno::ACCESS));
        assert!(rustix::thread::capabilities(None).unwrap().permitted.is_empty());
    });
}

#[test]
fn a_helper_that_fails_without_a_word_has_failed() {
    alone("a_helper_that_fails_without_a_word_has_failed", || {
        Helper::start(|lazily| {
            if lazily {
                // SAFETY: it ends the process.
                unsafe { libc::_exit(0) }
            }
            Err(io::Error::other(""))
        })
        .unwrap();
        let helper = Helper::get().unwrap();
        assert_eq!(helper.unmount(false).unwrap_err().to_string(), "");
        for _ in 0..2 {
            let gone = helper.unmount(true).unwrap_err().to_string();
            assert_eq!(gone, "the process that was started to unmount it is gone");
        }
    });
}

#[test]
fn who_ends_the_process_waits_for_no_unmounting_that_stands_still() {
    alone("who_ends_the_process_waits_for_no_unmounting_that_stands_still", || {
        Helper::start(|_| {
            thread::sleep(Duration::from_secs(60));
            Ok(())
        })
        .unwrap();
        let (begins, begun) = mpsc::channel();
        thread::spawn(move || {
            begins.send(()).unwrap();
            Helper::get().unwrap().unmount(false)
        });
        begun.recv().unwrap();
        thread::sleep(Duration::from_millis(200));
        let busy = Helper::get().unwrap().unmount(true).unwrap_err();
        assert_eq!(busy.kind(), io::ErrorKind::ResourceBusy);
    });
}

#[test]
fn a_lower_server_is_reached_again_and_no_other() {
    alone("a_lower_server_is_reached_again_and_no_other", || {
        let listen = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (lower, other) = (listen(), listen());
        let port = lower.local_addr().unwrap().port();
        let state = enter(&Needs { servers: vec![Server::Tcp(port)], ..Needs::default() });
        whole(&state);
        std::net::TcpStream::connect(lower.local_addr().unwrap()).unwrap();
        // Landlock knows TCP from Linux 6.7 on.
        if state.landlock >= Some(4) {
            let refused = std::net::TcpStream::connect(other.local_addr().unwrap());
            assert_eq!(errno(refused), Some(Errno::ACCESS));
        }
    });
}

#[test]
fn a_tree_can_be_worked_in() {
    alone("a_tree_can_be_worked_in", || {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        fs::create_dir_all(at("tree/folder")).unwrap();
        fs::write(at("beside"), "").unwrap();
        whole(&enter(&Needs { tree: Some(at("tree")), ..Needs::default() }));
        fs::write(at("tree/file"), "x").unwrap();
        fs::rename(at("tree/file"), at("tree/folder/file")).unwrap();
        fs::hard_link(at("tree/folder/file"), at("tree/link")).unwrap();
        let open = File::open(at("tree/link")).unwrap();
        fs::remove_file(at("tree/link")).unwrap();
        fs::remove_file(at("tree/folder/file")).unwrap();
        // One that is open and has no name any more.
        use std::os::fd::AsRawFd;
        let again = format!("/proc/self/fd/{}", open.as_raw_fd());
        assert_eq!(fs::read(again).unwrap(), b"x");
        fs::remove_dir(at("tree/folder")).unwrap();
        assert_eq!(errno(File::open(at("beside"))), Some(Errno::ACCESS));
        assert_eq!(errno(fs::rename(at("beside"), at("tree/in"))), Some(Errno::ACCESS));
        File::open(format!("/proc/{}/status", std::process::id())).unwrap();
    });
}

#[test]
fn the_helper_does_what_it_is_asked_and_holds_nothing() {
    alone("the_helper_does_what_it_is_asked_and_holds_nothing", || {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        Helper::start(|lazily| {
            if lazily {
                return Err(Errno::BUSY.into());
            }
            let open = fs::read_dir("/proc/self/fd")?.count();
            let status = fs::read_to_string("/proc/self/status")?;
            let of =
                |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("").trim();
            Err(io::Error::other(format!("{open} {} {}", of("CapEff:"), of("NoNewPrivs:"))))
        })
        .unwrap();
        let helper = Helper::get().unwrap();
        whole(&enter(&Needs::default()));
        assert_eq!(errno(helper.unmount(true)), Some(Errno::BUSY));
        let said = helper.unmount(false).unwrap_err().to_string();
        // The standard three, the socket, and the folder that is being read. SYS_ADMIN and DAC_READ_SEARCH.
        let root = rustix::process::geteuid().is_root();
        assert!(said == "5 0000000000200004 1" || !root && said.starts_with("5 "), "{said}");
        // Nobody else holds what the server had open.
        drop(theirs);
        ours.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(io::Read::read(&mut ours, &mut [0]).unwrap(), 0);
    });
}
