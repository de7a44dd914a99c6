//! A passphrase typed on the terminal: never shown, and the terminal's settings are always
//! restored.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Instant;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use signal_hook::low_level::emulate_default_handler;
use underseal_cipher::Key;

use super::source::Growing;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::persona::persona;
use crate::signals::{self, Taken, Woken};

/// The most bytes of a passphrase that is typed. cryptsetup takes no more, and leaves the rest of a
/// longer one out.
const TYPED: usize = 512;

/// Asks for a passphrase, and reads it up to Enter. Fails with `Usage` without a terminal, with
/// `NoKey` at its end (Ctrl-D), with `Failed`.
pub(crate) fn ask(question: &str) -> Result<Key> {
    let terminal = open()?;
    loop {
        let quiet = Quiet::start(&terminal).map_err(failed)?;
        write(&terminal, question)?;
        match quiet.read_line()? {
            Typed::Line(secret) => return Ok(secret),
            Typed::Signal(signal) => {
                // The terminal must be restored before the signal ends or stops this process.
                drop(quiet);
                emulate_default_handler(signal).map_err(failed)?;
            }
        }
    }
}

/// Returns true when the process has a terminal.
pub(crate) fn is_there() -> bool {
    open().is_ok()
}

/// Asks before a change that cannot be undone; returns false without a terminal. Fails with
/// `Failed` when the terminal does.
pub(crate) fn confirm(question: &str) -> Result<bool> {
    if !io::stdin().is_terminal() {
        return Ok(false);
    }
    let terminal = open()?;
    write(&terminal, &persona().sure(question))?;
    let mut answer = String::new();
    BufReader::new(&terminal).read_line(&mut answer).map_err(failed)?;
    Ok(answer.trim() == "YES")
}

/// Prints a line on the terminal.
pub(crate) fn tell(line: &str) {
    // A failure is ignored: the next question implies the same.
    let _ = open().and_then(|terminal| write(&terminal, &format!("{line}\n")));
}

enum Typed {
    Line(Key),
    Signal(i32),
}

/// A terminal without echo, until this is dropped.
struct Quiet<'a> {
    terminal: &'a File,
    before: Termios,
    signals: Taken,
}

impl<'a> Quiet<'a> {
    fn start(terminal: &'a File) -> io::Result<Self> {
        let signals = signals::take(signals::ENDING.into_iter().chain([signals::STOPPING]))?;
        let before = tcgetattr(terminal)?;
        let mut quiet = before.clone();
        quiet.local_modes.remove(LocalModes::ECHO);
        // The newline is shown, so that further output begins on a new line.
        quiet.local_modes.insert(LocalModes::ECHONL | LocalModes::ICANON | LocalModes::ISIG);
        // Input typed before was shown, so it is dropped.
        tcsetattr(terminal, OptionalActions::Flush, &quiet)?;
        Ok(Self { terminal, before, signals })
    }

    fn read_line(&self) -> Result<Typed> {
        let mut secret = Growing::new(0)?;
        let until = persona().patience.map(|patience| Instant::now() + patience);
        while !secret.is_line() {
            match self.signals.wait_until(Some(self.terminal.as_fd()), until).map_err(failed)? {
                Woken::Signal(signal) => return Ok(Typed::Signal(signal)),
                Woken::TooLate => return Err(Error::usage("no passphrase was typed in time")),
                Woken::Readable => {}
            }
            match rustix::io::read(self.terminal, secret.room(Key::MAX)?) {
                Ok(0) => {
                    let error = Error::new(persona().nothing, "no passphrase was typed");
                    return Err(error.with_remedy("again, or --passphrase-file FILE"));
                }
                Ok(read) => secret.len += read,
                Err(Errno::INTR) => {}
                Err(e) => return Err(failed(e)),
            }
        }
        secret.len = (secret.len - 1).min(TYPED);
        Ok(Typed::Line(secret.into_key()))
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        // A terminal that has disappeared cannot be restored.
        let _ = tcsetattr(self.terminal, OptionalActions::Now, &self.before);
    }
}

fn open() -> Result<File> {
    #[expect(clippy::cast_possible_wrap, reason = "flags are bits")]
    let flags = OFlags::NOCTTY.bits() as i32;
    File::options().read(true).write(true).custom_flags(flags).open("/dev/tty").map_err(|e| {
        Error::usage("no terminal to ask for a passphrase on")
            .because(&e)
            .with_remedy("--passphrase-file FILE, --passphrase-fd 0 or --key-file FILE")
    })
}

fn write(mut terminal: &File, text: &str) -> Result<()> {
    terminal.write_all(text.as_bytes()).map_err(failed)
}

fn failed(e: impl Into<io::Error>) -> Error {
    Error::new(Exit::Failed, "the terminal").because(&e.into())
}
