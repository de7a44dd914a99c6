//! The destination of log lines: stderr, a file, or syslog.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use log::{Level, LevelFilter, Log, Metadata, Record};
use rustix::fs::{OFlags, fcntl_getfl};

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::printable;

/// Writes lines of `level` and above to stderr. Called once, first.
pub(crate) fn start(level: LevelFilter) {
    // This fails only when called twice.
    let _ = log::set_logger(&LOGGER);
    log::set_max_level(level);
}

/// Appends lines to a file from now on. Fails with `Failed` when it cannot be opened.
pub(crate) fn to_file(path: &Path) -> Result<()> {
    let failed = |e| Error::io(path, "cannot open the log file", e);
    // The path is made absolute: the process may have another working directory at a later
    // reopening.
    let path = std::path::absolute(path).map_err(failed)?;
    let file = underseal_sandbox::append(&path).map_err(failed)?;
    LOGGER.redirect(Sink::File { path, file });
    Ok(())
}

/// Continues with the log file that a sandboxed old server has open. Fails with `Failed` when
/// `path` does not lead to that file, or when the old server can do more with the file than append
/// to it.
pub(crate) fn go_on_with(path: &Path, file: Option<File>) -> Result<()> {
    let failed = |e| Error::io(path, "cannot open the log file", e);
    let path = std::path::absolute(path).map_err(failed)?;
    let appends = |file: &File| {
        let flags = fcntl_getfl(file).map(|flags| flags & (OFlags::APPEND | OFlags::ACCMODE));
        flags == Ok(OFlags::APPEND | OFlags::WRONLY)
    };
    let about = |file: &File| file.metadata().ok().filter(std::fs::Metadata::is_file);
    let is_there = |file: &File| {
        let there = std::fs::metadata(&path).ok();
        about(file).zip(there).is_some_and(|(a, b)| (a.dev(), a.ino()) == (b.dev(), b.ino()))
    };
    let Some(file) = file.filter(|file| appends(file) && is_there(file)) else {
        let what = format!("{}: is not the log file that the server has open", path.display());
        let remedy =
            "send the server a SIGHUP, so that it opens that file; or close the volume, and open it again";
        return Err(Error::new(Exit::Failed, what).with_remedy(remedy));
    };
    LOGGER.redirect(Sink::File { path, file });
    Ok(())
}

/// Returns the log file as it is open now, if lines go to a file.
pub(crate) fn open_file() -> Option<OwnedFd> {
    match &*LOGGER.lock() {
        Sink::File { file, .. } => file.try_clone().ok().map(OwnedFd::from),
        Sink::Stderr | Sink::Syslog(_) => None,
    }
}

/// Lists the log file, which is open, with the sandbox's helper, for a later [`reopen`].
pub(crate) fn will_reopen() {
    let log = match &*LOGGER.lock() {
        Sink::File { path, file } => file.try_clone().ok().map(|file| (path.clone(), file)),
        Sink::Stderr | Sink::Syslog(_) => None,
    };
    // The logger is free: a file that is not listed is warned of.
    if let Some((path, file)) = log {
        underseal_sandbox::will_open_log(&path, file);
    }
}

/// Sends lines to syslog from now on.
pub(crate) fn to_syslog() {
    let mut syslog = Syslog { connect: || Ok(underseal_sandbox::connect_to_syslog()?.into()), socket: None };
    if let Err(e) = syslog.connect() {
        log::warn!(
            "no syslog at /dev/log ({e}): messages are lost until there is one; --log-file needs none"
        );
    }
    LOGGER.redirect(Sink::Syslog(syslog));
}

/// Opens the log file by its name again, after a rename. If that fails, lines are written to the
/// open file as before.
pub(crate) fn reopen() {
    let path = match &*LOGGER.lock() {
        Sink::File { path, .. } => path.clone(),
        Sink::Stderr | Sink::Syslog(_) => return,
    };
    match underseal_sandbox::open_log(&path) {
        Ok(file) => {
            LOGGER.redirect(Sink::File { path, file });
            log::info!("the log file is opened again");
        }
        Err(e) => log::error!("{}: the log file cannot be opened again: {e}", path.display()),
    }
}

static LOGGER: Logger = Logger(Mutex::new(Sink::Stderr));

struct Logger(Mutex<Sink>);

enum Sink {
    Stderr,
    File { path: PathBuf, file: File },
    Syslog(Syslog),
}

impl Logger {
    fn lock(&self) -> MutexGuard<'_, Sink> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn redirect(&self, sink: Sink) {
        *self.lock() = sink;
    }
}

/// The system's log. It may end and come back under the same name.
struct Syslog {
    /// Returns a connected socket that never waits: a log that hangs must not delay the server.
    connect: fn() -> io::Result<UnixDatagram>,
    socket: Option<UnixDatagram>,
}

impl Syslog {
    fn connect(&mut self) -> io::Result<&UnixDatagram> {
        self.socket = None;
        Ok(self.socket.insert((self.connect)()?))
    }

    fn send(&mut self, line: &[u8]) -> io::Result<()> {
        match self.socket.as_ref().map(|socket| socket.send(line)) {
            Some(Ok(_)) => Ok(()),
            Some(Err(e)) if e.kind() == io::ErrorKind::WouldBlock => Err(e),
            // The log daemon was restarted, or has just started.
            _ => self.connect()?.send(line).map(drop),
        }
    }
}

impl Log for Logger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        // A file's name must not forge a line.
        let message = printable(&record.args().to_string());
        let timed = || {
            let time = humantime::format_rfc3339_millis(SystemTime::now());
            format!("{time} {:5} {message}\n", record.level())
        };
        // A line that cannot be written is lost.
        let _ = match &mut *self.lock() {
            Sink::Stderr => io::stderr().lock().write_all(timed().as_bytes()),
            Sink::File { file, .. } => file.write_all(timed().as_bytes()),
            Sink::Syslog(syslog) => {
                let line =
                    format!("<{}>underseal[{}]: {message}", priority(record.level()), std::process::id());
                syslog.send(line.as_bytes())
            }
        };
    }

    fn flush(&self) {}
}

/// Returns RFC 3164's number: facility "daemon" (3) and the severity.
fn priority(level: Level) -> u8 {
    let severity = match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    };
    3 * 8 + severity
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use super::*;

    #[test]
    fn a_syslog_that_comes_back_is_told_again() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("log");
        static PATH: OnceLock<PathBuf> = OnceLock::new();
        PATH.set(path.clone()).unwrap();
        let connect = || {
            let socket = UnixDatagram::unbound()?;
            socket.connect(PATH.get().unwrap())?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let mut syslog = Syslog { connect, socket: None };
        assert!(syslog.send(b"before").is_err());
        for line in [&b"first"[..], b"second"] {
            let listener = UnixDatagram::bind(&path).unwrap();
            for _ in 0..2 {
                syslog.send(line).unwrap();
                let mut heard = [0; 16];
                let len = listener.recv(&mut heard).unwrap();
                assert_eq!(&heard[..len], line);
            }
            drop(listener);
            std::fs::remove_file(&path).unwrap();
            assert!(syslog.send(b"between").is_err());
        }
    }
}
