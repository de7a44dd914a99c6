//! Tables that would lie on their own device.

use rustix::io::Errno;
use underseal_dm::script::Machine;
use underseal_dm::{Command, Mapper};

use crate::ioctl::{Ioctl, load, open};

fn reload(mapper: &Mapper, name: &'static str, params: &str) -> Result<(), Errno> {
    load(name, &[(8, "linear", params)]).ask(mapper, Command::TableLoad).map(drop)
}

#[test]
fn a_table_that_closes_a_ring_is_refused() {
    let machine = Machine::default();
    let mapper = machine.mapper();
    open(&mapper, "a", &[(8, "linear", "7:0 0")]);
    open(&mapper, "b", &[(8, "linear", "253:0 0")]);
    open(&mapper, "c", &[(8, "linear", "253:1 0")]);
    machine.log.take();
    for on in ["253:0 0", "253:1 0", "253:2 0", "7:0 253:2"] {
        assert_eq!(reload(&mapper, "a", on), Err(Errno::INVAL), "{on}");
        // The refused table's server ends.
        assert_eq!(machine.log.take(), ["end linear 8"]);
    }
    reload(&mapper, "a", "7:1 0").unwrap();
    reload(&mapper, "c", "253:0 253:1").unwrap();
}

#[test]
fn an_inactive_table_counts_as_a_live_one_until_it_is_cleared() {
    let machine = Machine::default();
    let mapper = machine.mapper();
    for name in ["a", "b"] {
        Ioctl::named(name).ask(&mapper, Command::DevCreate).unwrap();
    }
    reload(&mapper, "a", "253:1 0").unwrap();
    assert_eq!(reload(&mapper, "b", "253:0 0"), Err(Errno::INVAL));
    Ioctl::named("a").ask(&mapper, Command::TableClear).unwrap();
    reload(&mapper, "b", "253:0 0").unwrap();
}

#[test]
fn a_ring_by_way_of_a_loop_device_s_file_is_refused() {
    let machine = Machine::default();
    let mapper = machine.mapper();
    open(&mapper, "a", &[(8, "linear", "7:0 0")]);
    open(&mapper, "b", &[(8, "linear", "7:1 file-on:253:0")]);
    assert_eq!(reload(&mapper, "a", "7:2 file-on:253:0"), Err(Errno::INVAL));
    assert_eq!(reload(&mapper, "a", "253:1 0"), Err(Errno::INVAL));
    assert_eq!(reload(&mapper, "a", "7:2 file-on:253:1"), Err(Errno::INVAL));
    reload(&mapper, "a", "7:2 file-on:8:1").unwrap();
}
