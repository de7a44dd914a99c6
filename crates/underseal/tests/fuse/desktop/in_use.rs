//! The end of a server whose file system is in use, whose session ends, whose disk is full, or
//! whose loop device another file has by then.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{Desktop, HONEST, end, unable};
use crate::support::scratch::assert_same;
use crate::support::bytes;

/// The processes that a process has started, with their command lines.
fn children(parent: u32) -> Vec<(Pid, String)> {
    let read = |path: &Path, what: &str| fs::read(path.join(what)).unwrap_or_default();
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let of_parent = processes.filter_map(|path| {
        let stat = String::from_utf8_lossy(&read(&path, "stat")).into_owned();
        let of = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok()?;
        let pid = Pid::from_raw(path.file_name()?.to_str()?.parse().ok()?)?;
        (of == parent).then(|| (pid, String::from_utf8_lossy(&read(&path, "cmdline")).replace('\0', " ")))
    });
    of_parent.collect()
}

#[test]
fn the_end_of_a_session_takes_the_file_system_down_first() {
    if unable("in_use::the_end_of_a_session_takes_the_file_system_down_first") {
        return;
    }
    let desktop = Desktop::new(HONEST);
    let copied = bytes(1, 3_000_000);
    for ending in [Signal::TERM, Signal::HUP, Signal::INT] {
        let child = desktop.open(&[]);
        fs::write(desktop.media().join(format!("{ending:?}")), &copied).unwrap();
        // As systemd does, which signals all processes of a unit.
        let all = children(child.id());
        assert!(all.iter().any(|(_, line)| line.contains("desktop-helper")), "{all:?}");
        all.iter().for_each(|(pid, _)| kill_process(*pid, ending).unwrap());
        thread::sleep(Duration::from_millis(300));
        let status = end(child, ending);
        let log = desktop.log();
        assert!(status.success() && !log.contains("ERROR"), "{ending:?}: {status}\n{log}");
        desktop.assert_nothing_left(&format!("{ending:?}"));
    }
    let child = desktop.open(&[]);
    for ending in [Signal::TERM, Signal::HUP, Signal::INT] {
        let found = fs::read(desktop.media().join(format!("{ending:?}"))).unwrap();
        assert_same(&found, &copied, &format!("{ending:?}"));
    }
    assert!(end(child, Signal::INT).success());
}
