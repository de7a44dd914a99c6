//! Where log lines go: stderr, a file, or syslog.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::error::{Error, Result};

/// Writes lines of `level` and above to stderr. Called once, first.
pub(crate) fn start(level: LevelFilter) {
    // Fails only when called twice.
    let _ = log::set_logger(&LOGGER);
    log::set_max_level(level);
}

/// Appends lines to a file from now on.
///
/// # Errors
/// `Failed` when it cannot be opened.
pub(crate) fn to_file(path: &Path) -> Result<()> {
    let file = File::options().append(true).create(true).mode(0o600).open(path);
    LOGGER.redirect(Sink::File(file.map_err(|e| Error::io(path, "cannot open the log file", e))?));
    Ok(())
}

/// Sends lines to syslog from now on. Without one they stay on stderr.
pub(crate) fn to_syslog() {
    let connected = UnixDatagram::unbound().and_then(|socket| {
        socket.connect("/dev/log")?;
        // A log that is stuck must not hold the server up.
        socket.set_nonblocking(true)?;
        Ok(socket)
    });
    match connected {
        Ok(socket) => LOGGER.redirect(Sink::Syslog(socket)),
        Err(e) => log::warn!("no syslog at /dev/log ({e}): messages are lost unless --log-file is given"),
    }
}

static LOGGER: Logger = Logger(Mutex::new(Sink::Stderr));

struct Logger(Mutex<Sink>);

enum Sink {
    Stderr,
    File(File),
    Syslog(UnixDatagram),
}

impl Logger {
    fn redirect(&self, sink: Sink) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = sink;
    }
}

impl Log for Logger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        // A file's name must not forge a line.
        let message = record.args().to_string().replace(|c: char| c.is_control(), "?");
        let timed = || {
            let time = humantime::format_rfc3339_millis(SystemTime::now());
            format!("{time} {:5} {message}\n", record.level())
        };
        // A line that cannot be written has nowhere else to go.
        let _ = match &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Sink::Stderr => std::io::stderr().lock().write_all(timed().as_bytes()),
            Sink::File(file) => file.write_all(timed().as_bytes()),
            Sink::Syslog(socket) => {
                let line =
                    format!("<{}>underseal[{}]: {message}", priority(record.level()), std::process::id());
                socket.send(line.as_bytes()).map(drop)
            }
        };
    }

    fn flush(&self) {}
}

/// RFC 3164's number: facility "daemon" (3) and the severity.
fn priority(level: Level) -> u8 {
    let severity = match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    };
    3 * 8 + severity
}
