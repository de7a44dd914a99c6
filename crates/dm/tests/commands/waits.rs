//! Callers that wait for an event.

use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use underseal_dm::header::Message;
use underseal_dm::script::Machine;
use underseal_dm::{Command, Mapper};

use crate::ioctl::{Ioctl, open, text};

/// Waits for an event of `z` after number 0, and does something meanwhile.
fn wait(mapper: &Mapper, meanwhile: impl FnOnce()) -> Result<Message, Errno> {
    thread::scope(|scope| {
        let waiting = scope.spawn(|| Ioctl::named("z").ask_while(&|| true, mapper, Command::DevWait));
        thread::sleep(Duration::from_millis(500));
        meanwhile();
        waiting.join().unwrap()
    })
}

/// As on Linux 6.1, the answer has the name that the caller said.
#[test]
fn a_rename_ends_a_wait_under_the_old_name() {
    let machine = Machine::default();
    let mapper = machine.mapper();
    open(&mapper, "z", &[(8, "zero", "")]);
    let told = wait(&mapper, || {
        text("z", "a").ask(&mapper, Command::DevRename).unwrap();
    });
    let told = told.unwrap();
    assert_eq!((told.name().unwrap(), told.event(), told.target_count()), ("z", 1, 1));
}

#[test]
fn the_removal_of_a_live_table_ends_a_wait() {
    let machine = Machine::default();
    let mapper = machine.mapper();
    open(&mapper, "z", &[(8, "zero", "")]);
    let told = wait(&mapper, || {
        Ioctl::named("z").ask(&mapper, Command::DevRemove).unwrap();
    });
    assert_eq!(told.unwrap().event(), 1);
    Ioctl::named("z").ask(&mapper, Command::DevCreate).unwrap();
    let told = wait(&mapper, || {
        Ioctl::named("z").ask(&mapper, Command::DevRemove).unwrap();
    });
    assert_eq!(told.map(|_| ()).unwrap_err(), Errno::NXIO);
}
