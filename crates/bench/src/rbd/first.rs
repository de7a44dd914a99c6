//! From a program's start to the first bytes: `underseal open` with the key at hand, as a client of
//! its export sees it, beside a program that opens the image with librbd and reads.

use std::fmt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use underseal_device::{Blocking, NbdDevice};

use super::clients::{PLAIN, Process};
use super::drive::{DriveOrder, DriveSubject, OrderEnd};
use super::images::{self, Images};
use super::{BenchError, RbdOptions, workload};
use crate::Range;
use crate::nbd::missing;
use crate::observer::Observer;

/// The goal: the largest delay after librbd alone, in milliseconds.
const GOAL: f64 = 60.0;
const PATIENCE: Duration = Duration::from_secs(60);

/// The time to the first bytes.
#[derive(Debug, Clone, Serialize)]
pub(super) struct FirstRead {
    underseal_ms: Range,
    librbd_ms: Range,
    /// The delay round by round.
    later_ms: Range,
    goal_ms: f64,
    met: bool,
}

pub(super) fn measure(
    options: &RbdOptions,
    images: &Images,
    observer: &mut impl Observer,
) -> Result<FirstRead, BenchError> {
    let [mut ours, mut theirs] = [const { Vec::new() }; 2];
    let rounds = options.turns.rounds.max(3);
    for round in 0..rounds {
        observer.progress(&format!("round {} of {rounds}: the first read", round + 1));
        for turn in 0..2 {
            if (turn + round) % 2 == 0 {
                ours.push(underseal(options, images)?);
            } else {
                theirs.push(librbd(images)?);
            }
        }
    }
    let later = Range::of(ours.iter().zip(&theirs).map(|(a, b)| a - b));
    Ok(FirstRead {
        underseal_ms: Range::of(ours),
        librbd_ms: Range::of(theirs),
        later_ms: later,
        goal_ms: GOAL,
        met: later.median <= GOAL,
    })
}

fn librbd(images: &Images) -> Result<f64, BenchError> {
    let started = Instant::now();
    let mut process = Process::start(DriveSubject::Plain, images)?;
    let order = DriveOrder { workload: workload(false, 4, 1), ciphers: false, until: OrderEnd::One };
    process.ask(PLAIN, &order)?;
    Ok(millis(started))
}

fn underseal(options: &RbdOptions, images: &Images) -> Result<f64, BenchError> {
    let socket = images.socket();
    let mut open = Command::new(&options.turns.underseal);
    open.args(["--quiet", "open"])
        .arg(images.address(images::OURS))
        .arg("--volume-key-file")
        .arg(images.key_file());
    open.arg("--nbd").arg(format!("unix:{}", socket.display()));
    open.stdin(Stdio::null()).stdout(Stdio::null());
    let started = Instant::now();
    let mut server = Server(open.spawn().map_err(|e| missing(&open, e))?);
    let device = loop {
        if let Some(device) = connected(&socket) {
            break device?;
        }
        if let Ok(Some(status)) = server.0.try_wait() {
            return Err(BenchError::new(format!("underseal open ended with {status}")));
        }
        if started.elapsed() > PATIENCE {
            return Err(BenchError::new(format!(
                "underseal open did not begin to serve within {PATIENCE:?}"
            )));
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let failed = |e| BenchError::because("the first read failed", e);
    let mut bytes = [0; 4096];
    Blocking::new(&device).and_then(|mut from| from.read(0, &mut bytes)).map_err(failed)?;
    let took = millis(started);
    drop(device);
    Ok(took)
}

/// The connected device, or `None` while no server listens.
fn connected(socket: &Path) -> Option<Result<NbdDevice, BenchError>> {
    std::os::unix::net::UnixStream::connect(socket).ok()?;
    let failed = |e| BenchError::because("underseal open cannot be connected to", e);
    let address = format!("nbd+unix:///?socket={}", socket.display());
    Some(address.parse().and_then(|address| NbdDevice::open(address, true)).map_err(failed))
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// A server that releases the image's lock before the next server starts.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

impl fmt::Display for FirstRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { underseal_ms: ours, librbd_ms: theirs, later_ms: later, .. } = self;
        write!(
            f,
            "from start to the first bytes: underseal open, over NBD {:.0} ms; librbd alone {:.0} ms; later by {:.0} ms ({:.0}..{:.0}), goal \
             {GOAL:.0}: {}",
            ours.median,
            theirs.median,
            later.median,
            later.least,
            later.most,
            if self.met { "met" } else { "missed" }
        )
    }
}
