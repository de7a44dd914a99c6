//! Failing requests and dropped queues do not affect other requests and queues.

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use underseal_cipher::{Key, SectorSize, build};
use underseal_datapath::{ErrorKind, Mapping, Queue, QueueOptions, Request};
use underseal_device::{Device, IoKind, RamDevice, StripeDevice};
use underseal_device_lab::{Fault, FaultDevice, Rule};

use super::*;

#[test]
fn a_request_that_fails_fails_alone() {
    for text in POLICIES {
        let device = FaultDevice::new(Arc::new(RamDevice::new(SIZE)), 1);
        let control = device.control();
        let mapping = Arc::new(mapping(Arc::new(device)));
        mapping.set_policy(policy(text)).unwrap();
        let mut queue = open(&mapping);
        for round in 0..8 {
            let bad = round % 7;
            control.clear();
            control.add(Rule::new(Fault::EIO).within(bad * 65536 + 8192..bad * 65536 + 8193));
            for kind in ["write", "read"] {
                for tag in 0..8 {
                    if kind == "write" {
                        submit_write(&mut queue, tag, tag * 65536, 65536, 8);
                    } else {
                        queue.submit(tag, Request::Read { offset: tag * 65536, len: 65536 }).unwrap();
                    }
                }
                for completion in finish(&mut queue) {
                    let failed = completion.result.err().map(|e| e.kind());
                    let expected = (completion.tag == bad).then_some(ErrorKind::Lower);
                    assert_eq!(failed, expected, "{text}: {kind} {}", completion.tag);
                }
            }
        }
        assert_eq!(mapping.stats().in_flight, 0);
        let whole = queue.alloc(16 << 20).expect("all memory has come back");
        queue.free(whole);
    }
}

#[test]
fn a_queue_that_goes_with_work_at_others_waits_for_it() {
    for text in POLICIES {
        let device = FaultDevice::new(Arc::new(RamDevice::new(SIZE)), 1);
        device.control().add(Rule::new(Fault::Delay(Duration::from_millis(2))).on(IoKind::Write).chance(0.3));
        let mapping = Arc::new(mapping(Arc::new(device)));
        mapping.set_policy(policy(text)).unwrap();
        let mut queue = open(&mapping);
        for tag in 0..40 {
            submit_write(&mut queue, tag, tag * SECTOR, 4096, 9);
        }
        drop(queue);
        let mut queue = open(&mapping);
        assert_eq!(read(&mut queue, 0, 40 * 4096), [9; 40 * 4096], "{text}");
        assert_eq!(mapping.stats().queues, 1);
    }
}

#[test]
fn writes_that_overlap_keep_their_order_across_policies() {
    let device = FaultDevice::new(Arc::new(RamDevice::new(SIZE)), 1);
    device.control().add(Rule::new(Fault::Delay(Duration::from_micros(300))).chance(0.2));
    let mapping = Arc::new(mapping(Arc::new(device)));
    let mut queue = open(&mapping);
    for round in 0..20u8 {
        for tag in 0..50u8 {
            mapping.set_policy(policy(POLICIES[usize::from(round ^ tag) % POLICIES.len()])).unwrap();
            let offset = u64::from(tag % 4) * SECTOR;
            submit_write(&mut queue, tag.into(), offset, 16384, tag);
        }
        succeed(&mut queue);
        // The last four writes begin at the sectors 2, 3, 0 and 1.
        let found: Vec<_> = read(&mut queue, 0, 7 * 4096).chunks(4096).map(|sector| sector[0]).collect();
        assert_eq!(found, [48, 49, 49, 49, 49, 47, 47], "round {round}");
    }
}

#[test]
fn queues_of_short_requests_have_memory_for_whole_sectors_and_zeros() {
    let cipher = xts(SectorSize::new(65536).unwrap());
    let mapping = Mapping::new(volume(cipher), Arc::new(RamDevice::new(SIZE))).unwrap();
    let mapping = Arc::new(mapping.with_block(512).unwrap());
    let mut queue = Queue::open(mapping, QueueOptions { depth: 4, max_request: 512 }).unwrap();
    let (offset, len) = (512, 4 << 20);
    let zeroes = Request::WriteZeroes { offset, len, durable: true, punch: false, fast: false };
    queue.submit(0, zeroes).expect("an empty queue has room");
    succeed(&mut queue);
    submit_write(&mut queue, 0, 1024, 512, 1);
    succeed(&mut queue);
    let found: Vec<_> = (1..4).map(|block| read(&mut queue, block * 512, 512)[0]).collect();
    assert_eq!(found, [0, 1, 0]);
    queue.write_in_place(0, 0, &mut [0; 1024], false).expect("it is answered, not put off");
    let refused = queue.next_completion().unwrap().result.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TooLarge);
}

#[test]
fn zeros_are_written_where_the_device_refuses_them_or_is_too_busy() {
    let null = "cipher_null-ecb".parse().unwrap();
    for (errno, is_written) in [(Errno::OPNOTSUPP, true), (Errno::BUSY, true), (Errno::IO, false)] {
        let cipher = build(&null, &Key::zeroed(0).unwrap(), SectorSize::S512).unwrap();
        let device = FaultDevice::new(Arc::new(RamDevice::new(SIZE)), 1);
        device.control().add(Rule::new(Fault::Error(errno.raw_os_error())).on(IoKind::Zero));
        let mapping = Arc::new(Mapping::new(volume(cipher), Arc::new(device)).unwrap());
        let mut queue = Queue::open(mapping, QueueOptions { depth: 4, max_request: 4096 }).unwrap();
        submit_write(&mut queue, 0, 0, 4096, 1);
        succeed(&mut queue);
        let zeroes = Request::WriteZeroes { offset: 0, len: 4096, durable: false, punch: false, fast: false };
        queue.submit(0, zeroes).unwrap();
        let done = loop {
            queue.poll().unwrap();
            if let Some(done) = queue.next_completion() {
                break done.result;
            }
        };
        assert_eq!(done.is_ok(), is_written, "{errno}");
        assert_eq!(read(&mut queue, 0, 512).iter().all(|byte| *byte == 0), is_written, "{errno}");
    }
}

#[test]
fn zeros_that_have_to_be_written_after_all_wait_for_no_memory() {
    let null = "cipher_null-ecb".parse().unwrap();
    let cipher = build(&null, &Key::zeroed(0).unwrap(), SectorSize::S512).unwrap();
    let device = FaultDevice::new(Arc::new(RamDevice::new(SIZE)), 1);
    // The device claims to support zeroing, and then refuses it.
    let unsupported = Errno::OPNOTSUPP.raw_os_error();
    device.control().add(Rule::new(Fault::Error(unsupported)).on(IoKind::Zero));
    let mapping = Arc::new(Mapping::new(volume(cipher), Arc::new(device)).unwrap());
    let mut queue = Queue::open(mapping, QueueOptions { depth: 4, max_request: 512 }).unwrap();
    submit_write(&mut queue, 0, 0, 512, 1);
    succeed(&mut queue);
    let (mut held, mut len) = (Vec::new(), 4 << 20);
    while len >= 512 {
        match queue.alloc(len) {
            Some(buffer) => held.push(buffer),
            None => len /= 2,
        }
    }
    let zeroes = Request::WriteZeroes { offset: 0, len: 4 << 20, durable: false, punch: false, fast: false };
    queue.submit(0, zeroes).expect("it comes without memory");
    succeed(&mut queue);
    held.into_iter().for_each(|buffer| queue.free(buffer));
    assert!(read(&mut queue, 0, 512).iter().all(|byte| *byte == 0));
}

#[test]
fn a_sector_is_not_read_while_a_part_of_it_is_written() {
    let key = Key::new(&(0..32).collect::<Vec<u8>>()).unwrap();
    let cipher =
        build(&"aes-cbc-essiv:sha256".parse().unwrap(), &key, SectorSize::new(65536).unwrap()).unwrap();
    let ram = || -> Arc<dyn Device> { Arc::new(RamDevice::new(SIZE)) };
    let slow = FaultDevice::new(ram(), 1);
    let control = slow.control();
    let stripe = StripeDevice::new(vec![ram(), Arc::new(slow)], 4096).unwrap();
    let mapping = Mapping::new(volume(cipher), Arc::new(stripe)).unwrap();
    let mapping = Arc::new(mapping.with_block(512).unwrap());
    let mut queue = open(&mapping);
    submit_write(&mut queue, 0, 0, 65536, 1);
    succeed(&mut queue);
    // Every second block of 4096 bytes of ciphertext is late.
    control.add(Rule::new(Fault::Delay(Duration::from_millis(20))).on(IoKind::Write));
    for text in POLICIES {
        mapping.set_policy(policy(text)).unwrap();
        submit_write(&mut queue, 1, 0, 512, 2);
        let found = read(&mut queue, 512, 65024);
        assert!(found.iter().all(|byte| *byte == 1), "{text}");
        succeed(&mut queue);
    }
}
