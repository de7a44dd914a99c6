//! Requests for the same sector at the same time, from one queue or several.
//!
//! Under a cipher that is not local, a sector that mixes two writes is noise. The device holds the
//! tested transfers halfway, so that the tests do not depend on timing.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

use underseal_cipher::{Key, SectorCipher, SectorSize, build};
use underseal_datapath::{Completion, ErrorKind, Mapping, Queue, Request};
use underseal_device::IoKind;

use super::halves::{Gate, Halves};
use super::*;

/// Longer than any request takes, also on a busy machine.
const LONG: Duration = Duration::from_secs(120);
/// After this many turns, a thread without requests to wait for has begun all that it can.
const TURNS: usize = 12;

const OLD: u8 = 1;
const NEW: u8 = 2;

/// Ciphers that are not local, with the byte from which they spread changes.
const SPREADING: [(&str, u8); 6] = [
    ("xchacha20,aes-adiantum-plain64", 32),
    ("aes-hctr2-plain64", 32),
    ("aes-cbc-essiv:sha256", 32),
    ("capi:pcbc(aes)-plain64", 32),
    ("capi:cts(cbc(aes))-plain64", 32),
    ("aes-cbc-elephant", 64),
];

fn cipher(spec: &str, key: u8) -> Arc<dyn SectorCipher> {
    let key = Key::new(&(0..key).collect::<Vec<u8>>()).unwrap();
    build(&spec.parse().unwrap(), &key, SectorSize::S4096).unwrap()
}

fn over(cipher: Arc<dyn SectorCipher>) -> (Mapping, Arc<Gate>) {
    let (device, gate) = Halves::new(SIZE);
    (Mapping::new(volume(cipher), device).unwrap(), gate)
}

/// Lets a queue make progress, and collects its completions.
fn turn(queue: &mut Queue, over: &mut Vec<Completion>) {
    while let Some(completion) = queue.next_completion() {
        over.push(completion);
    }
    queue.poll().unwrap();
    // Workers and the device's clock need time.
    thread::sleep(Duration::from_millis(1));
}

/// Lets queues make progress until `count` transfers are halfway.
fn until_halfway(queues: &mut [Queue], over: &mut [Vec<Completion>], gate: &Gate, count: usize) {
    while gate.halfway() < count {
        queues.iter_mut().zip(&mut *over).for_each(|(queue, over)| turn(queue, over));
    }
}

fn all_over(queues: &mut [Queue], over: &mut [Vec<Completion>]) {
    while queues.iter().any(|queue| queue.in_flight() > 0) {
        queues.iter_mut().zip(&mut *over).for_each(|(queue, over)| turn(queue, over));
    }
    queues.iter_mut().zip(over).for_each(|(queue, over)| turn(queue, over));
}

fn bytes(over: &[Vec<Completion>], tag: u64) -> &[u8] {
    let completion = over.iter().flatten().find(|completion| completion.tag == tag).expect("it is over");
    assert!(completion.result.is_ok());
    completion.buffer.as_ref().expect("a read brings its bytes")
}

/// Two queues, or one that is the first and the last of them.
fn queues(mapping: &Arc<Mapping>, count: usize) -> Vec<Queue> {
    (0..count).map(|_| open(mapping)).collect()
}

#[test]
fn a_sector_that_is_being_written_reads_as_before_or_after() {
    for (n, text) in POLICIES.into_iter().enumerate() {
        for count in [1, 2] {
            let (spec, key) = SPREADING[(n + count) % SPREADING.len()];
            let case = format!("{spec}, {text}, {count} queues");
            let (mapping, gate) = over(cipher(spec, key));
            let mapping = Arc::new(mapping);
            mapping.set_policy(policy(text)).unwrap();
            let mut queues = queues(&mapping, count);
            let mut over = vec![Vec::new(), Vec::new()];
            submit_write(&mut queues[0], 0, 0, 8192, OLD);
            succeed(&mut queues[0]);
            gate.hold(IoKind::Write);
            submit_write(&mut queues[0], 1, 0, 4096, NEW);
            until_halfway(&mut queues, &mut over, &gate, 1);
            let reader = queues.last_mut().unwrap();
            reader.submit(2, Request::Read { offset: 0, len: 8192 }).unwrap();
            // Requests for other sectors do not wait.
            reader.submit(3, Request::Read { offset: 4096, len: 4096 }).unwrap();
            (0..TURNS).for_each(|_| turn(reader, &mut over[count - 1]));
            gate.open();
            all_over(&mut queues, &mut over);
            let found = bytes(&over, 2);
            let whole = |sector: &[u8], fill| sector.iter().all(|byte| *byte == fill);
            assert!(
                whole(&found[..4096], OLD) || whole(&found[..4096], NEW),
                "{case}: noise {:x?}",
                &found[..16]
            );
            assert!(whole(&found[4096..], OLD) && whole(bytes(&over, 3), OLD), "{case}");
        }
    }
}

#[test]
fn a_sector_that_is_being_read_is_not_written_meanwhile() {
    for (n, text) in POLICIES.into_iter().enumerate() {
        for count in [1, 2] {
            let (spec, key) = SPREADING[(n + count) % SPREADING.len()];
            let (mapping, gate) = over(cipher(spec, key));
            let mapping = Arc::new(mapping);
            mapping.set_policy(policy(text)).unwrap();
            let mut queues = queues(&mapping, count);
            let mut over = vec![Vec::new(), Vec::new()];
            submit_write(&mut queues[0], 0, 0, 4096, OLD);
            succeed(&mut queues[0]);
            gate.hold(IoKind::Read);
            queues[0].submit(1, Request::Read { offset: 0, len: 4096 }).unwrap();
            until_halfway(&mut queues, &mut over, &gate, 1);
            let writer = queues.last_mut().unwrap();
            submit_write(writer, 2, 0, 4096, NEW);
            writer.write_in_place(3, 0, &mut [NEW; 4096], false).unwrap();
            (0..TURNS).for_each(|_| turn(writer, &mut over[count - 1]));
            gate.open();
            all_over(&mut queues, &mut over);
            let found = bytes(&over, 1);
            let whole = |fill| found.iter().all(|byte| *byte == fill);
            assert!(whole(OLD) || whole(NEW), "{spec}, {text}, {count} queues: noise {:x?}", &found[4080..]);
            assert_eq!(read(&mut queues[0], 0, 4096), [NEW; 4096]);
        }
    }
}

#[test]
fn writes_of_one_sector_from_several_queues_follow_each_other() {
    for (n, text) in POLICIES.into_iter().enumerate() {
        let (spec, key) = SPREADING[n % SPREADING.len()];
        let (mapping, gate) = over(cipher(spec, key));
        let mapping = Arc::new(mapping);
        mapping.set_policy(policy(text)).unwrap();
        let mut queues = queues(&mapping, 3);
        let mut over = vec![Vec::new(), Vec::new(), Vec::new()];
        gate.hold(IoKind::Write);
        submit_write(&mut queues[0], 0, 0, 4096, 1);
        until_halfway(&mut queues, &mut over, &gate, 1);
        submit_write(&mut queues[1], 1, 0, 4096, 2);
        queues[2].write_in_place(2, 0, &mut [3; 4096], false).unwrap();
        (0..TURNS).for_each(|_| (1..3).for_each(|n| turn(&mut queues[n], &mut over[n])));
        gate.open();
        all_over(&mut queues, &mut over);
        let found = read(&mut queues[0], 0, 4096);
        assert!(
            (1..4).any(|fill| found == [fill; 4096]),
            "{spec}, {text}: noise for ever: {:x?}",
            &found[..16]
        );
    }
}

#[test]
fn a_cipher_that_does_not_spread_keeps_nobody_waiting_and_gives_old_and_new_blocks() {
    let (mapping, gate) = over(xts(SectorSize::S4096));
    let mut queues = queues(&Arc::new(mapping), 2);
    let mut over = vec![Vec::new(), Vec::new()];
    submit_write(&mut queues[0], 0, 0, 4096, OLD);
    succeed(&mut queues[0]);
    gate.hold(IoKind::Write);
    submit_write(&mut queues[0], 1, 0, 4096, NEW);
    until_halfway(&mut queues, &mut over, &gate, 1);
    let found = read(&mut queues[1], 0, 4096);
    assert_eq!(found, [[NEW; 2048], [OLD; 2048]].concat());
    gate.open();
    all_over(&mut queues, &mut over);
}

#[test]
fn what_waits_for_a_sector_goes_on_in_order_whatever_range_it_has() {
    // A long range has no stripe in the lock, and its neighbours do not wait.
    let (mapping, gate) = over(cipher("aes-hctr2-plain64", 32));
    let mut queues = queues(&Arc::new(mapping), 3);
    let mut over = vec![Vec::new(), Vec::new(), Vec::new()];
    let long = 6 << 20;
    gate.hold(IoKind::Write);
    submit_write(&mut queues[0], 0, 1 << 20, 4096, 1);
    until_halfway(&mut queues, &mut over, &gate, 1);
    submit_write(&mut queues[1], 1, 0, long, 2);
    submit_write(&mut queues[2], 2, 4096, 4096, 3);
    submit_write(&mut queues[2], 3, 8 << 20, 4096, 4);
    (0..TURNS).for_each(|_| (1..3).for_each(|n| turn(&mut queues[n], &mut over[n])));
    assert_eq!(gate.halfway(), 2, "the first, and the one that lies elsewhere");
    gate.open();
    all_over(&mut queues, &mut over);
    let found = read(&mut queues[0], 0, long);
    assert!(found[..4096].iter().all(|byte| *byte == 2));
    assert!(found[4096..8192].iter().all(|byte| *byte == 3), "it came after the long one");
    assert!(found[8192..].iter().all(|byte| *byte == 2), "it came after the first one");
    assert_eq!(read(&mut queues[0], 8 << 20, 4096), [4; 4096]);
}

#[test]
fn a_queue_that_goes_leaves_no_sector_locked() {
    let (mapping, gate) = over(cipher("aes-hctr2-plain64", 32));
    let mapping = Arc::new(mapping);
    let mut queues = queues(&mapping, 2);
    let mut over = vec![Vec::new(), Vec::new()];
    gate.hold(IoKind::Write);
    submit_write(&mut queues[0], 0, 0, 4096, 1);
    submit_write(&mut queues[0], 1, 4096, 4096, 1);
    until_halfway(&mut queues, &mut over, &gate, 2);
    submit_write(&mut queues[1], 2, 0, 8192, 2);
    (0..TURNS).for_each(|_| turn(&mut queues[1], &mut over[1]));
    assert_eq!(gate.halfway(), 2, "the other queue's waits");
    gate.open();
    drop(queues.remove(0));
    all_over(&mut queues, &mut over);
    assert_eq!(read(&mut queues[0], 0, 8192), [2; 8192]);
}

#[test]
fn the_volume_is_suspended_amid_writes_of_parts_of_sectors() {
    for text in POLICIES {
        let (mapping, gate) = over(xts(SectorSize::S4096));
        let mapping = Arc::new(mapping.with_bytes());
        mapping.set_policy(policy(text)).unwrap();
        let mut queues = queues(&mapping, 2);
        let mut over = vec![Vec::new(), Vec::new()];
        submit_write(&mut queues[0], 0, 0, 8192, 1);
        succeed(&mut queues[0]);
        gate.hold(IoKind::Read);
        // Both writes read the sector that they change; the second queue has other requests in
        // flight while it waits for the first write.
        submit_write(&mut queues[0], 0, 100, 700, 2);
        until_halfway(&mut queues, &mut over, &gate, 1);
        queues[1].submit(1, Request::Read { offset: 1 << 20, len: 65536 }).unwrap();
        submit_write(&mut queues[1], 2, 700, 4000, 3);
        until_halfway(&mut queues, &mut over, &gate, 2);
        let suspended = thread::scope(|scope| {
            let suspending = scope.spawn(|| mapping.suspend(LONG));
            while !mapping.is_suspended() {
                thread::yield_now();
            }
            gate.open();
            while !suspending.is_finished() {
                queues.iter_mut().zip(&mut over).for_each(|(queue, over)| turn(queue, over));
            }
            suspending.join().unwrap()
        });
        suspended.unwrap_or_else(|e| panic!("{text}: {e}"));
        mapping.resume().unwrap();
        all_over(&mut queues, &mut over);
        assert!(over.iter().flatten().all(|completion| completion.result.is_ok()));
        let expected = [vec![1; 100], vec![2; 600], vec![3; 4000], vec![1; 8192 - 4700]].concat();
        assert_eq!(read(&mut queues[0], 0, 8192), expected, "{text}");
    }
}

#[test]
fn what_could_not_be_written_at_once_counts_as_in_flight() {
    let (mapping, gate) = over(xts(SectorSize::S4096));
    let mapping = Arc::new(mapping);
    let mut queue = open(&mapping);
    gate.hold(IoKind::Write);
    for tag in 0..3 {
        queue.write_in_place(tag, tag * SECTOR, &mut [1; 4096], false).unwrap();
        assert_eq!(mapping.stats().in_flight, tag + 1);
    }
    gate.open();
    succeed(&mut queue);
    assert_eq!(mapping.stats().in_flight, 0);
}

#[test]
fn a_device_that_is_stuck_keeps_the_volume_from_being_suspended_and_not_from_going_on() {
    let (mapping, gate) = over(xts(SectorSize::S4096));
    let mapping = Arc::new(mapping);
    let mut queue = open(&mapping);
    gate.hold(IoKind::Write);
    submit_write(&mut queue, 0, 0, 4096, 1);
    assert_eq!(gate.halfway(), 1);
    let busy = mapping.suspend(Duration::from_millis(1)).unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    assert!(!mapping.is_suspended());
    let before = gate.begun.load(SeqCst);
    submit_write(&mut queue, 1, SECTOR, 4096, 2);
    assert!(gate.begun.load(SeqCst) > before, "it is not held back");
    gate.open();
    succeed(&mut queue);
    assert_eq!(read(&mut queue, 0, 8192), [[1; 4096], [2; 4096]].concat());
    assert_eq!(mapping.stats().writes.requests, 2);
}
