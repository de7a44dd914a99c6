//! Measures the cost of the range lock: processor time a request with and without it, in turns.
//!
//! `cargo run --release -p underseal-datapath --example lock_cost -- [THREADS [SECONDS]]`

#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use underseal_cipher::{InOutBuf, Key, SectorCipher, SectorSize, build};
use underseal_datapath::{Mapping, Queue, QueueOptions, Request};
use underseal_device::RamDevice;
use underseal_volume::{Segment, Volume};

const SIZE: u64 = 64 << 20;

/// A cipher that claims to be local or not, as the measurement needs.
struct Says {
    inner: Arc<dyn SectorCipher>,
    local: bool,
}

impl SectorCipher for Says {
    fn sector_size(&self) -> SectorSize {
        self.inner.sector_size()
    }

    fn encrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>) {
        self.inner.encrypt(first, data);
    }

    fn decrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>) {
        self.inner.decrypt(first, data);
    }

    fn is_local(&self) -> bool {
        self.local
    }
}

/// The calling thread's processor time in nanoseconds: other programs do not count.
fn spent() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or(0)
}

/// Nanoseconds a request.
fn cost(mapping: &Arc<Mapping>, threads: u64, len: usize, writes: bool, time: Duration) -> f64 {
    let stop = AtomicBool::new(false);
    let (requests, nanos) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for number in 0..threads {
            let (stop, requests, nanos) = (&stop, &requests, &nanos);
            scope.spawn(move || {
                let mut queue =
                    Queue::open(mapping.clone(), QueueOptions { depth: 32, max_request: 1 << 20 })
                        .expect("the system has what a queue needs");
                let mut data = vec![0; len];
                let (mut dice, mut done) = (number + 1, 0);
                let begun = spent();
                while !stop.load(SeqCst) {
                    for _ in 0..64 {
                        dice = dice
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1_442_695_040_888_963_407);
                        let offset = (dice >> 20) % (SIZE / len as u64) * len as u64;
                        if writes {
                            queue.write_in_place(0, offset, &mut data, false).expect("it is empty");
                        } else {
                            queue.submit(0, Request::Read { offset, len }).expect("it is empty");
                        }
                        // Memory answers at once, unless another thread has the sector.
                        let over = loop {
                            match queue.next_completion() {
                                Some(over) => break over,
                                None => queue.wait().expect("the ring waits"),
                            }
                        };
                        over.result.expect("nothing fails");
                        over.buffer.into_iter().for_each(|buffer| queue.free(buffer));
                        done += 1;
                    }
                }
                nanos.fetch_add(spent() - begun, SeqCst);
                requests.fetch_add(done, SeqCst);
            });
        }
        thread::sleep(time);
        stop.store(true, SeqCst);
    });
    #[expect(clippy::cast_precision_loss, reason = "a mean")]
    let mean = nanos.load(SeqCst) as f64 / requests.load(SeqCst).max(1) as f64;
    mean
}

fn main() {
    let mut words = std::env::args().skip(1).filter_map(|word| word.parse::<u64>().ok());
    let (threads, seconds) = (words.next().unwrap_or(1), words.next().unwrap_or(4));
    let time = Duration::from_millis(20);
    println!("{threads} threads; median nanoseconds a request without the lock and with it, and the ratio");
    for (spec, key) in [
        ("aes-xts-plain64", 64),
        ("aes-hctr2-plain64", 32),
        ("aes-cbc-essiv:sha256", 32),
        ("xchacha12,aes-adiantum-plain64", 32),
    ] {
        let key = Key::new(&(0..key).collect::<Vec<u8>>()).expect("there is memory for it");
        let inner =
            build(&spec.parse().expect("a specification"), &key, SectorSize::S4096).expect("it is known");
        let device = Arc::new(RamDevice::new(SIZE));
        let mappings = [true, false].map(|local| {
            let cipher = Arc::new(Says { inner: inner.clone(), local });
            let volume = Volume::new(vec![Segment::stored(0, SIZE, 0, 0, cipher)]).expect("one segment");
            Arc::new(Mapping::new(volume, device.clone()).expect("it fits"))
        });
        for (what, len, writes) in [
            ("4k read", 4096, false),
            ("4k write", 4096, true),
            ("64k read", 65536, false),
            ("64k write", 65536, true),
        ] {
            let rounds = (seconds * 1000 / 40).max(3);
            let mut costs = [Vec::new(), Vec::new()];
            for round in 0..rounds {
                // The order of the two volumes alternates.
                for n in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
                    costs[n].push(cost(&mappings[n], threads, len, writes, time));
                }
            }
            let [without, with] = costs.map(|mut costs| {
                costs.sort_by(f64::total_cmp);
                costs[costs.len() / 2]
            });
            println!("{spec:32} {what:9} {without:9.0} {with:9.0}  {:.3}", with / without);
        }
    }
}
