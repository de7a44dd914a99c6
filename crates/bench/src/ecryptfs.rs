//! eCryptfs: the cost of its parts.
//!
//! ```text
//!   crypto    the extents of a request in one call, beside one by one, as Linux takes them
//!   mounted   a mount beside gocryptfs and a mount without a cipher (bare); its phases: work
//! ```

mod bare;
mod crypto;
mod mounted;
mod work;

use std::fmt;

use serde::Serialize;
use underseal_ecryptfs::Result;

use crate::observer::Observer;
use crate::{Effort, Machine};

pub use bare::serve_bare_mount;
pub use crypto::CryptoRow;
pub use mounted::{MountBenchOptions, MountReport, ecryptfs_mount};

/// The results of a measurement.
#[derive(Debug, Clone, Serialize)]
pub struct EcryptfsReport {
    /// The machine.
    pub machine: Machine,
    /// The crypto alone: one thread, memory in cache.
    pub crypto: Vec<CryptoRow>,
}

/// Measures eCryptfs's crypto alone, and reports to the observer.
///
/// # Errors
/// When a cipher cannot be keyed.
pub fn ecryptfs(effort: Effort, observer: &mut impl Observer) -> Result<EcryptfsReport> {
    let mut report = EcryptfsReport { machine: Machine::this()?, crypto: Vec::new() };
    crypto::measure(effort, &mut report, observer)?;
    Ok(report)
}

impl fmt::Display for EcryptfsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let m = &self.machine;
        writeln!(f, "{}, {} processors; in use {}", m.cpu, m.processors, m.chosen)?;
        writeln!(f, "\ncrypto alone: one thread, the IVs' derivation included")?;
        let mut group = None;
        for row in &self.crypto {
            let title = (&row.cipher, row.direction, row.request);
            if group != Some(title) {
                group = Some(title);
                writeln!(f, "\n{}, {}, {} KiB", row.cipher, row.direction, row.request >> 10)?;
            }
            writeln!(
                f,
                "  {:30} {:8.2} GB/s {:6.1}% {:10.0} ns {:6.2}x",
                row.subject,
                row.sample.gb_per_s,
                row.sample.spread * 100.0,
                row.ns,
                row.over_serial
            )?;
        }
        Ok(())
    }
}
