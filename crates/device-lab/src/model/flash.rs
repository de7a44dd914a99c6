//! Flash: parallel commands, and an interface that they share.

use super::profile::Flash;
use super::{DiskCounters, nanos, transfer};
use underseal_device::IoKind;

/// The state of a flash drive at a time. A command's end is known when it begins.
pub(super) struct FlashState {
    flash: Flash,
    /// The end of each of the parallel commands.
    units: Vec<u64>,
    /// The end of the interface's work.
    interface: u64,
    last_write: u64,
}

impl FlashState {
    pub(super) fn new(flash: Flash) -> Self {
        Self {
            flash,
            units: vec![0; flash.queue_depth.clamp(1, 1 << 16) as usize],
            interface: 0,
            last_write: 0,
        }
    }

    /// Returns the end of a command that arrives at `now`.
    pub(super) fn serve(&mut self, now: u64, kind: IoKind, len: u64, counters: &mut DiskCounters) -> u64 {
        let Flash { read_latency, write_latency, flush_latency, read_rate, write_rate, .. } = self.flash;
        let (latency, bytes) = match kind {
            IoKind::Flush => return now.max(self.last_write).saturating_add(nanos(flush_latency)),
            IoKind::Read => (read_latency, transfer(len, read_rate)),
            IoKind::Write => (write_latency, transfer(len, write_rate)),
            IoKind::Discard | IoKind::Zero | IoKind::Prefetch => (write_latency, 0),
        };
        let cost = nanos(self.flash.per_command).saturating_add(bytes);
        let Some(unit) = self.units.iter_mut().min() else { return now };
        let begin = now.max(*unit);
        // The interface works in the order of the commands, but no command waits for another's
        // latency.
        self.interface = self.interface.max(begin).saturating_add(cost);
        let end = begin.saturating_add(nanos(latency)).saturating_add(cost).max(self.interface);
        *unit = end;
        if kind.changes() {
            self.last_write = self.last_write.max(end);
        }
        counters.busy += std::time::Duration::from_nanos(cost);
        end
    }
}
