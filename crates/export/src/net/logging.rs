//! Protection of the log against hostile clients: escaping and rate limits.

use std::{
    fmt::{self, Write as _},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Bytes from the network, quoted, escaped and shortened, so that they cannot break a log line.
pub(crate) struct Printable<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(SHOWN)];
        f.write_char('"')?;
        for chunk in shown.utf8_chunks() {
            write!(f, "{}", chunk.valid().escape_debug())?;
            write!(f, "{}", chunk.invalid().escape_ascii())?;
        }
        f.write_char('"')?;
        if shown.len() < self.0.len() { write!(f, "... ({} bytes)", self.0.len()) } else { Ok(()) }
    }
}

/// Permits a few lines in a period and counts the rest.
#[derive(Debug, Default)]
pub(crate) struct RateLimit(Mutex<Window>);

#[derive(Debug, Default)]
struct Window {
    began: Option<Instant>,
    passed: u32,
    held_back: u64,
}

impl RateLimit {
    /// Returns `Some(lines held back since the last one)` if a line may be written now.
    pub(crate) fn pass(&self) -> Option<HeldBack> {
        self.pass_at(Instant::now())
    }

    fn pass_at(&self, now: Instant) -> Option<HeldBack> {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let over = window.began.is_none_or(|began| now.saturating_duration_since(began) >= WINDOW);
        if over {
            window.began = Some(now);
            window.passed = 0;
        }
        if window.passed == LINES {
            window.held_back += 1;
            return None;
        }
        window.passed += 1;
        Some(HeldBack(std::mem::take(&mut window.held_back)))
    }
}

/// The number of lines of this kind that were not written; prints nothing where it is 0.
pub(crate) struct HeldBack(u64);

impl fmt::Display for HeldBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(f, " (and {} more like this)", self.0) }
    }
}

const SHOWN: usize = 80;
const LINES: u32 = 10;
const WINDOW: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_from_the_network_cannot_leave_their_quotes() {
        let table: [(&[u8], &str); 5] = [
            (b"disk", "\"disk\""),
            (b"a\"\n2026 ERROR forged", "\"a\\\"\\n2026 ERROR forged\""),
            (b"\x1b[2J", "\"\\u{1b}[2J\""),
            (b"\xff\xfe", "\"\\xff\\xfe\""),
            ("\u{202e}".as_bytes(), "\"\\u{202e}\""),
        ];
        for (bytes, shown) in table {
            assert_eq!(Printable(bytes).to_string(), shown);
        }
        let long = Printable(&[b'x'; 4096]).to_string();
        assert!(long.len() < 120 && long.ends_with("... (4096 bytes)"), "{long}");
    }

    #[test]
    fn flood_of_lines_is_counted_not_written() {
        let (limit, start) = (RateLimit::default(), Instant::now());
        let passed = (0..1000).filter(|_| limit.pass_at(start).is_some()).count();
        assert_eq!(passed, LINES as usize);
        let later = limit.pass_at(start + WINDOW).unwrap();
        assert_eq!(later.to_string(), " (and 990 more like this)");
        assert_eq!(limit.pass_at(start + WINDOW).unwrap().to_string(), "");
    }
}
