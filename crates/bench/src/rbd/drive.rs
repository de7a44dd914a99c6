//! A client in a separate process, whose processor time is the client's alone: one order per line,
//! and an answer to each.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::librbd::Librbd;
use super::ours::Ours;
use super::{BenchError, Did, Workload};

/// The client whose calls are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DriveSubject {
    /// Our queue.
    Ours,
    /// librbd with its own encryption.
    Luks2,
    /// librbd alone.
    Plain,
}

impl DriveSubject {
    /// All subjects.
    pub const ALL: [Self; 3] = [Self::Ours, Self::Luks2, Self::Plain];

    /// Returns the name as an argument.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Luks2 => "luks2",
            Self::Plain => "plain",
        }
    }
}

/// The options of a measured process.
#[derive(Debug, Clone)]
pub struct DriveOptions {
    /// The client.
    pub driven: DriveSubject,
    /// The image: `rbd:POOL/IMAGE` for ours, `POOL/IMAGE` for librbd's own.
    pub image: String,
    /// The cluster's configuration, for librbd.
    pub conf: Option<PathBuf>,
    /// The passphrase for librbd's encryption.
    pub passphrase_file: PathBuf,
    /// The number of bytes that are read and written.
    pub size: u64,
}

/// A unit of work.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct DriveOrder {
    pub(super) workload: Workload,
    /// Through a cipher, if the client has the choice.
    pub(super) ciphers: bool,
    pub(super) until: OrderEnd,
}

/// The duration and the places of an order.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) enum OrderEnd {
    /// Random offsets for this number of seconds.
    Seconds(f64),
    /// Every place once, in order.
    All,
    /// A single request, at the beginning.
    One,
}

/// Returns the place of the next request, or `None` at the end.
pub(super) type NextOffset<'p> = &'p mut dyn FnMut() -> Option<u64>;

/// A client that keeps requests of one kind in flight while `places` gives offsets; returns their
/// number.
pub(super) trait Drive {
    fn drive(&mut self, workload: Workload, ciphers: bool, places: NextOffset<'_>)
    -> Result<u64, BenchError>;
}

/// Opens an image, and carries out orders until they end.
///
/// # Errors
/// When the image cannot be opened, an order cannot be read, or a request fails.
pub fn drive_rbd(options: &DriveOptions) -> Result<(), BenchError> {
    let mut client: Box<dyn Drive> = match options.driven {
        DriveSubject::Ours => Box::new(Ours::open(&options.image, options.size)?),
        DriveSubject::Luks2 => {
            let passphrase = std::fs::read(&options.passphrase_file)
                .map_err(|e| BenchError::because("the passphrase cannot be read", e))?;
            Box::new(Librbd::open(&options.image, conf(options), Some(&passphrase))?)
        }
        DriveSubject::Plain => Box::new(Librbd::open(&options.image, conf(options), None)?),
    };
    let lost = |e: std::io::Error| BenchError::because("orders come no more", e);
    for line in std::io::stdin().lock().lines() {
        let order: DriveOrder = serde_json::from_str(&line.map_err(lost)?)
            .map_err(|e| BenchError::because("this is no order", e))?;
        let did = follow(&mut *client, &order, options.size)?;
        let answer = serde_json::to_string(&did).map_err(|e| lost(e.into()))? + "\n";
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(answer.as_bytes()).and_then(|()| stdout.flush()).map_err(lost)?;
    }
    Ok(())
}

fn conf(options: &DriveOptions) -> Option<&Path> {
    options.conf.as_deref()
}

fn follow(client: &mut dyn Drive, order: &DriveOrder, size: u64) -> Result<Did, BenchError> {
    let block = order.workload.block as u64;
    let blocks = (size / block).max(1);
    let (mut random, mut next) = (fastrand::Rng::new(), 0..blocks);
    let (begun, spent) = (Instant::now(), processor_time());
    if let OrderEnd::One = order.until {
        next = 0..1;
    }
    let mut places = || match order.until {
        OrderEnd::Seconds(seconds) => {
            (begun.elapsed().as_secs_f64() < seconds).then(|| random.u64(..blocks) * block)
        }
        OrderEnd::All | OrderEnd::One => next.next().map(|number| number * block),
    };
    let requests = client.drive(order.workload, order.ciphers, &mut places)?;
    Ok(Did {
        requests,
        seconds: begun.elapsed().as_secs_f64(),
        cpu_seconds: (processor_time() - spent).as_secs_f64(),
    })
}

/// Returns the processor time of all threads of this process, including librbd's.
fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.cast_unsigned(), u32::try_from(now.tv_nsec).unwrap_or(0))
}
