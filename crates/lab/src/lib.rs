//! Published experiments about encrypted storage, measured again on this machine.
//!
//! ```text
//!   experiments/   one file each: the question, the published figures, the measurement, the answer
//!      |   |
//!      |  rounds     every subject in every round, so that a noisy neighbour meets all alike
//!      |    stalls   a measurement during which the machine stood still is repeated
//!      |   |
//!      |  load       threads that keep requests in flight, through a ...
//!      |   |           stream   Queue (a volume under a policy) or the bare Channel of a device
//!      |   +--------- hogs      processes that keep every processor busy
//!      |              volumes   memory as a device, ciphers, mappings
//!      v
//!   Outcome  ------>  JSON      kept, compared, read again
//!      |  \
//!      |   +------->  text      for the terminal
//!      v
//!   page/  one self-contained HTML file: plots (SVG), goals, figures
//! ```
//!
//! No figure is a constant of the code: published figures stand in the experiments as text and as
//! references for measured figures; everything else is measured when the experiment runs.

#![forbid(unsafe_code)]

mod engine;
mod error;
mod experiments;
mod hogs;
mod load;
mod outcome;
mod page;
mod rounds;
mod stalls;
mod stream;
mod text;
mod volumes;

use std::path::PathBuf;
use std::time::Duration;

pub use error::{Error, ErrorKind};
pub use experiments::{Experiment, all, find};
pub use hogs::spin;
pub use outcome::{
    AnswerFigure, Cell, ExperimentOutcome, Goal, Panel, PanelRow, PanelShape, Published, Unit,
};
pub use page::page;
pub use underseal_bench::{Machine, Range};

/// The result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;

/// The options of experiments.
pub struct Lab<'a> {
    /// The laboratory's program: it calls [`spin`] when it is run with `spin`.
    pub program: PathBuf,
    /// The number of rounds. `None` stands for each experiment's own number.
    pub rounds: Option<usize>,
    /// Seconds instead of minutes: a trial run. Not for figures.
    pub quick: bool,
    /// Receives progress messages.
    pub progress: &'a (dyn Fn(&str) + 'a),
}

impl Lab<'_> {
    /// Returns the number of rounds for a measurement with `usual` rounds.
    pub(crate) fn rounds(&self, usual: usize) -> usize {
        self.rounds.unwrap_or(if self.quick { 2 } else { usual }).max(1)
    }

    /// Returns the time of each measurement.
    pub(crate) fn slice(&self, millis: u64) -> Duration {
        Duration::from_millis(if self.quick { (millis / 20).max(2) } else { millis })
    }

    /// Returns the size of a device or a load in bytes.
    pub(crate) fn bytes(&self, usual: u64) -> u64 {
        if self.quick { (usual / 16).max(4 << 20) } else { usual }
    }
}
