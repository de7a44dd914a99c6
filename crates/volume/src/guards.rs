//! Ranges of a volume that no request may change: a hidden volume inside of an outer one, places
//! that a format keeps as they are. The data path and the library's images decide by this alone.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// A range of a volume that must not be written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    /// The bytes of the volume.
    pub range: Range<u64>,
    /// The consequence of a write to the range.
    pub rule: GuardRule,
}

/// The consequence of a write, discard or request for zeros that touches a guarded range. The
/// request fails before any byte is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardRule {
    /// The request fails.
    Refuse,
    /// The request fails, and so does every later one that would change the volume, until it is
    /// opened again.
    RefuseAll,
}

/// All guarded ranges of an open volume. Threads share it.
#[derive(Debug, Default)]
pub struct Guards {
    guards: Vec<Guard>,
    /// A request was refused that ended all writing.
    ended: AtomicBool,
}

impl Guards {
    /// Guards another range.
    pub fn add(&mut self, guard: Guard) {
        self.guards.push(guard);
    }

    /// Refuses a request that changes the bytes `touched` of a volume with sectors of `sector`
    /// bytes: sectors are changed as a whole. An empty request changes nothing.
    ///
    /// # Errors
    /// The first guard's that the request meets; one that ends all writing comes before others.
    #[inline]
    pub fn check(&self, touched: Range<u64>, sector: u64) -> Result<(), GuardRefusal> {
        if self.guards.is_empty() || touched.is_empty() {
            return Ok(());
        }
        let end = touched.end.checked_next_multiple_of(sector).unwrap_or(u64::MAX);
        self.check_sectors(touched.start / sector * sector..end)
    }

    fn check_sectors(&self, touched: Range<u64>) -> Result<(), GuardRefusal> {
        let refused = |cause| Err(GuardRefusal { touched: touched.clone(), cause });
        if self.ended.load(Ordering::SeqCst) {
            return refused(Cause::Ended);
        }
        let is_hit = |guard: &&Guard| touched.start < guard.range.end && guard.range.start < touched.end;
        let mut hits = self.guards.iter().filter(is_hit).map(|guard| guard.rule).peekable();
        if hits.peek().is_none() {
            return Ok(());
        }
        // A guard that ends all writing must not be missed behind another one.
        if hits.all(|rule| rule == GuardRule::Refuse) {
            return refused(Cause::Format);
        }
        refused(Cause::Hidden { is_first: !self.ended.swap(true, Ordering::SeqCst) })
    }
}

/// A request that would have changed a guarded range. Its text has the sectors and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardRefusal {
    touched: Range<u64>,
    cause: Cause,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Format,
    Hidden { is_first: bool },
    Ended,
}

impl GuardRefusal {
    /// Whether this request has ended all writing.
    pub fn ends_writing(&self) -> bool {
        self.cause == Cause::Hidden { is_first: true }
    }
}

impl fmt::Display for GuardRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { touched: Range { start, end }, cause } = self;
        let why = match cause {
            Cause::Format => "the range is kept as it is by the volume's format",
            Cause::Hidden { .. } => "the write would damage the protected hidden volume",
            Cause::Ended => {
                "a write to a protected range was refused before: nothing is written until the volume is opened again"
            }
        };
        write!(f, "bytes {start} to {end}: {why}")
    }
}

impl std::error::Error for GuardRefusal {}

#[cfg(test)]
mod tests {
    use super::*;

    fn guards(of: &[(Range<u64>, GuardRule)]) -> Guards {
        let mut guards = Guards::default();
        of.iter().for_each(|(range, rule)| guards.add(Guard { range: range.clone(), rule: *rule }));
        guards
    }

    #[test]
    fn sectors_that_a_request_covers_in_part_count_as_a_whole() {
        let guards = guards(&[(4096..8192, GuardRule::Refuse)]);
        let refused = |range| guards.check(range, 4096).is_err();
        assert!(!refused(0..4096) && !refused(8192..9000) && !refused(5000..5000));
        assert!(refused(0..4097) && refused(8191..8192) && refused(0..u64::MAX) && refused(5000..5001));
        // A guard that ends within a sector guards all of the sector.
        let guards = self::guards(&[(4096..4100, GuardRule::Refuse)]);
        assert!(guards.check(8000..8001, 4096).is_err() && guards.check(4608..8192, 512).is_ok());
    }

    #[test]
    fn a_write_to_a_hidden_volume_ends_all_writing_also_behind_another_guard() {
        let guards = guards(&[(0..512, GuardRule::Refuse), (512..1024, GuardRule::RefuseAll)]);
        assert!(!guards.check(0..512, 512).unwrap_err().ends_writing());
        guards.check(2048..4096, 512).unwrap();
        assert!(guards.check(0..1024, 512).unwrap_err().ends_writing());
        assert!(!guards.check(2048..4096, 512).unwrap_err().ends_writing());
    }
}
