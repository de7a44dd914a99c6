//! The terminal while `top` draws on it: alternate screen, raw input, one key at a time.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::panic;
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use super::canvas::Canvas;

/// The alternate screen, no cursor, no line wrap (xterm's control sequences, which every emulator
/// supports).
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
/// The normal screen as it was.
const LEAVE: &[u8] = b"\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";
/// How long the rest of an arrow key's sequence may take to follow its escape character.
const REST: Duration = Duration::from_millis(50);

/// The settings from before [`Terminal::start`], while they are not restored.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// A key that `top` knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    End,
    Up,
    Down,
}

/// A terminal in raw mode. Its settings are restored when this is dropped, and before a panic's
/// message is printed.
pub(super) struct Terminal {
    /// The codes on the screen, and the size that they were made for.
    shown: (String, (usize, usize)),
    /// Received bytes of keys that are not parsed yet.
    input: Vec<u8>,
}

impl Terminal {
    /// Sets up the terminal of standard input and output.
    pub(super) fn start() -> io::Result<Self> {
        static HOOK: Once = Once::new();
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        HOOK.call_once(|| {
            let next = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                restore();
                next(info);
            }));
        });
        let terminal = Self { shown: (String::new(), (0, 0)), input: Vec::new() };
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        put(ENTER)?;
        Ok(terminal)
    }

    /// Returns a canvas of the terminal's present size.
    pub(super) fn canvas(&self) -> io::Result<Canvas> {
        let size = tcgetwinsize(io::stdout())?;
        // A terminal that does not know its size reports 0.
        let or = |size: u16, usual: usize| if size == 0 { usual } else { size.into() };
        Ok(Canvas::new(or(size.ws_col, 80), or(size.ws_row, 24)))
    }

    /// Draws `canvas`, unless the screen shows it already.
    pub(super) fn show(&mut self, canvas: &Canvas) -> io::Result<()> {
        let next = (canvas.codes(), (canvas.width(), canvas.height()));
        if next.1 != self.shown.1 {
            put(b"\x1b[2J")?;
        }
        if next != self.shown {
            put(next.0.as_bytes())?;
            self.shown = next;
        }
        Ok(())
    }

    /// Returns the next known key; `None` when none arrived within `patience`.
    pub(super) fn key(&mut self, patience: Duration) -> io::Result<Option<Key>> {
        if self.input.is_empty() {
            self.receive(patience)?;
        }
        if self.input.first() == Some(&0x1b) && self.input.len() < 3 {
            self.receive(REST)?;
        }
        while !self.input.is_empty() {
            let (key, length) = parse(&self.input);
            self.input.drain(..length);
            if key.is_some() {
                return Ok(key);
            }
        }
        Ok(None)
    }

    /// Receives input that arrives within `patience`.
    fn receive(&mut self, patience: Duration) -> io::Result<()> {
        let stdin = io::stdin();
        let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
        let mut ready = [PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN)];
        match poll(&mut ready, Some(&patience)) {
            Ok(0) | Err(Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(e) => return Err(e.into()),
        }
        let mut bytes = [0; 64];
        match rustix::io::read(stdin.as_fd(), &mut bytes) {
            // The terminal is gone: this counts as the key that ends the program.
            Ok(0) => self.input.push(b'q'),
            Ok(length) => self.input.extend(&bytes[..length]),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(e) => return Err(e.into()),
        }
        Ok(())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal's settings and its normal screen, once.
fn restore() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = before {
        // A terminal that is gone needs no restore.
        let _ = put(LEAVE);
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &before);
    }
}

fn put(codes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(codes)?;
    out.flush()
}

/// Parses the key at the head of `input`, which is not empty, and returns its length in bytes.
fn parse(input: &[u8]) -> (Option<Key>, usize) {
    match input {
        // Arrow keys, in the terminal's normal and application mode.
        [0x1b, b'[' | b'O', b'A', ..] => (Some(Key::Up), 3),
        [0x1b, b'[' | b'O', b'B', ..] => (Some(Key::Down), 3),
        // The sequence of any other key ends with an alphabetic character or a tilde.
        [0x1b, b'[' | b'O', rest @ ..] => {
            let end = rest.iter().position(|byte| (0x40..=0x7e).contains(byte));
            (None, end.map_or(input.len(), |end| end + 3))
        }
        [0x1b] | [0x1b, 0x1b, ..] | [b'q' | 0x03, ..] => (Some(Key::End), 1),
        // Alt and a key.
        [0x1b, ..] => (None, 2),
        [b'k', ..] => (Some(Key::Up), 1),
        [b'j', ..] => (Some(Key::Down), 1),
        _ => (None, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_from_the_sequences_of_others() {
        let cases: [(&[u8], Option<Key>, usize); 12] = [
            (b"q", Some(Key::End), 1),
            (b"\x03", Some(Key::End), 1),
            (b"\x1b", Some(Key::End), 1),
            (b"\x1b[A", Some(Key::Up), 3),
            (b"\x1bOBq", Some(Key::Down), 3),
            (b"j", Some(Key::Down), 1),
            (b"k", Some(Key::Up), 1),
            (b"x", None, 1),
            (b"\x1b[5~q", None, 4),
            (b"\x1b[1;5Cq", None, 6),
            (b"\x1b[", None, 2),
            (b"\x1bx", None, 2),
        ];
        for (input, key, length) in cases {
            assert_eq!(parse(input), (key, length), "{input:?}");
        }
    }
}
