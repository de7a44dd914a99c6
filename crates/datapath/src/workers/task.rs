//! A task: a piece of a request for a worker.

use std::sync::Arc;
use std::time::Instant;

use underseal_device::{Buffer, Channel, Immediate};
use underseal_volume::Volume;

use crate::inbox::{QueueInbox, QueueMessage};
use crate::piece::{CryptoFailure, Piece};
use crate::shared::SharedView;

/// A call of the cipher, in some tasks with the I/O before or after it.
pub(crate) struct Task {
    pub(crate) slot: u32,
    pub(crate) work: CryptoWork,
    /// The task may be taken back: it was handed over only to be done sooner.
    pub(crate) is_surplus: bool,
    /// Another surplus task was with workers when this one was given.
    pub(crate) follows: bool,
    pub(crate) volume: Arc<Volume>,
    pub(crate) piece: Piece,
    /// The request's memory.
    pub(crate) buffer: Buffer,
    /// The source or destination of the plaintext, if not the request's memory.
    pub(crate) shared: Option<SharedView>,
    /// The request's memory for tuples.
    pub(crate) tags: Option<Buffer>,
    /// The queue that gets the task back.
    pub(crate) home: Arc<QueueInbox>,
    pub(crate) given: Instant,
    pub(crate) started: Instant,
    pub(crate) outcome: TaskOutcome,
}

/// The work of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CryptoWork {
    Decrypt,
    Encrypt,
    ReadAndDecrypt,
    EncryptAndWrite,
}

/// The result of a task.
#[derive(Debug)]
pub(crate) enum TaskOutcome {
    Untouched,
    /// The work is done.
    Done,
    /// The device would have blocked after this many bytes. Bytes to be written are encrypted.
    Blocked(usize),
    Failed(underseal_device::Error),
    /// The cipher refused a sector.
    Broken(CryptoFailure),
    /// The worker panicked.
    Died,
}

impl Task {
    /// Does the task, in the calling thread.
    pub(crate) fn run(&mut self, channels: &mut [Box<dyn Channel>]) {
        self.started = Instant::now();
        let Self { work, volume, piece, buffer, tags, shared, .. } = self;
        let shared = shared.as_ref();
        let tags = tags.as_deref_mut().unwrap_or_default();
        let channel = channels.get_mut(piece.device);
        // A worker without channels only does crypto.
        let moved = match (&work, channel) {
            (CryptoWork::Decrypt, _) => Ok(Immediate::Done),
            (CryptoWork::ReadAndDecrypt, None) => Ok(Immediate::Blocked(0)),
            (CryptoWork::ReadAndDecrypt, Some(channel)) => Ok(piece.read_now(&mut **channel, buffer, tags)),
            (CryptoWork::Encrypt, _) => piece.encrypt(volume, shared, buffer, tags).map(|()| Immediate::Done),
            (CryptoWork::EncryptAndWrite, channel) => piece.encrypt(volume, shared, buffer, tags).map(|()| {
                channel.map_or(Immediate::Blocked(0), |channel| piece.write_now(&mut **channel, buffer, tags))
            }),
        };
        let done = match (moved, work) {
            (Ok(Immediate::Done), CryptoWork::Decrypt | CryptoWork::ReadAndDecrypt) => {
                piece.decrypt(volume, shared, buffer, tags).map(|()| Immediate::Done)
            }
            (moved, _) => moved,
        };
        self.outcome = match done {
            Ok(Immediate::Done) => TaskOutcome::Done,
            Ok(Immediate::Blocked(done)) => TaskOutcome::Blocked(done),
            Ok(Immediate::Failed(e)) => TaskOutcome::Failed(e),
            Err(e) => TaskOutcome::Broken(e),
        };
    }

    /// Returns the task to its queue.
    pub(crate) fn send(self) {
        let home = self.home.clone();
        home.send(QueueMessage::Task(self));
    }
}
