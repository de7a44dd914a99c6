//! A piece of a request in the hands of a worker.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use underseal_cipher::InOutBuf;
use underseal_device::{Buffer, Channel, Now};
use underseal_volume::Volume;

use crate::post::{Letter, Post};

/// One call of the cipher, perhaps with the I/O before or after it.
pub(crate) struct Task {
    pub(crate) slot: u32,
    pub(crate) work: Work,
    /// It may be taken back: it was given away only to be faster.
    pub(crate) is_surplus: bool,
    /// Another surplus task was with workers when it was given.
    pub(crate) follows: bool,
    pub(crate) volume: Arc<Volume>,
    pub(crate) segment: usize,
    /// Where it begins in the volume, in bytes.
    pub(crate) at: u64,
    pub(crate) buffer: Buffer,
    pub(crate) range: Range<usize>,
    /// Whose it is.
    pub(crate) home: Arc<Post>,
    pub(crate) given: Instant,
    pub(crate) started: Instant,
    pub(crate) outcome: Outcome,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    Decrypt,
    Encrypt,
    ReadAndDecrypt,
    EncryptAndWrite,
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum Outcome {
    Untouched,
    /// All that was asked for is done.
    Done,
    /// The device would have blocked after so many bytes. What was to be encrypted is.
    Blocked(usize),
    Failed(underseal_device::Error),
    /// The worker panicked.
    Died,
}

impl Task {
    /// Does it, in the calling thread.
    pub(crate) fn run(&mut self, channels: &mut [Box<dyn Channel>]) {
        self.started = Instant::now();
        let segment = &self.volume.segments()[self.segment];
        // The data path gives out what is stored only; the rest stays untouched.
        let (Some((device, lower)), Some((cipher, sector))) =
            (segment.lower(self.at), segment.cipher(self.at))
        else {
            return;
        };
        let bytes = &mut self.buffer[self.range.clone()];
        let channel = channels.get_mut(device);
        let now = match (self.work, channel) {
            (Work::Decrypt, _) => {
                cipher.decrypt(sector, InOutBuf::from(bytes));
                Now::Done
            }
            (Work::Encrypt, _) => {
                cipher.encrypt(sector, InOutBuf::from(bytes));
                Now::Done
            }
            (Work::ReadAndDecrypt, None) => Now::Blocked(0),
            (Work::ReadAndDecrypt, Some(channel)) => {
                let now = channel.read_now(lower, bytes);
                if matches!(now, Now::Done) {
                    cipher.decrypt(sector, InOutBuf::from(bytes));
                }
                now
            }
            (Work::EncryptAndWrite, channel) => {
                cipher.encrypt(sector, InOutBuf::from(&mut *bytes));
                channel.map_or(Now::Blocked(0), |channel| channel.write_now(lower, bytes))
            }
        };
        self.outcome = match now {
            Now::Done => Outcome::Done,
            Now::Blocked(done) => Outcome::Blocked(done),
            Now::Failed(e) => Outcome::Failed(e),
        };
    }

    /// Sends it home.
    pub(crate) fn send(self) {
        let home = self.home.clone();
        home.send(Letter::Task(self));
    }
}
