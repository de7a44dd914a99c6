//! A volume that is served while it is reencrypted: the [`Foreground`] of an open volume.
//!
//! ```text
//!   reencryption --claim--> ServedVolume --claim--> RangeMover  requests keep out of that range
//!        |                    |
//!        +-----relay----------+--> the served volume, with the new layout of that range
//!        +-----pace-----------+--> Pace: rests, pauses, stops
//! ```

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use underseal_cipher::SectorSize;
use underseal_volume::reencrypt::{self, Claim, Foreground};
use underseal_volume::{self as volume, Segment, SegmentKind, Volume};

use crate::{Error, ErrorKind, Mapping, Pace, RangeGuard, RangeMover, Result, splice};

/// The time limit for requests in the range. After it the mover tries again, behind the requests
/// that waited meanwhile.
const TRY: Duration = Duration::from_secs(10);

/// An open volume and its clients, as the reencryption uses them. It has the volume's
/// [`RangeMover`], so a thread that has a queue must not use it.
pub struct ServedVolume {
    mapping: Arc<Mapping>,
    mover: RangeMover,
    pace: Arc<Pace>,
    /// The longest next step, in bytes.
    longest: AtomicU64,
}

impl ServedVolume {
    /// Becomes the mover of a volume that has or will have sectors of this size.
    ///
    /// # Errors
    /// `Unsupported` when clients rely on blocks smaller than these sectors; else as
    /// [`RangeMover::new`].
    pub fn new(mapping: Arc<Mapping>, sectors: SectorSize, pace: Arc<Pace>, limit: Duration) -> Result<Self> {
        let (sector, known) = (sectors.bytes(), mapping.sector());
        if sector > known as usize {
            let context =
                format!("sectors of {sector} bytes in place of {known}: clients rely on the smaller size");
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        let mover = RangeMover::new(mapping.clone(), limit)?;
        Ok(Self { mapping, mover, pace, longest: AtomicU64::new(u64::MAX) })
    }
}

impl ServedVolume {
    /// True when ranges of the volume are lost: its layout has error segments.
    pub fn miss_some(&self) -> bool {
        let is_missing = |segment: &Segment| matches!(segment.kind, SegmentKind::Error);
        self.mapping.volume().is_some_and(|volume| volume.segments().iter().any(is_missing))
    }
}

impl Foreground for ServedVolume {
    /// Waits while the volume is suspended, and while requests in the range are in flight, until
    /// the pace is stopped.
    fn claim(&self, range: Range<u64>) -> volume::Result<Box<dyn Claim + '_>> {
        loop {
            match self.mover.claim(range.clone(), TRY) {
                Ok(exclusive) => return Ok(Box::new(ServedRange { users: self, exclusive })),
                Err(e) if e.kind() == ErrorKind::Busy && !self.pace.is_stopped() => {
                    log::debug!("reencryption: bytes {} to {}: {e}", range.start, range.end);
                }
                Err(e) if e.kind() == ErrorKind::Busy => {
                    return Err(volume::Error::new(volume::ErrorKind::Busy, "stopped").with_source(e));
                }
                Err(e) => {
                    let what = "the range cannot be locked";
                    return Err(volume::Error::new(volume::ErrorKind::BadLayout, what).with_source(e));
                }
            }
        }
    }

    /// A suspension waits for the range that is held, and lets the mover hold no other.
    fn claims_ahead(&self) -> bool {
        false
    }

    fn waits_for_lock(&self) {
        log::warn!("reencryption: another program holds the header's lock: waiting for it");
    }

    fn is_stopped(&self) -> bool {
        self.pace.is_stopped()
    }

    fn longest(&self) -> u64 {
        self.longest.load(Ordering::Relaxed)
    }

    fn pace(&self, done: u64, left: u64) -> reencrypt::Pace {
        match self.pace.next(done, left, || self.mapping.stats().stages.total) {
            Some(most) => {
                self.longest.store(most, Ordering::Relaxed);
                reencrypt::Pace::Go
            }
            None => reencrypt::Pace::Stop,
        }
    }
}

/// A range that the mover holds.
struct ServedRange<'u> {
    users: &'u ServedVolume,
    exclusive: RangeGuard<'u>,
}

impl ServedRange<'_> {
    /// Replaces the range's layout with that of the volume from `made`; the rest is unchanged.
    fn put(&self, made: impl FnOnce(&Volume, Range<u64>) -> volume::Result<Volume>) -> volume::Result<()> {
        let failed = |e: Error| {
            volume::Error::new(volume::ErrorKind::BadLayout, "the volume cannot be served in this layout")
                .with_source(e)
        };
        let now = self.users.mapping.volume().ok_or_else(|| failed(crate::control::no_key()))?;
        let next = made(&now, self.exclusive.range())?;
        drop(now);
        self.exclusive.relay(next).map_err(failed)
    }
}

impl Drop for ServedRange<'_> {
    /// A panic amid a step leaves unknown contents in the range.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.give_up();
        }
    }
}

impl Claim for ServedRange<'_> {
    fn relay(&self, volume: Volume) -> volume::Result<()> {
        let relaid = self.put(|now, range| splice::splice(now, &volume, range));
        // The old layout is not valid any more.
        relaid.inspect_err(|_| self.give_up())
    }

    fn give_up(&self) {
        let nothing = |Range { start, end }: Range<u64>| {
            let gap = (start > 0).then_some(Segment { start: 0, len: start, kind: SegmentKind::Error });
            let range = Segment { start, len: end - start, kind: SegmentKind::Error };
            Volume::new(gap.into_iter().chain([range]).collect())
        };
        let range = self.exclusive.range();
        log::error!(
            "bytes {} to {} of the volume cannot be used until the reencryption is resumed",
            range.start,
            range.end
        );
        if let Err(e) = self.put(|now, range| splice::splice(now, &nothing(range.clone())?, range)) {
            log::error!("cannot block access to the range: {e}");
        }
    }
}
