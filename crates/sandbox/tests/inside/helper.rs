//! The process that unmounts for a sandboxed server.

use underseal_sandbox::IDENTITY;

use super::*;

#[test]
fn a_helper_that_fails_without_a_word_has_failed() {
    alone("helper::a_helper_that_fails_without_a_word_has_failed", || {
        let answer = |asked: Asked<'_>| {
            if asked == (Asked::Unmount { lazily: true }) {
                // SAFETY: it ends the process.
                unsafe { libc::_exit(0) }
            }
            Err(io::Error::other(""))
        };
        Helper::start(Some(OfMount { answer: &answer, keeps: &[] }), None).unwrap();
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
    alone("helper::who_ends_the_process_waits_for_no_unmounting_that_stands_still", || {
        let answer = |_: Asked<'_>| {
            thread::sleep(Duration::from_secs(60));
            Ok(())
        };
        Helper::start(Some(OfMount { answer: &answer, keeps: &[] }), None).unwrap();
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
fn the_helper_does_what_it_is_asked_and_holds_nothing() {
    alone("helper::the_helper_does_what_it_is_asked_and_holds_nothing", || {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let answer = |asked: Asked<'_>| {
            if asked == (Asked::Unmount { lazily: true }) {
                return Err(Errno::BUSY.into());
            }
            let open = fs::read_dir("/proc/self/fd")?.count();
            let status = fs::read_to_string("/proc/self/status")?;
            let of =
                |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("").trim();
            Err(io::Error::other(format!("{open} {} {}", of("CapEff:"), of("NoNewPrivs:"))))
        };
        Helper::start(Some(OfMount { answer: &answer, keeps: &[] }), None).unwrap();
        let helper = Helper::get().unwrap();
        whole(&enter(&Needs::default()));
        assert_eq!(errno(helper.unmount(true)), Some(Errno::BUSY));
        let said = helper.unmount(false).unwrap_err().to_string();
        // The standard three descriptors, the two sockets, the pair for the signal of the server's
        // end, and the folder that is being read.
        // SYS_ADMIN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER.
        let root = rustix::process::geteuid().is_root();
        assert!(said == "8 000000000020000e 1" || !root && said.starts_with("8 "), "{said}");
        // No other process holds the server's open descriptors.
        drop(theirs);
        ours.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(io::Read::read(&mut ours, &mut [0]).unwrap(), 0);
    });
}

#[test]
fn the_helper_learns_once_which_mount_it_is_to_unmount() {
    alone("helper::the_helper_learns_once_which_mount_it_is_to_unmount", || {
        let answer = |asked: Asked<'_>| match asked {
            Asked::Mounted(identity) => Err(io::Error::other(format!("{identity:?}"))),
            _ => Ok(()),
        };
        Helper::start(Some(OfMount { answer: &answer, keeps: &[] }), None).unwrap();
        let helper = Helper::get().unwrap();
        let identity = [7; IDENTITY];
        assert_eq!(helper.mounted(&identity).unwrap_err().to_string(), format!("{identity:?}"));
        assert_eq!(errno(helper.mounted(&identity)), Some(Errno::PERM));
        helper.unmount(false).unwrap();
    });
}

#[test]
fn a_lower_server_with_a_path_is_reached_again_and_its_neighbour_is_not() {
    alone("helper::a_lower_server_with_a_path_is_reached_again_and_its_neighbour_is_not", || {
        let scratch = tempfile::tempdir().unwrap();
        let [lower, other] = ["lower", "other"].map(|name| scratch.path().join(name));
        let [server, _other] = [&lower, &other].map(|path| UnixListener::bind(path).unwrap());
        Helper::start(None, None).unwrap();
        will_connect(Target::Unix(&lower));
        whole(&enter(&Needs::default()));
        let (_socket, _) = connect_to(Target::Unix(&lower)).unwrap();
        server.accept().unwrap();
        assert_eq!(errno(connect_to(Target::Unix(&other))), Some(Errno::PERM));
        assert_eq!(errno(UnixStream::connect(&lower)), Some(Errno::PERM));
    });
}
