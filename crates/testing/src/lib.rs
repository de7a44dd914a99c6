//! Functions that the tests of all crates share: waiting with a limit, and skipping.

#![forbid(unsafe_code)]

use std::env;
use std::fs::File;
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

/// The longest wait for an event that takes a moment, on a slow and busy machine. Only a failing
/// test waits for all of it.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Waits until `holds` returns true, and fails after `limit`.
#[track_caller]
pub fn wait_until(what: &str, limit: Duration, holds: impl FnMut() -> bool) {
    assert!(within(limit, holds), "waited {limit:?} until {what}");
}

/// Waits until `holds` returns true, at most for `limit`. Returns whether it did.
pub fn within(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while !holds() {
        if started.elapsed() > limit {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Says that a test, or a part of it, does not run here, and why. It joins the list that
/// `UNDERSEAL_SKIPPED` names, which `scripts/test` prints at its end. With `UNDERSEAL_NO_SKIP=1`
/// the test fails.
#[track_caller]
pub fn skip(part: &str, reason: &str) {
    let line = format!("{}: {part}: {reason}\n", test());
    if let Some(list) = env::var_os("UNDERSEAL_SKIPPED") {
        // A single write keeps lines of concurrent tests apart.
        let written = File::options().append(true).create(true).open(&list);
        written.and_then(|mut list| list.write_all(line.as_bytes())).expect("the list of skipped tests");
    }
    // Not by a macro, whose words a test that passes does not show.
    let _ = std::io::stderr().write_all(format!("skipped: {line}").as_bytes());
    assert!(env::var_os("UNDERSEAL_NO_SKIP").is_none_or(|set| set != "1"), "no test may be skipped: {line}");
}

/// The program of tests and the test in it that runs on this thread.
fn test() -> String {
    let program = env::current_exe().unwrap_or_default();
    let name = program.file_stem().unwrap_or_default().to_string_lossy();
    // Without cargo's hash.
    let name = name.rsplit_once('-').map_or(&*name, |(name, _)| name);
    // Where one test runs at a time it has no thread of its own.
    let current = thread::current();
    let given = env::var("NEXTEST_TEST_NAME").ok();
    match current.name().filter(|&name| name != "main").or(given.as_deref()) {
        Some(test) => format!("{name} {test}"),
        None => name.to_owned(),
    }
}
