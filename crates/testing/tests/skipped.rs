//! A test that does not run is counted, or fails.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// Runs the test below in a process of its own.
fn child(list: &Path, no_skip: &str) -> Output {
    let mut own = Command::new(std::env::current_exe().unwrap());
    own.args(["--exact", "one_that_is_skipped", "--ignored", "--test-threads=2"]);
    own.env("UNDERSEAL_SKIPPED", list).env("UNDERSEAL_NO_SKIP", no_skip).output().unwrap()
}

#[test]
#[ignore = "run by the test below in a process of its own"]
fn one_that_is_skipped() {
    underseal_testing::skip("its part", "there is nothing here");
    underseal_testing::skip("another", "nor there");
}

#[test]
fn what_is_skipped_is_listed_and_fails_where_nothing_may_be() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("list");
    let first = "skipped one_that_is_skipped: its part: there is nothing here\n";
    let second = "skipped one_that_is_skipped: another: nor there\n";
    for no_skip in ["", "0"] {
        let passed = child(&list, no_skip);
        assert!(passed.status.success(), "{passed:?}");
        assert_eq!(fs::read_to_string(&list).unwrap(), [first, second].concat());
        assert!(String::from_utf8_lossy(&passed.stderr).contains(first), "{passed:?}");
        fs::remove_file(&list).unwrap();
    }
    let failed = child(&list, "1");
    assert!(!failed.status.success(), "{failed:?}");
    assert_eq!(fs::read_to_string(&list).unwrap(), first, "what fails is listed too, and ends the test");
}

#[test]
fn what_does_not_come_is_not_waited_for_without_end() {
    use std::time::Duration;
    assert!(!underseal_testing::within(Duration::from_millis(20), || false));
    let mut times = 0;
    underseal_testing::wait_until("it was asked three times", underseal_testing::PATIENCE, || {
        times += 1;
        times == 3
    });
}
