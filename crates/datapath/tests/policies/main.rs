//! Laws for every policy, one by one. `tests/soak.rs` plays all of them at once.

mod alone;
mod broken;
mod foreign;
mod halves;
mod mover;
mod order;
mod panics;
mod races;
mod reencrypt;
mod resize;
mod shared;
mod suspend;
mod tags;
#[path = "../toy/mod.rs"]
mod toy;
mod zeros;

use std::sync::Arc;

use underseal_cipher::{Key, SectorCipher, SectorSize, build};
use underseal_datapath::{Completion, Mapping, Policy, Queue, QueueOptions, Request};
use underseal_device::Device;
use underseal_volume::{Segment, Volume};

const SIZE: u64 = 16 << 20;
const SECTOR: u64 = 4096;

/// Every dispatch with every order of writes.
const POLICIES: [&str; 12] = [
    "inline",
    "inline,order=arrival",
    "workers",
    "workers,order=sorted",
    "workers,order=arrival",
    "same-cpu",
    "same-cpu,order=arrival",
    "kernel",
    "adaptive",
    "adaptive,order=sorted",
    "adaptive,order=arrival",
    "workers,read=adaptive,order=arrival,max-read-size=4K,max-write-size=4K",
];

fn policy(text: &str) -> Policy {
    text.parse().unwrap()
}

fn xts(sector: SectorSize) -> Arc<dyn SectorCipher> {
    let key = Key::new(&(0..64).collect::<Vec<u8>>()).unwrap();
    build(&"aes-xts-plain64".parse().unwrap(), &key, sector).unwrap()
}

fn volume(cipher: Arc<dyn SectorCipher>) -> Volume {
    Volume::new(vec![Segment::stored(0, SIZE, 0, 0, cipher)]).unwrap()
}

fn mapping(device: Arc<dyn Device>) -> Mapping {
    Mapping::new(volume(xts(SectorSize::S4096)), device).unwrap()
}

fn open(mapping: &Arc<Mapping>) -> Queue {
    Queue::open(mapping.clone(), QueueOptions { depth: 64, max_request: 8 << 20 }).unwrap()
}

fn submit_write(queue: &mut Queue, tag: u64, offset: u64, len: usize, fill: u8) {
    let mut data = queue.alloc(len).expect("there is memory");
    data.fill(fill);
    queue.submit(tag, Request::Write { offset, data, durable: false }).expect("there is room");
}

/// Waits for all requests in flight, and returns their completions by tag.
fn finish(queue: &mut Queue) -> Vec<Completion> {
    let mut all = Vec::new();
    loop {
        while let Some(mut completion) = queue.next_completion() {
            if let Some(buffer) = completion.buffer.take() {
                queue.free(buffer);
            }
            all.push(completion);
        }
        if queue.in_flight() == 0 {
            all.sort_by_key(|completion| completion.tag);
            return all;
        }
        queue.wait().unwrap();
    }
}

fn succeed(queue: &mut Queue) {
    for completion in finish(queue) {
        completion.result.unwrap_or_else(|e| panic!("request {}: {e}", completion.tag));
    }
}

/// Reads bytes; requests that complete meanwhile must succeed.
fn read(queue: &mut Queue, offset: u64, len: usize) -> Vec<u8> {
    queue.submit(u64::MAX, Request::Read { offset, len }).expect("there is room");
    loop {
        if let Some(completion) = queue.next_completion() {
            completion.result.unwrap();
            let bytes = completion.buffer.as_ref().map(|buffer| buffer.to_vec());
            completion.buffer.into_iter().for_each(|buffer| queue.free(buffer));
            if completion.tag == u64::MAX {
                return bytes.expect("a read brings its bytes");
            }
            continue;
        }
        queue.wait().unwrap();
    }
}
