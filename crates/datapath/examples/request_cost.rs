//! Measures the cost of a request in this crate: processor time of 4 KiB requests to memory, one at
//! a time and many at once.
//!
//! `cargo run --release -p underseal-datapath --example request_cost -- [SECONDS]`

#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use underseal_cipher::{Key, SectorSize, build};
use underseal_datapath::{Mapping, Policy, Queue, QueueOptions, Request};
use underseal_device::RamDevice;
use underseal_volume::{Segment, Volume};

const SIZE: u64 = 16 << 20;
const LEN: usize = 4096;

#[derive(Debug, Clone, Copy)]
enum What {
    Read,
    Write,
    InPlace,
}

/// The calling thread's processor time in nanoseconds: other programs do not count.
fn spent() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or(0)
}

/// Nanoseconds a request, with `depth` requests in flight.
fn cost(queue: &mut Queue, what: What, depth: u64, time: Duration) -> f64 {
    let (mut dice, mut done, mut data) = (1u64, 0u64, vec![0; LEN]);
    let (begun, end) = (spent(), Instant::now() + time);
    while Instant::now() < end {
        for _ in 0..256 / depth {
            for tag in 0..depth {
                dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let offset = (dice >> 20) % (SIZE / LEN as u64) * LEN as u64;
                match what {
                    What::Read => queue.submit(tag, Request::Read { offset, len: LEN }).expect("it has room"),
                    What::Write => {
                        let data = queue.alloc(LEN).expect("it has room");
                        queue
                            .submit(tag, Request::Write { offset, data, durable: false })
                            .expect("it has room");
                    }
                    What::InPlace => {
                        queue.write_in_place(tag, offset, &mut data, false).expect("it has room")
                    }
                }
            }
            let before = done;
            while done - before < depth {
                match queue.next_completion() {
                    Some(over) => {
                        over.result.expect("nothing fails");
                        over.buffer.into_iter().for_each(|buffer| queue.free(buffer));
                        done += 1;
                    }
                    None => queue.wait().expect("the ring waits"),
                }
            }
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "a mean")]
    let mean = (spent() - begun) as f64 / done.max(1) as f64;
    mean
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|word| word.parse::<u64>().ok()).unwrap_or(4);
    println!("median nanoseconds a request of 4 KiB, one at a time and 32 at once");
    let device = Arc::new(RamDevice::new(SIZE));
    for (spec, key) in [("cipher_null-ecb", 0), ("aes-xts-plain64", 64), ("aes-hctr2-plain64", 32)] {
        let key = Key::new(&(0..key).collect::<Vec<u8>>()).expect("there is memory for it");
        let cipher =
            build(&spec.parse().expect("a specification"), &key, SectorSize::S4096).expect("it is known");
        for (name, policy) in [("inline", Policy::INLINE), ("adaptive", Policy::ADAPTIVE)] {
            let volume =
                Volume::new(vec![Segment::stored(0, SIZE, 0, 0, cipher.clone())]).expect("one segment");
            let mapping = Arc::new(Mapping::new(volume, device.clone()).expect("it fits"));
            mapping.set_policy(policy).expect("it is one for every volume");
            let options = QueueOptions { depth: 64, max_request: 1 << 20 };
            let mut queue = Queue::open(mapping, options).expect("the system has what a queue needs");
            for what in [What::Read, What::Write, What::InPlace] {
                let medians = [1, 32].map(|depth| {
                    let rounds = (seconds * 1000 / 36 / 20).max(3);
                    let round = |_| cost(&mut queue, what, depth, Duration::from_millis(20));
                    let mut costs: Vec<f64> = (0..rounds).map(round).collect();
                    costs.sort_by(f64::total_cmp);
                    costs[costs.len() / 2]
                });
                let (what, [one, many]) = (format!("{what:?}"), medians);
                println!("{spec:20} {name:9} {what:8} {one:8.0} {many:8.0}");
            }
        }
    }
}
