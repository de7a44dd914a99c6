//! The rights that stay, and the reports of the ones that could not be dropped.

use std::io::{Read, Seek};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::StatVfsMountFlags;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use underseal_sandbox::{OwnTree, Rings, mount_of};

use super::*;

/// Returns a set of this thread's capabilities; the file was opened before the sandbox.
fn set(status: &mut File, name: &str) -> u64 {
    let mut text = String::new();
    status.rewind().unwrap();
    status.read_to_string(&mut text).unwrap();
    let set = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    u64::from_str_radix(set.trim(), 16).unwrap()
}

#[test]
fn executed_programs_get_the_capabilities_that_stay_and_no_others() {
    alone("rights::executed_programs_get_the_capabilities_that_stay_and_no_others", || {
        if !rustix::process::geteuid().is_root() {
            return underseal_testing::skip("capabilities", "a user has none");
        }
        let mut status = File::open("/proc/thread-self/status").unwrap();
        let nice = CapabilitySet::SYS_NICE.bits() & set(&mut status, "CapPrm:");
        let state = enter(&Needs { high_priority: true, ..Needs::default() });
        assert!(state.bounded && state.missing.is_empty(), "{state:?}");
        for name in ["CapPrm:", "CapEff:", "CapBnd:"] {
            assert_eq!(set(&mut status, name), nice, "{name}");
        }
    });
}

#[test]
fn a_bounding_set_that_could_not_be_changed_is_told() {
    alone("rights::a_bounding_set_that_could_not_be_changed_is_told", || {
        let mut sets = capabilities(None).unwrap();
        sets.effective -= CapabilitySet::SETPCAP;
        sets.permitted -= CapabilitySet::SETPCAP;
        set_capabilities(None, sets).unwrap();
        let mut status = File::open("/proc/thread-self/status").unwrap();
        let before = set(&mut status, "CapBnd:");
        let state = enter(&Needs::default());
        assert_eq!((state.bounded, set(&mut status, "CapBnd:")), (before == 0, before));
    });
}

#[test]
fn memory_can_be_locked_once_the_capability_is_gone() {
    alone("rights::memory_can_be_locked_once_the_capability_is_gone", || {
        if !capabilities(None).unwrap().effective.contains(CapabilitySet::IPC_LOCK) {
            return underseal_testing::skip("locked memory", "a user keeps his limit");
        }
        let maximum = getrlimit(Resource::Memlock).maximum;
        setrlimit(Resource::Memlock, Rlimit { current: Some(4096), maximum }).unwrap();
        whole(&enter(&Needs::default()));
        let limit = getrlimit(Resource::Memlock);
        assert!(limit.current == limit.maximum && limit.current != Some(4096), "{limit:?}");
    });
}

/// Returns the errors of system calls that make, use and restrict rings. Linux refuses each of them
/// for its arguments, whatever their memory holds.
fn rings() -> [Option<i32>; 3] {
    let error = |done: i64| (done == -1).then(|| io::Error::last_os_error().raw_os_error().unwrap());
    /// `IORING_REGISTER_RESTRICTIONS`.
    const RESTRICTIONS: i32 = 11;
    // SAFETY: a ring without entries, and no ring: the calls end before memory is accessed.
    unsafe {
        [
            error(libc::syscall(libc::SYS_io_uring_setup, 0, std::ptr::null::<u8>())),
            error(libc::syscall(libc::SYS_io_uring_enter, -1, 0, 0, 0, std::ptr::null::<u8>(), 0)),
            error(libc::syscall(libc::SYS_io_uring_register, -1, RESTRICTIONS, std::ptr::null::<u8>(), 0)),
        ]
    }
}

#[test]
fn a_server_without_rings_makes_and_uses_none() {
    alone("rights::a_server_without_rings_makes_and_uses_none", || {
        let state = enter(&Needs::default());
        assert_eq!((state.rings, rings()), (true, [Some(libc::EPERM); 3]));
    });
}

#[test]
fn a_server_uses_its_rings_and_makes_no_more() {
    alone("rights::a_server_uses_its_rings_and_makes_no_more", || {
        let [_, used, _] = rings();
        let state = enter(&Needs { rings: Rings::There, ..Needs::default() });
        assert_eq!((state.rings, rings()), (true, [Some(libc::EPERM), used, Some(libc::EPERM)]));
    });
}

#[test]
fn a_server_that_makes_rings_of_any_kind_says_so() {
    alone("rights::a_server_that_makes_rings_of_any_kind_says_so", || {
        let before = rings();
        let state = enter(&Needs { rings: Rings::Any, ..Needs::default() });
        assert_eq!((state.rings, rings()), (false, before));
    });
}

#[test]
fn devices_and_sockets_are_asked_for_their_sizes() {
    alone("rights::devices_and_sockets_are_asked_for_their_sizes", || {
        let (one, two) = UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        whole(&enter(&Needs::default()));
        io::Write::write_all(&mut &one, b"four").unwrap();
        assert_eq!(rustix::io::ioctl_fionread(&two), Ok(4));
        // A file has no size of a block device.
        assert_eq!(rustix::fs::ioctl_blksszget(&file), Err(Errno::NOTTY));
    });
}

#[test]
fn headers_are_locked_in_their_folder() {
    alone("rights::headers_are_locked_in_their_folder", || {
        let scratch = tempfile::tempdir().unwrap();
        let locks = scratch.path().join("locks");
        fs::create_dir(&locks).unwrap();
        whole(&enter(&Needs { locks: Some(locks.clone()), ..Needs::default() }));
        let open =
            || File::options().read(true).write(true).create(true).truncate(false).open(locks.join("L"));
        open().unwrap().lock().unwrap();
        open().unwrap();
        fs::remove_file(locks.join("L")).unwrap();
        assert_eq!(errno(File::create(scratch.path().join("beside"))), Some(Errno::ACCESS));
    });
}

#[test]
fn a_server_of_a_tree_has_an_empty_root() {
    alone("rights::a_server_of_a_tree_has_an_empty_root", || {
        let scratch = tempfile::tempdir().unwrap();
        fs::write(scratch.path().join("file"), "x").unwrap();
        // As most systems have it: a mount in another namespace would be seen here.
        let shared = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
        let own = links::own_mounts().and_then(|()| mount_change("/", shared));
        let folder: OwnedFd = File::open(scratch.path()).unwrap().into();
        let proc = || mount_of(&File::open("/proc").unwrap().into()).unwrap();
        let before = proc();
        let own = own.map_err(io::Error::from).and_then(|()| OwnTree::of(&folder, false));
        let OwnTree { tree, root } = match own {
            // Without root's rights, or before Linux 5.12.
            Err(e) if [io::ErrorKind::PermissionDenied, io::ErrorKind::Unsupported].contains(&e.kind()) => {
                return underseal_testing::skip("a root of its own", &e.to_string());
            }
            own => own.unwrap(),
        };
        assert_eq!(proc(), before, "the root is attached");
        let safe = StatVfsMountFlags::NODEV;
        assert!(rustix::fs::fstatvfs(&tree).unwrap().f_flag.contains(safe));
        let safe = safe | StatVfsMountFlags::NOSUID | StatVfsMountFlags::NOEXEC | StatVfsMountFlags::RDONLY;
        assert!(rustix::fs::fstatvfs(&root).unwrap().f_flag.contains(safe));
        let tree = Arc::new(tree);
        whole(&enter(&Needs { tree: Some(tree.clone()), root: Some(Arc::new(root)), ..Needs::default() }));
        assert_eq!(errno(fs::metadata(scratch.path())), Some(Errno::NOENT));
        fs::metadata("/proc/self").unwrap();
        let flags = rustix::fs::OFlags::RDONLY;
        rustix::fs::openat(&*tree, "file", flags, rustix::fs::Mode::empty()).unwrap();
    });
}

#[test]
fn a_refused_call_of_a_thread_that_was_there_before_is_named_too() {
    alone("rights::a_refused_call_of_a_thread_that_was_there_before_is_named_too", || {
        let (go, gone) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            gone.recv().unwrap();
            // SAFETY: it is refused, and would not touch memory.
            unsafe { libc::ptrace(libc::PTRACE_TRACEME) }
        });
        whole(&enter(&Needs::default()));
        go.send(()).unwrap();
        assert_eq!(thread.join().unwrap(), -1);
        let is_named = || LOG.lock().unwrap().iter().any(|line| line.contains("call ptrace ("));
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_named() {
            assert!(Instant::now() < deadline, "{:?}", LOG.lock().unwrap());
            thread::sleep(Duration::from_millis(10));
        }
    });
}
