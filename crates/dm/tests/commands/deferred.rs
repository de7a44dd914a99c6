//! Removals after the last close.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use underseal_dm::header::{Message, flags};
use underseal_dm::script::Machine;
use underseal_dm::{Command, Mapper};

use crate::ioctl::{Ioctl, message, open};

/// The time after which a waiting thread has looked at its device again.
const LOOKED: Duration = Duration::from_millis(500);

fn defer(mapper: &Mapper) {
    Ioctl::named("d").flags(flags::DEFERRED_REMOVE).ask(mapper, Command::DevRemove).unwrap();
}

fn cancel(mapper: &Mapper) -> Result<Message, Errno> {
    message("d", 0, "@cancel_deferred_remove").ask(mapper, Command::TargetMsg)
}

fn is_deferred(mapper: &Mapper) -> bool {
    Ioctl::named("d").ask(mapper, Command::DevStatus).unwrap().has(flags::DEFERRED_REMOVE)
}

#[track_caller]
fn goes(mapper: &Mapper) {
    let until = Instant::now() + Duration::from_secs(30);
    while mapper.count() > 0 {
        assert!(Instant::now() < until, "the device is still there");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_deferred_removal_waits_for_the_last_user() {
    let machine = Machine::default();
    let mapper = machine.mapper();
    open(&mapper, "d", &[(8, "zero", "")]);
    machine.opens.store(1, Ordering::Relaxed);
    defer(&mapper);
    assert!(is_deferred(&mapper));
    thread::sleep(LOOKED);
    assert_eq!(mapper.count(), 1);
    machine.opens.store(0, Ordering::Relaxed);
    goes(&mapper);
}

#[test]
fn a_cancelled_removal_is_not_done_by_the_thread_that_waits() {
    let machine = Machine::default();
    let mapper = machine.mapper();
    open(&mapper, "d", &[(8, "zero", "")]);
    for _ in 0..3 {
        machine.opens.store(1, Ordering::Relaxed);
        defer(&mapper);
        // The thread that waits sleeps meanwhile.
        cancel(&mapper).unwrap();
        assert!(!is_deferred(&mapper));
        machine.opens.store(0, Ordering::Relaxed);
        thread::sleep(LOOKED);
        assert_eq!(mapper.count(), 1, "{:?}", machine.log.take());
    }
    // A second request while the thread of the first one still sleeps.
    machine.opens.store(1, Ordering::Relaxed);
    defer(&mapper);
    cancel(&mapper).unwrap();
    defer(&mapper);
    machine.opens.store(0, Ordering::Relaxed);
    goes(&mapper);
}

#[test]
fn a_removal_under_way_cannot_be_cancelled() {
    let machine = Machine::default();
    let mapper = machine.mapper();
    open(&mapper, "d", &[(8, "zero", "")]);
    machine.opens.store(1, Ordering::Relaxed);
    defer(&mapper);
    let gate = machine.detach_gate.lock().unwrap();
    machine.log.take();
    machine.opens.store(0, Ordering::Relaxed);
    let until = Instant::now() + Duration::from_secs(30);
    while !machine.log.take().contains(&"detach".to_owned()) {
        assert!(Instant::now() < until, "no removal began");
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(cancel(&mapper).map(|_| ()), Err(Errno::BUSY));
    drop(gate);
    goes(&mapper);
}

#[test]
fn a_deferred_removal_that_failed_is_tried_again() {
    let machine = Machine::default();
    let mapper = machine.mapper();
    open(&mapper, "d", &[(8, "zero", "")]);
    machine.opens.store(1, Ordering::Relaxed);
    defer(&mapper);
    machine.detach_timeouts.store(2, Ordering::Relaxed);
    machine.opens.store(0, Ordering::Relaxed);
    goes(&mapper);
    let mut log = machine.log.take();
    log.retain(|line| line == "detach");
    assert_eq!(log.len(), 3);
}

#[test]
fn a_deferred_removal_is_done_when_the_last_table_on_the_device_has_gone() {
    let machine = Machine::default();
    let mapper = machine.mapper();
    open(&mapper, "lowest", &[(8, "zero", "")]);
    open(&mapper, "below", &[(8, "linear", "253:0 0")]);
    open(&mapper, "above", &[(8, "linear", "253:1 0")]);
    for name in ["lowest", "below"] {
        Ioctl::named(name).flags(flags::DEFERRED_REMOVE).ask(&mapper, Command::DevRemove).unwrap();
    }
    assert_eq!(mapper.count(), 3);
    // Immediately: cryptsetup looks at once.
    Ioctl::named("above").ask(&mapper, Command::DevRemove).unwrap();
    assert_eq!(mapper.count(), 0);
}
