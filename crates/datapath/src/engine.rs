//! Accelerators: crypto engines with a queue of their own.
//!
//! ```text
//!   queue --Job--> Accelerator::submit        an engine may answer at once or later, in any order, from any thread,
//!     ^  ^              |      |              or be full
//!     |  +--- full -----+      v
//!     +------ Returned ---- Job::complete
//! ```
//!
//! A job has memory of its own: the bytes of the request are copied into it and, when it is done, back. So a job that
//! fails or never comes back costs nothing but its own memory, and the queue does the crypto itself.

mod pool;

pub use pool::SoftwarePool;

use std::sync::Arc;

use underseal_cipher::InOutBuf;
use underseal_device::Buffer;
use underseal_volume::Volume;

use crate::post::{QueueInbox, QueueMessage};

/// A crypto engine.
///
/// # Contract
/// Every job that was taken is [completed](Job::complete), or dropped, which fails it. An engine that keeps a job longer
/// than [`Accelerator::patience`] is taken to have stalled on it; the job may still come back.
pub trait Accelerator: Send + Sync {
    /// What messages and the status call it.
    fn name(&self) -> &str;

    /// Takes a job.
    ///
    /// # Errors
    /// Gives it back when the engine's queue is full.
    fn submit(&self, job: Job) -> Result<(), Job>;

    /// The most sectors that a job may have; none: as many as the request.
    fn max_sectors(&self) -> Option<usize> {
        None
    }

    /// After this time a job counts as stalled.
    fn patience(&self) -> std::time::Duration {
        std::time::Duration::from_secs(2)
    }
}

/// A run of sectors to encrypt or decrypt.
pub struct Job {
    inside: Option<JobBuffers>,
}

/// What a queue knows a job by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JobId {
    /// Its place in the queue's table.
    pub(crate) number: u32,
    /// How often the place was used: a job that comes back late is not taken for another.
    pub(crate) use_of: u32,
}

struct JobBuffers {
    id: JobId,
    encrypts: bool,
    volume: Arc<Volume>,
    segment: usize,
    sector: u64,
    buffer: Buffer,
    /// The volume's own cipher refused a sector.
    is_broken: bool,
    home: Arc<QueueInbox>,
}

/// A job that came back.
pub(crate) struct ReturnedJob {
    pub(crate) id: JobId,
    pub(crate) buffer: Buffer,
    pub(crate) result: Result<(), String>,
}

impl Job {
    pub(crate) fn new(
        id: JobId,
        encrypts: bool,
        volume: Arc<Volume>,
        (segment, sector): (usize, u64),
        buffer: Buffer,
        home: Arc<QueueInbox>,
    ) -> Self {
        Self {
            inside: Some(JobBuffers {
                id,
                encrypts,
                volume,
                segment,
                sector,
                buffer,
                is_broken: false,
                home,
            }),
        }
    }

    fn inside(&self) -> &JobBuffers {
        self.inside.as_ref().expect("only `complete` and `drop` take it, and both consume the job")
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.inside().buffer.len()
    }

    /// True when it has no bytes; the data path makes no such jobs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True for encryption, false for decryption.
    pub fn encrypts(&self) -> bool {
        self.inside().encrypts
    }

    /// Does what the job asks for with the volume's own cipher, in the calling thread: for engines in software, and for
    /// models, which are slow on purpose but not wrong.
    pub fn run(&mut self) {
        let Some(inside) = &mut self.inside else { return };
        // The data path makes jobs of what is stored only.
        let Some(stored) = inside.volume.segments()[inside.segment].as_stored() else { return };
        let cipher = &stored.cipher;
        let data = InOutBuf::from(&mut inside.buffer[..]);
        let done = if inside.encrypts {
            cipher.seal(inside.sector, data, &mut [])
        } else {
            cipher.open(inside.sector, data, &[])
        };
        inside.is_broken = done.is_err();
    }

    /// Gives the job back, done or failed, from any thread.
    pub fn complete(mut self, result: Result<(), String>) {
        self.send(result);
    }

    /// The job's memory when it was not submitted after all.
    pub(crate) fn into_buffer(mut self) -> Option<Buffer> {
        self.inside.take().map(|inside| inside.buffer)
    }

    fn send(&mut self, result: Result<(), String>) {
        if let Some(JobBuffers { id, buffer, is_broken, home, .. }) = self.inside.take() {
            // The queue asks the cipher itself, and learns which sector it is.
            let result = if is_broken { Err("the cipher refused a sector".into()) } else { result };
            home.send(QueueMessage::Job(ReturnedJob { id, buffer, result }));
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.send(Err("the engine dropped the job".into()));
    }
}
