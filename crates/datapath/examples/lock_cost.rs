//! What the sectors' lock costs: requests a second with it and without it, in turns.
//!
//! `cargo run --release -p underseal-datapath --example lock_cost -- [THREADS [SECONDS]]`

#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use underseal_cipher::{InOutBuf, Key, SectorCipher, SectorSize, build};
use underseal_datapath::{Mapping, Queue, QueueOptions, Request};
use underseal_device::RamDevice;
use underseal_volume::{Segment, Volume};

const SIZE: u64 = 64 << 20;

/// A cipher that says what it is told to of itself.
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

/// Requests a second.
fn rate(mapping: &Arc<Mapping>, threads: u64, len: usize, writes: bool, time: Duration) -> f64 {
    let (stop, sum) = (AtomicBool::new(false), AtomicU64::new(0));
    let begun = Instant::now();
    thread::scope(|scope| {
        for number in 0..threads {
            let (stop, sum) = (&stop, &sum);
            scope.spawn(move || {
                let mut queue =
                    Queue::open(mapping.clone(), QueueOptions { depth: 32, max_request: 1 << 20 })
                        .expect("the system has what a queue needs");
                let mut data = vec![0; len];
                let (mut dice, mut done) = (number + 1, 0);
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
                        let over = queue.next_completion().expect("memory answers at once");
                        over.result.expect("nothing fails");
                        over.buffer.into_iter().for_each(|buffer| queue.free(buffer));
                        done += 1;
                    }
                }
                sum.fetch_add(done, SeqCst);
            });
        }
        thread::sleep(time);
        stop.store(true, SeqCst);
    });
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let sum = sum.load(SeqCst) as f64;
    sum / begun.elapsed().as_secs_f64()
}

fn main() {
    let mut words = std::env::args().skip(1).filter_map(|word| word.parse::<u64>().ok());
    let (threads, seconds) = (words.next().unwrap_or(1), words.next().unwrap_or(4));
    let time = Duration::from_millis(100);
    println!("{threads} threads; requests a second without the lock, with it, and the median of the ratios");
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
            let rounds = (seconds * 1000 / 200).max(3);
            let mut ratios = Vec::new();
            let mut sums = [0.0; 2];
            for round in 0..rounds {
                // Neither always comes first.
                let mut rates = [0.0; 2];
                for n in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
                    rates[n] = rate(&mappings[n], threads, len, writes, time);
                    sums[n] += rates[n];
                }
                ratios.push(rates[1] / rates[0]);
            }
            ratios.sort_by(f64::total_cmp);
            #[expect(clippy::cast_precision_loss, reason = "a mean")]
            let mean = sums.map(|sum| sum / rounds as f64);
            println!("{spec:32} {what:9} {:9.0} {:9.0}  {:.3}", mean[0], mean[1], ratios[ratios.len() / 2]);
        }
    }
}
