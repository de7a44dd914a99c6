//! The commands on a simulated machine: the answers, and the order of calls.

mod deferred;
mod ioctl;
mod rings;
mod waits;

use rustix::io::Errno;
use underseal_dm::header::{HEADER, flags};
use underseal_dm::script::Machine;
use underseal_dm::{Caller, Command, GrantedKeys, server};

use std::sync::atomic::Ordering;

use crate::ioctl::{Ioctl, load, message, open, text};

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

#[test]
fn a_device_is_created_loaded_resumed_and_removed() {
    let machine = Machine::default();
    let mapper = machine.mapper();
    let new = Ioctl { uuid: "CRYPT-1", ..Ioctl::named("one") };
    let created = new.ask(&mapper, Command::DevCreate).unwrap();
    assert_eq!((created.name().unwrap(), created.uuid().unwrap()), ("one", "CRYPT-1"));
    let dev = created.dev().unwrap().encode();
    assert_eq!(new.ask(&mapper, Command::DevCreate).unwrap_err(), Errno::BUSY);
    // By its number, as libdevmapper does it.
    let by_number = Ioctl { name: "", dev, ..load("", &[(8, "linear", "7:0 0"), (8, "zero", "")]) };
    let loaded = by_number.ask(&mapper, Command::TableLoad).unwrap();
    assert!(loaded.has(flags::INACTIVE_PRESENT) && !loaded.has(flags::ACTIVE_PRESENT));
    let resumed = Ioctl::named("one").flags(flags::EXISTS).ask(&mapper, Command::DevSuspend).unwrap();
    assert!(resumed.has(flags::ACTIVE_PRESENT) && !resumed.has(flags::INACTIVE_PRESENT | flags::SUSPEND));
    assert!(resumed.has(flags::EXISTS), "libdevmapper's own flag comes back");
    assert!(
        !resumed.has(flags::UEVENT_GENERATED),
        "there is no event, so libdevmapper does not wait for udev"
    );
    assert_eq!(machine.log.take(), ["show linear 8", "attach 16", "name one"]);

    let by_uuid = Ioctl { uuid: "CRYPT-1", ..Ioctl::named("") };
    let table = by_uuid.clone().flags(flags::STATUS_TABLE).ask(&mapper, Command::TableStatus).unwrap();
    let bytes = table.answer();
    assert_eq!((table.target_count(), u32_at(bytes, HEADER + 20)), (2, 48));
    assert!(bytes[HEADER + 40..].starts_with(b"7:0 0\0"));
    let both = Ioctl { uuid: "CRYPT-1", ..Ioctl::named("one") };
    assert_eq!(both.ask(&mapper, Command::DevStatus).unwrap_err(), Errno::INVAL);
    let deps = Ioctl::named("one").ask(&mapper, Command::TableDeps).unwrap();
    assert_eq!(u32_at(deps.answer(), HEADER), 1);

    machine.opens.store(1, Ordering::Relaxed);
    let opened = Ioctl::named("one").ask(&mapper, Command::DevStatus).unwrap();
    assert_eq!(u32_at(opened.answer(), 24), 1);
    assert_eq!(Ioctl::named("one").ask(&mapper, Command::DevRemove).unwrap_err(), Errno::BUSY);
    machine.opens.store(0, Ordering::Relaxed);
    Ioctl::named("one").ask(&mapper, Command::DevRemove).unwrap();
    assert_eq!(machine.log.take(), ["sync", "detach", "unname one", "end linear 8", "give back"]);
    assert_eq!(Ioctl::named("one").ask(&mapper, Command::DevStatus).unwrap_err(), Errno::NXIO);
}

#[test]
fn a_live_table_gives_its_file_to_the_next_one_and_keeps_it_where_that_fails() {
    let machine = Machine::default();
    let mapper = machine.mapper();
    open(&mapper, "d", &[(8, "zero", "")]);
    machine.log.take();
    load("d", &[(16, "linear", "7:0 0")]).ask(&mapper, Command::TableLoad).unwrap();
    Ioctl::named("d").flags(flags::SUSPEND).ask(&mapper, Command::DevSuspend).unwrap();
    let status = Ioctl::named("d").ask(&mapper, Command::DevStatus).unwrap();
    assert!(status.has(flags::SUSPEND) && status.has(flags::INACTIVE_PRESENT));
    Ioctl::named("d").ask(&mapper, Command::DevSuspend).unwrap();
    assert_eq!(
        machine.log.take(),
        ["sync", "suspend zero 8", "give zero 8", "take linear 16", "leave zero 8", "follow 16"]
    );
    load("d", &[(16, "take-fails", "")]).ask(&mapper, Command::TableLoad).unwrap();
    assert_eq!(Ioctl::named("d").ask(&mapper, Command::DevSuspend).unwrap_err(), Errno::IO);
    let done = ["sync", "give linear 16", "take take-fails 16", "keep linear 16", "end take-fails 16"];
    assert_eq!(machine.log.take(), done);
    let status = Ioctl::named("d").ask(&mapper, Command::DevStatus).unwrap();
    assert!(status.has(flags::ACTIVE_PRESENT) && !status.has(flags::INACTIVE_PRESENT));
}

#[test]
fn what_cannot_be_is_refused_with_the_kernels_errno() {
    use Command::{
        DevCreate, DevRename, DevStatus, DevSuspend, DevWait, GetTargetVersion, TableClear, TableDeps,
        TableLoad, TargetMsg,
    };
    let machine = Machine::default();
    let mapper = machine.mapper();
    open(&mapper, "d", &[(8, "zero", ""), (8, "crypt", "x")]);
    Ioctl::named("empty").ask(&mapper, DevCreate).unwrap();
    Ioctl::named("empty").flags(flags::SUSPEND).ask(&mapper, DevSuspend).unwrap();
    let long = "n".repeat(128);
    for (what, command, errno) in [
        (Ioctl::named(""), DevCreate, Errno::INVAL),
        (Ioctl::named("a/b"), DevCreate, Errno::INVAL),
        (Ioctl::named(".."), DevCreate, Errno::INVAL),
        (Ioctl::named("control"), DevCreate, Errno::INVAL),
        (Ioctl::named("none"), DevStatus, Errno::NXIO),
        (Ioctl::named("none"), TableClear, Errno::NXIO),
        (Ioctl::named("none"), TableDeps, Errno::NXIO),
        (Ioctl::named(""), DevStatus, Errno::NXIO),
        (Ioctl { dev: 1, ..Ioctl::named("d") }, DevStatus, Errno::NXIO),
        (Ioctl::named("d"), TableLoad, Errno::INVAL),
        (load("d", &[(8, "fails", "")]), TableLoad, Errno::INVAL),
        (load("d", &[(8, "linear", "253:0 0")]), TableLoad, Errno::INVAL),
        (load("none", &[(8, "zero", "")]), TableLoad, Errno::NXIO),
        (Ioctl::named("empty"), DevSuspend, Errno::INVAL),
        (text("d", "a/b"), DevRename, Errno::INVAL),
        (text("d", "empty"), DevRename, Errno::BUSY),
        (text("d", ""), DevRename, Errno::INVAL),
        (text("d", &long), DevRename, Errno::INVAL),
        (text("none", "other"), DevRename, Errno::NXIO),
        (message("d", 0, ""), TargetMsg, Errno::INVAL),
        (message("d", 0, "@other"), TargetMsg, Errno::INVAL),
        (message("d", 16, "ask"), TargetMsg, Errno::INVAL),
        (message("empty", 0, "ask"), TargetMsg, Errno::INVAL),
        (message("d", 8, "key wipe"), TargetMsg, Errno::INVAL),
        (Ioctl { event: 0, ..Ioctl::named("d") }, DevWait, Errno::INTR),
        (Ioctl::named("snapshot"), GetTargetVersion, Errno::INVAL),
    ] {
        let got = what.ask(&mapper, command).map(|_| ());
        assert_eq!(got, Err(errno), "{command:?} of {:?}", what.name);
    }
    for number in [18, 0x7f] {
        let buffer = Ioctl::named("d").buffer();
        let got = server::answer(
            &mapper,
            0xc138_fd00 | number,
            buffer,
            &Caller { is_there: &|| true, keys: &GrantedKeys::default() },
        )
        .unwrap_err();
        assert_eq!(got.errno(), Errno::NOTTY);
    }
}

#[test]
fn messages_are_answered_and_change_a_suspended_key() {
    let machine = Machine::default();
    let mapper = machine.mapper();
    open(&mapper, "d", &[(8, "zero", ""), (8, "crypt", "c key rest")]);
    let answered = message("d", 0, "ask").ask(&mapper, Command::TargetMsg).unwrap();
    assert!(answered.has(flags::DATA_OUT) && answered.answer()[HEADER..].starts_with(b"answer\0"));
    Ioctl::named("d").flags(flags::SUSPEND).ask(&mapper, Command::DevSuspend).unwrap();
    let wiped = message("d", 8, "key wipe").ask(&mapper, Command::TargetMsg).unwrap();
    assert!(!wiped.has(flags::DATA_OUT));
    let table = Ioctl::named("d").flags(flags::STATUS_TABLE).ask(&mapper, Command::TableStatus).unwrap();
    assert!(table.answer()[HEADER + 48 + 40..].starts_with(b"0000\0"));
}

#[test]
fn renaming_tells_those_who_wait_and_lists_are_sorted_and_can_be_too_long() {
    let machine = Machine::default();
    let mapper = machine.mapper();
    open(&mapper, "z", &[(8, "zero", "")]);
    open(&mapper, "b", &[(8, "zero", "")]);
    machine.log.take();
    let renamed = text("z", "a").ask(&mapper, Command::DevRename).unwrap();
    assert_eq!((renamed.name().unwrap(), renamed.event()), ("a", 1));
    assert_eq!(machine.log.take(), ["name a, not z"]);
    let waited = Ioctl::named("a").ask(&mapper, Command::DevWait).unwrap();
    assert_eq!(waited.event(), 1);
    text("a", "UUID").flags(flags::UUID).ask(&mapper, Command::DevRename).unwrap();
    let again = text("a", "OTHER").flags(flags::UUID).ask(&mapper, Command::DevRename);
    assert_eq!(again.map(|_| ()).unwrap_err(), Errno::INVAL);
    let list = Ioctl::named("").ask(&mapper, Command::ListDevices).unwrap();
    assert!(list.answer()[HEADER + 12..].starts_with(b"a\0"));
    let short = Ioctl { room: 20, ..Ioctl::named("") }.ask(&mapper, Command::ListDevices).unwrap();
    assert!(short.has(flags::BUFFER_FULL));
    let short = Ioctl { room: 8, ..Ioctl::named("a") };
    let short = short.flags(flags::STATUS_TABLE).ask(&mapper, Command::TableStatus).unwrap();
    assert!(short.has(flags::BUFFER_FULL));
}

#[test]
fn a_device_below_another_is_in_use_and_goes_after_it() {
    let machine = Machine::default();
    let mapper = machine.mapper();
    open(&mapper, "below", &[(8, "zero", "")]);
    open(&mapper, "above", &[(8, "linear", "253:0 0")]);
    assert_eq!(Ioctl::named("below").ask(&mapper, Command::DevRemove).unwrap_err(), Errno::BUSY);
    Ioctl::named("").ask(&mapper, Command::RemoveAll).unwrap();
    assert_eq!(mapper.count(), 0);
}

/// A table's server was killed; integritysetup asks for the state before it closes the device.
#[test]
fn a_table_whose_server_has_ended_has_lines_without_state() {
    let machine = Machine::default();
    let mapper = machine.mapper();
    open(&mapper, "d", &[(8, "status-fails", "7:0 0")]);
    let status = Ioctl::named("d").ask(&mapper, Command::TableStatus).unwrap();
    assert_eq!(status.target_count(), 1);
    assert!(status.answer()[HEADER + 40..].starts_with(b"\0"));
    let table = Ioctl::named("d").flags(flags::STATUS_TABLE).ask(&mapper, Command::TableStatus).unwrap();
    assert!(table.answer()[HEADER + 40..].starts_with(b"7:0 0\0"));
    Ioctl::named("d").ask(&mapper, Command::DevRemove).unwrap();
}
