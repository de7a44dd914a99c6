//! Reads a range of a volume to find sectors that differ from the data written. Each call reads for
//! about a second, so that the client can show progress, and can stop by sending no further
//! request.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use underseal_datapath::{Completion, Error, ErrorKind, Mapping, Queue, QueueOptions, Request};

use super::protocol::{Checked, Refusal, RefusalKind};
use super::volume::Answer;

/// Bytes of a request.
const CHUNK: u64 = 1 << 20;
/// Requests at a time.
const DEPTH: u32 = 4;
/// How long one answer may take, apart from requests that are in flight by then.
const MOMENT: Duration = Duration::from_secs(1);
/// The most runs that fit into one answer.
const MOST_RUNS: usize = 4096;

/// Checks the volume from byte `from` on, for about a second.
pub(super) fn check(
    mapping: &Arc<Mapping>,
    from: u64,
    refused: impl Fn(&Error) -> Refusal,
) -> Answer<Checked> {
    check_until(mapping, from, Instant::now() + MOMENT, refused)
}

/// Checks until `end`, but at least one chunk: answers without progress would never reach the
/// volume's end.
fn check_until(
    mapping: &Arc<Mapping>,
    from: u64,
    end: Instant,
    refused: impl Fn(&Error) -> Refusal,
) -> Answer<Checked> {
    let sector = u64::from(mapping.sector());
    let size = mapping.size();
    let max_request = usize::try_from(CHUNK).unwrap_or(1 << 20) * DEPTH as usize;
    let mut stretch = Stretch {
        queue: Queue::open(mapping.clone(), QueueOptions { depth: DEPTH, max_request })
            .map_err(|e| refused(&e))?,
        lost: Vec::new(),
        refused,
    };
    if from == 0 {
        mapping.forget();
    }
    // The count falls while the range is read, and never rises.
    let unverified = mapping.unverified();
    let mut at = from / sector * sector;
    while at < size && stretch.lost.len() < MOST_RUNS {
        let until = (at + u64::from(DEPTH) * CHUNK).min(size);
        stretch.chunks(at..until, sector)?;
        at = until;
        if Instant::now() >= end {
            break;
        }
    }
    let lost = stretch.lost.into_iter().map(|run| (run.start, run.end)).collect();
    Ok(Checked { to: at, size, lost, unverified })
}

struct Stretch<R> {
    queue: Queue,
    /// The ranges that could not be read, in order.
    lost: Vec<Range<u64>>,
    refused: R,
}

impl<R: Fn(&Error) -> Refusal> Stretch<R> {
    /// Reads several chunks at once, and rereads each chunk that failed sector by sector.
    fn chunks(&mut self, range: Range<u64>, sector: u64) -> Answer {
        let starts = || range.clone().step_by(usize::try_from(CHUNK).unwrap_or(1 << 20));
        let chunk = |start: u64| start..(start + CHUNK).min(range.end);
        for start in starts() {
            self.submit(chunk(start))?;
        }
        let mut bad = Vec::new();
        for _ in starts() {
            let (start, is_whole) = self.next()?;
            if !is_whole {
                bad.push(start);
            }
        }
        bad.sort_unstable();
        for chunk in bad.into_iter().map(chunk) {
            for start in chunk.clone().step_by(usize::try_from(sector).unwrap_or(1)) {
                let one = start..(start + sector).min(chunk.end);
                self.submit(one.clone())?;
                if !self.next()?.1 {
                    self.lose(one);
                }
            }
        }
        Ok(())
    }

    fn lose(&mut self, range: Range<u64>) {
        match self.lost.last_mut().filter(|run| run.end == range.start) {
            Some(run) => run.end = range.end,
            None => self.lost.push(range),
        }
    }

    fn submit(&mut self, range: Range<u64>) -> Answer {
        let len = usize::try_from(range.end - range.start).unwrap_or(0);
        let read = Request::Read { offset: range.start, len };
        let full = |_| Refusal::new(RefusalKind::Failed, "no memory left for requests", "");
        self.queue.submit(range.start, read).map_err(full)
    }

    /// Returns the start of the next completed read, and whether its data were intact.
    fn next(&mut self) -> Answer<(u64, bool)> {
        loop {
            if let Some(Completion { tag, result, buffer }) = self.queue.next_completion() {
                buffer.into_iter().for_each(|buffer| self.queue.free(buffer));
                return match result {
                    Ok(()) => Ok((tag, true)),
                    Err(e) if e.kind() == ErrorKind::Integrity => Ok((tag, false)),
                    Err(e) => Err((self.refused)(&e)),
                };
            }
            let failed =
                |e: std::io::Error| Refusal::new(RefusalKind::Failed, format!("cannot wait: {e}"), "");
            self.queue.wait().map_err(failed)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use underseal_device::RamDevice;
    use underseal_volume::{Segment, SegmentKind, Volume};

    use super::*;

    #[test]
    fn who_is_late_has_read_something_all_the_same() {
        let size = 3 * u64::from(DEPTH) * CHUNK;
        let zeros = Segment { start: 0, len: size, kind: SegmentKind::Zero };
        let volume = Volume::new(vec![zeros]).unwrap();
        let mapping = Arc::new(Mapping::new(volume, Arc::new(RamDevice::new(1 << 20))).unwrap());
        let (mut at, mut answers) = (0, 0);
        while at < size {
            let checked = check_until(&mapping, at, Instant::now(), |e| panic!("{e}")).unwrap();
            assert!(checked.to > at && checked.lost.is_empty(), "{checked:?}");
            (at, answers) = (checked.to, answers + 1);
        }
        assert_eq!(answers, 3);
    }
}
