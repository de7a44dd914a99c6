//! How far a long copy is: a bar on a terminal, a line now and then elsewhere.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::size;

/// Shows progress on stderr until it is dropped.
pub(crate) struct Progress {
    shown: Shown,
    total: Option<u64>,
    done: u64,
}

enum Shown {
    Bar(ProgressBar),
    Lines { verb: &'static str, next: Instant },
    Nothing,
}

/// Short work needs no words, and long work not many.
const BETWEEN_LINES: Duration = Duration::from_secs(5);

impl Progress {
    /// `verb` is what is being done: "reading"; `total` in bytes, where it is known.
    pub(crate) fn new(verb: &'static str, total: Option<u64>, quiet: bool) -> Self {
        let shown = match (quiet, stderr().is_terminal()) {
            (true, _) => Shown::Nothing,
            (_, false) => Shown::Lines { verb, next: Instant::now() + BETWEEN_LINES },
            (_, true) => {
                let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr_with_hz(10));
                let style = match total {
                    Some(_) => {
                        "{msg} [{bar:40}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}"
                    }
                    None => "{msg} {spinner} {binary_bytes} {binary_bytes_per_sec}",
                };
                // A style that does not parse would show as the library's own; it is a constant that does.
                let style =
                    ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
                Shown::Bar(bar.with_style(style).with_message(verb))
            }
        };
        Self { shown, total, done: 0 }
    }

    /// Writes lines where the bar is, and draws it again below them.
    pub(crate) fn around(&self, write: impl FnOnce()) {
        match &self.shown {
            Shown::Bar(bar) => bar.suspend(write),
            Shown::Lines { .. } | Shown::Nothing => write(),
        }
    }

    /// So many more bytes are done.
    pub(crate) fn advance(&mut self, bytes: u64) {
        self.done += bytes;
        match &mut self.shown {
            Shown::Bar(bar) => bar.inc(bytes),
            Shown::Lines { verb, next } if Instant::now() >= *next => {
                *next = Instant::now() + BETWEEN_LINES;
                let of = self.total.map(|total| format!(" of {}", size::show(total))).unwrap_or_default();
                eprintln!("underseal: {verb}: {} MiB{of}", self.done >> 20);
            }
            Shown::Lines { .. } | Shown::Nothing => {}
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}
