//! A piece of a request in the hands of a worker.

use std::sync::Arc;
use std::time::Instant;

use underseal_device::{Buffer, Channel, Immediate};
use underseal_volume::Volume;

use crate::piece::{Piece, Refused};
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
    pub(crate) piece: Piece,
    /// The request's memory.
    pub(crate) buffer: Buffer,
    /// Its memory for tuples.
    pub(crate) tags: Option<Buffer>,
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
    /// The cipher refused a sector.
    Broken(Refused),
    /// The worker panicked.
    Died,
}

impl Task {
    /// Does it, in the calling thread.
    pub(crate) fn run(&mut self, channels: &mut [Box<dyn Channel>]) {
        self.started = Instant::now();
        let Self { work, volume, piece, buffer, tags, .. } = self;
        let tags = tags.as_deref_mut().unwrap_or_default();
        let channel = channels.get_mut(piece.device);
        // A worker without channels does the crypto only.
        let moved = match (&work, channel) {
            (Work::Decrypt, _) => Ok(Immediate::Done),
            (Work::ReadAndDecrypt, None) => Ok(Immediate::Blocked(0)),
            (Work::ReadAndDecrypt, Some(channel)) => Ok(piece.read_now(&mut **channel, buffer, tags)),
            (Work::Encrypt, _) => piece.encrypt(volume, buffer, tags).map(|()| Immediate::Done),
            (Work::EncryptAndWrite, channel) => piece.encrypt(volume, buffer, tags).map(|()| {
                channel.map_or(Immediate::Blocked(0), |channel| piece.write_now(&mut **channel, buffer, tags))
            }),
        };
        let done = match (moved, work) {
            (Ok(Immediate::Done), Work::Decrypt | Work::ReadAndDecrypt) => {
                piece.decrypt(volume, buffer, tags).map(|()| Immediate::Done)
            }
            (moved, _) => moved,
        };
        self.outcome = match done {
            Ok(Immediate::Done) => Outcome::Done,
            Ok(Immediate::Blocked(done)) => Outcome::Blocked(done),
            Ok(Immediate::Failed(e)) => Outcome::Failed(e),
            Err(e) => Outcome::Broken(e),
        };
    }

    /// Sends it home.
    pub(crate) fn send(self) {
        let home = self.home.clone();
        home.send(Letter::Task(self));
    }
}
