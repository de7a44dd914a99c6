//! Writes that continue through faults of the cluster, for as long as a test wants. Their speed
//! does not matter.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::support::nbd::Client;
use crate::support::seed;
use crate::support::volume::Volume;

const BLOCK: usize = 4096;
/// A power of two: an odd stride visits all blocks.
const BLOCKS: u64 = 2048;
/// In flight at a time.
const DEPTH: u64 = 16;

/// Sixteen writes at a time, at random places, and a flush now and then. None may fail.
pub(crate) struct Writer {
    stop: Arc<AtomicBool>,
    /// How often each block was written.
    thread: JoinHandle<Vec<u64>>,
}

impl Writer {
    pub(crate) fn start(socket: PathBuf) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let stopped = stop.clone();
        let mut dice = seed("writer");
        let writes = move || {
            let mut client = Client::connect(&socket).unwrap();
            let mut versions = vec![0; usize::try_from(BLOCKS).unwrap()];
            while !stopped.load(SeqCst) {
                dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let (first, stride) = (dice >> 40, dice >> 20 | 1);
                for number in 0..DEPTH {
                    let block = first.wrapping_add(number.wrapping_mul(stride)) % BLOCKS;
                    let version = &mut versions[usize::try_from(block).unwrap()];
                    *version += 1;
                    client.send_write(block, block * BLOCK as u64, &contents(block, *version)).unwrap();
                }
                for _ in 0..DEPTH {
                    assert_eq!(client.reply().unwrap().1, 0, "a write");
                }
                if dice >> 62 == 0 {
                    client.flush().unwrap();
                }
                thread::sleep(Duration::from_millis(5));
            }
            client.flush().unwrap();
            versions
        };
        Self { stop, thread: thread::spawn(writes) }
    }

    /// Ends it, once all has been flushed. What has to be there then.
    pub(crate) fn stop(self) -> Written {
        self.stop.store(true, SeqCst);
        Written(self.thread.join().unwrap())
    }
}

/// How often each block was written and flushed.
pub(crate) struct Written(Vec<u64>);

impl Written {
    /// Asserts that each block has its last version; a separate process reads them.
    pub(crate) fn is_there(&self, volume: &Volume) {
        let data = volume.read(0, self.0.len() * BLOCK);
        let blocks = (0..).zip(&self.0).zip(data.chunks(BLOCK)).filter(|((_, version), _)| **version > 0);
        let mut count = 0;
        for ((block, version), there) in blocks {
            assert!(there == contents(block, *version), "block {block}, written {version} times");
            count += 1;
        }
        assert!(count > 0, "something was written");
    }
}

/// The contents of a block after the write number `version`.
fn contents(block: u64, version: u64) -> Vec<u8> {
    let words = [block.to_le_bytes(), version.to_le_bytes()].concat();
    words.repeat(BLOCK / words.len())
}
