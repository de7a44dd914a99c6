//! Ciphers that panic, and requests of very many pieces.

use std::sync::Arc;

use underseal_cipher::{InOutBuf, SectorCipher, SectorSize};
use underseal_datapath::{ErrorKind, Mapping, Request};
use underseal_device::RamDevice;

use super::*;

#[test]
fn many_small_pieces_need_no_more_stack_than_one() {
    let mapping = Arc::new(mapping(Arc::new(RamDevice::new(SIZE))));
    mapping.set_policy(policy("inline,order=arrival,max-write-size=4K")).unwrap();
    let mut queue = open(&mapping);
    submit_write(&mut queue, 0, 0, 8 << 20, 3);
    succeed(&mut queue);
    assert!(read(&mut queue, 0, 8 << 20).iter().all(|byte| *byte == 3));
}

/// A cipher that panics on a thread with this name, from a sector on.
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
