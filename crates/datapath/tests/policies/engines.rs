//! Accelerators that behave as they like.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use underseal_cipher::{InOutBuf, SectorCipher, SectorSize};
use underseal_datapath::engine::{Accelerator, Job, SoftwarePool};
use underseal_datapath::{ErrorKind, Mapping, Request};
use underseal_device::RamDevice;

use super::*;

/// Answers when it has so many jobs, the last one first.
pub(crate) struct Backwards {
    held: Mutex<Vec<Job>>,
    count: usize,
}

impl Backwards {
    pub(crate) fn new(count: usize) -> Arc<Self> {
        Arc::new(Self { held: Mutex::default(), count })
    }
}

impl Accelerator for Backwards {
    fn name(&self) -> &'static str {
        "backwards"
    }

    fn submit(&self, job: Job) -> Result<(), Job> {
        let mut held = self.held.lock().unwrap();
        held.push(job);
        if held.len() == self.count {
            for mut job in held.drain(..).rev() {
                job.run();
                job.complete(Ok(()));
            }
        }
        Ok(())
    }
}

/// Takes so many jobs, and nothing happens any more.
struct Hangs(Mutex<Vec<Job>>, usize);

impl Accelerator for Hangs {
    fn name(&self) -> &'static str {
        "hangs"
    }

    fn submit(&self, job: Job) -> Result<(), Job> {
        let mut held = self.0.lock().unwrap();
        if held.len() == self.1 {
            return Err(job);
        }
        held.push(job);
        Ok(())
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(50)
    }
}

#[test]
fn an_engine_that_hangs_with_a_full_queue_costs_time_and_no_request() {
    for (takes, order) in [(0, "ready"), (2, "ready"), (2, "sorted"), (2, "arrival")] {
        let device = Arc::new(RamDevice::new(SIZE));
        let mapping = Arc::new(mapping(device, Arc::new(Hangs(Mutex::default(), takes))));
        mapping.set_policy(policy(&format!("engine,order={order}"))).unwrap();
        let mut queue = open(&mapping);
        for tag in 0..20 {
            submit_write(&mut queue, tag, tag * SECTOR, 4096, 7);
        }
        succeed(&mut queue);
        assert_eq!(read(&mut queue, 0, 20 * 4096), [7; 20 * 4096]);
        let done = mapping.stats().dispatched;
        assert_eq!((done.engine, done.engine_retries), (0, 21), "each is done here, and counted");
    }
}

#[test]
fn many_small_pieces_that_the_engine_refuses_need_no_more_stack_than_one() {
    for text in ["engine,max-read-size=4K,max-write-size=4K", "inline,order=arrival,max-write-size=4K"] {
        let engine = Arc::new(Hangs(Mutex::default(), 0));
        let mapping = Arc::new(mapping(Arc::new(RamDevice::new(SIZE)), engine));
        mapping.set_policy(policy(text)).unwrap();
        let mut queue = open(&mapping);
        submit_write(&mut queue, 0, 0, 8 << 20, 3);
        succeed(&mut queue);
        assert!(read(&mut queue, 0, 8 << 20).iter().all(|byte| *byte == 3), "{text}");
    }
}

/// Panics where the thread's name says so, from a sector on.
struct Panics {
    inner: Arc<dyn SectorCipher>,
    thread: &'static str,
    from: u64,
}

impl Panics {
    fn look(&self, first: u64) {
        let here = std::thread::current().name().unwrap_or_default().starts_with(self.thread);
        assert!(!here || first < self.from, "the cipher panics, as the test wants");
    }
}

impl SectorCipher for Panics {
    fn sector_size(&self) -> SectorSize {
        self.inner.sector_size()
    }

    fn encrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>) {
        self.look(first);
        self.inner.encrypt(first, data);
    }

    fn decrypt(&self, first: u64, data: InOutBuf<'_, '_, u8>) {
        self.look(first);
        self.inner.decrypt(first, data);
    }
}

#[test]
fn a_cipher_that_panics_in_a_worker_fails_one_request() {
    for text in ["workers", "same-cpu", "kernel", "workers,order=arrival"] {
        let cipher = Panics { inner: xts(SectorSize::S4096), thread: "worker", from: SIZE / 2 / 512 };
        let mapping = Mapping::new(volume(Arc::new(cipher)), Arc::new(RamDevice::new(SIZE))).unwrap();
        let mapping = Arc::new(mapping);
        mapping.set_policy(policy(text)).unwrap();
        let mut queue = open(&mapping);
        for _ in 0..4 {
            for tag in 0..8 {
                submit_write(&mut queue, tag, if tag == 3 { SIZE / 2 } else { tag * SECTOR }, 4096, 5);
            }
            for completion in finish(&mut queue) {
                let kind = completion.result.err().map(|e| e.kind());
                assert_eq!(kind, (completion.tag == 3).then_some(ErrorKind::Worker), "{text}");
            }
        }
        assert_eq!(read(&mut queue, 4096, 4096), [5; 4096]);
    }
}

#[test]
fn a_cipher_that_panics_in_the_engine_is_asked_again_here() {
    let cipher = Panics { inner: xts(SectorSize::S4096), thread: "engine ", from: 0 };
    let mapping = Mapping::new(volume(Arc::new(cipher)), Arc::new(RamDevice::new(SIZE))).unwrap();
    let mapping = Arc::new(mapping.with_accelerator(Arc::new(SoftwarePool::new(1, 2).unwrap())));
    mapping.set_policy(policy("engine")).unwrap();
    let mut queue = open(&mapping);
    for tag in 0..8 {
        submit_write(&mut queue, tag, tag * SECTOR, 4096, 5);
    }
    succeed(&mut queue);
    assert_eq!(read(&mut queue, 4096, 4096), [5; 4096]);
    assert_eq!(mapping.stats().dispatched.engine_retries, 9);
}

#[test]
fn a_queues_thread_that_panics_ends_and_lets_its_sectors_go() {
    let cipher = Panics { inner: xts(SectorSize::S4096), thread: "dies", from: 0 };
    let mapping = Mapping::new(volume(Arc::new(cipher)), Arc::new(RamDevice::new(SIZE))).unwrap();
    let mapping = Arc::new(mapping.with_block(512).unwrap());
    let theirs = mapping.clone();
    let dies = std::thread::Builder::new().name("dies".into());
    let dies = dies.spawn(move || submit_write(&mut open(&theirs), 0, 512, 512, 1)).unwrap();
    assert!(dies.join().is_err());
    let mut queue = open(&mapping);
    submit_write(&mut queue, 0, 1024, 512, 2);
    queue.submit(1, Request::Flush).unwrap();
    succeed(&mut queue);
    assert_eq!(read(&mut queue, 1024, 512), [2; 512]);
    assert_eq!(mapping.stats().queues, 1);
}
