//! Kernels without some features of the sandbox.

use super::*;

/// Makes a system call unknown to this process.
fn lacks(call: i64, errno: i32) {
    lacks_where(call, Vec::new(), errno);
}

/// The same, for calls whose arguments match a rule.
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
    alone("levels::a_kernel_without_landlock_is_told_of_once", || {
        lacks(libc::SYS_landlock_create_ruleset, libc::ENOSYS);
        let state = enter(&Needs::default());
        assert_eq!((state.landlock, state.seccomp, state.no_new_privileges), (None, true, true));
        assert_eq!(state.missing.len(), 1, "{state:?}");
        File::open("/etc/passwd").unwrap();
        let log = LOG.lock().unwrap();
        assert!(log.len() == 1 && log[0].starts_with("WARN the sandbox lacks Landlock"), "{log:?}");
    });
}

#[test]
fn a_kernel_without_seccomp_keeps_the_rest() {
    alone("levels::a_kernel_without_seccomp_keeps_the_rest", || {
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
    alone("levels::a_filter_that_is_there_already_is_not_taken_for_ours", || {
        // As in some sandboxes: unknown options of prctl(2) are not permitted.
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
