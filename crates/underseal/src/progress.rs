//! The progress of a long copy: a bar on a terminal, a line every five seconds elsewhere.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use crate::size;

/// Shows progress on stderr until it is dropped.
pub(crate) struct Progress {
    shown: Shown,
    total: Option<u64>,
    done: u64,
}

enum Shown {
    Bar(Bar),
    Lines { verb: &'static str, next: Instant },
    Nothing,
}

/// Short work needs no lines, and long work only a few.
const BETWEEN_LINES: Duration = Duration::from_secs(5);

impl Progress {
    /// `verb` is the work: "reading"; `total` is in bytes, if known.
    pub(crate) fn new(verb: &'static str, total: Option<u64>, quiet: bool) -> Self {
        let shown = match (quiet, stderr().is_terminal()) {
            (true, _) => Shown::Nothing,
            (_, false) => Shown::Lines { verb, next: Instant::now() + BETWEEN_LINES },
            (_, true) => Shown::Bar(Bar::new(verb)),
        };
        Self { shown, total, done: 0 }
    }

    /// Writes lines where the bar is, and draws it again below them.
    pub(crate) fn around(&self, write: impl FnOnce()) {
        match &self.shown {
            Shown::Bar(bar) => {
                bar.erase();
                write();
                bar.draw(self.done, self.total);
            }
            Shown::Lines { .. } | Shown::Nothing => write(),
        }
    }

    /// Adds `bytes` to the progress.
    pub(crate) fn advance(&mut self, bytes: u64) {
        self.done += bytes;
        match &mut self.shown {
            Shown::Bar(bar) if Instant::now() >= bar.next => {
                bar.next = Instant::now() + BETWEEN_BARS;
                bar.draw(self.done, self.total);
            }
            Shown::Lines { verb, next } if Instant::now() >= *next => {
                *next = Instant::now() + BETWEEN_LINES;
                let of = self.total.map(|total| format!(" of {}", size::show(total))).unwrap_or_default();
                eprintln!("underseal: {verb}: {} MiB{of}", self.done >> 20);
            }
            Shown::Bar(_) | Shown::Lines { .. } | Shown::Nothing => {}
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.erase();
        }
    }
}

/// A line of a terminal that is drawn repeatedly.
struct Bar {
    verb: &'static str,
    start: Instant,
    /// The time of the next drawing.
    next: Instant,
}

/// Ten bars a second look like motion.
const BETWEEN_BARS: Duration = Duration::from_millis(100);
const WIDTH: usize = 40;

impl Bar {
    fn new(verb: &'static str) -> Self {
        Self { verb, start: Instant::now(), next: Instant::now() }
    }

    fn draw(&self, done: u64, total: Option<u64>) {
        let line = line(self.verb, done, total, self.start.elapsed());
        // No line break at the edge of a narrow terminal: the next bar would leave this one's
        // beginning behind. A closed terminal does not end the copy.
        let _ = write!(stderr(), "\r\x1b[?7l{line}\x1b[K\x1b[?7h");
    }

    fn erase(&self) {
        let _ = write!(stderr(), "\r\x1b[K");
    }
}

/// `reading [####----] 1.50 GiB/3.00 GiB 512.00 MiB/s 3 s`
fn line(verb: &str, done: u64, total: Option<u64>, elapsed: Duration) -> String {
    let nanos = elapsed.as_nanos().max(1);
    let speed = u64::try_from(u128::from(done) * 1_000_000_000 / nanos).unwrap_or(u64::MAX);
    let (done_text, speed_text) = (size::about(done), size::about(speed));
    let Some(total) = total else { return format!("{verb} {done_text} {speed_text}/s") };
    let share = |of: u128| u128::from(done.min(total)) * of / u128::from(total.max(1));
    let filled = usize::try_from(share(WIDTH as u128)).unwrap_or(WIDTH);
    let bar = "#".repeat(filled) + &"-".repeat(WIDTH - filled);
    let left = match total.saturating_sub(done).checked_div(speed) {
        Some(seconds) => format!(" {seconds} s"),
        None => String::new(),
    };
    format!("{verb} [{bar}] {done_text}/{} {speed_text}/s{left}", size::about(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_has_share_speed_and_time_left() {
        let bar = |filled: usize| "#".repeat(filled) + &"-".repeat(WIDTH - filled);
        let half = line("reading", 512 << 20, Some(1 << 30), Duration::from_secs(2));
        assert_eq!(half, format!("reading [{}] 512.00 MiB/1.00 GiB 256.00 MiB/s 2 s", bar(20)));
        let nothing = line("reading", 0, Some(0), Duration::ZERO);
        assert_eq!(nothing, format!("reading [{}] 0 B/0 B 0 B/s", bar(0)));
        let beyond = line("writing", 9, Some(3), Duration::from_secs(1));
        assert_eq!(beyond, format!("writing [{}] 9 B/3 B 9 B/s 0 s", bar(40)));
        assert_eq!(line("importing", 1 << 20, None, Duration::from_secs(1)), "importing 1.00 MiB 1.00 MiB/s");
    }
}
