//! cryptsetup's exit statuses (its manual page, RETURN CODES).

use std::io::Write;
use std::process::ExitCode;

use underseal_formats::ErrorKind as FormatError;
use underseal_volume::ErrorKind;

use crate::error::Error;
use crate::exit::Exit;
use crate::output::{print, printable};
use crate::persona::persona;

/// The result of an action.
pub(super) type Result<T> = std::result::Result<T, Failure>;

/// cryptsetup's statuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Status {
    /// Wrong parameters; also every error without a status of its own.
    Wrong = 1,
    /// A passphrase that opens no keyslot, or a missing permission.
    NoPermission = 2,
    /// Not enough memory.
    NoMemory = 3,
    /// The device does not exist, or cannot be used.
    NoDevice = 4,
    /// The device exists already, or is in use.
    Busy = 5,
}

impl Status {
    fn meaning(self) -> &'static str {
        match self {
            Self::Wrong => "wrong or missing parameters",
            Self::NoPermission => "no permission or bad passphrase",
            Self::NoMemory => "out of memory",
            Self::NoDevice => "wrong device or file specified",
            Self::Busy => "device already exists or device is busy",
        }
    }
}

/// The failure of an action: the status, and a line about it if needed.
#[derive(Debug)]
pub(super) struct Failure {
    status: Status,
    line: Option<String>,
    /// True when another process has printed the message.
    told: bool,
}

impl Failure {
    pub(super) fn new(status: Status, line: impl Into<String>) -> Self {
        Self { status, line: Some(line.into()), told: false }
    }

    /// A failure without a message.
    pub(super) fn quiet(status: Status) -> Self {
        Self { status, line: None, told: false }
    }

    /// The failure of a process that did the work: its status; it has printed the message.
    pub(super) fn told(code: Option<i32>) -> Self {
        let all = [Status::Wrong, Status::NoPermission, Status::NoMemory, Status::NoDevice, Status::Busy];
        let status = all.into_iter().find(|status| Some(*status as i32) == code).unwrap_or(Status::Wrong);
        Self { status, line: None, told: true }
    }

    pub(super) fn wrong(line: &str) -> Self {
        Self::new(Status::Wrong, line)
    }

    /// The failure of an action that cryptsetup supports, and this program does not.
    pub(super) fn unsupported(line: &str) -> Self {
        Self::new(Status::Wrong, format!("{line} by underseal; the real cryptsetup does it"))
    }

    /// Prints the failure, and returns the exit status.
    pub(super) fn report(&self, verbose: bool) -> ExitCode {
        // With stderr gone there is nobody to tell.
        if let Some(line) = &self.line {
            let _ = writeln!(std::io::stderr(), "{}", printable(line));
        }
        if verbose && !self.told {
            let (status, meaning) = (self.status as u8, self.status.meaning());
            // cryptsetup prints this line on stdout.
            let _ = print(&format!("Command failed with code -{status} ({meaning}).\n"));
        }
        ExitCode::from(self.status as u8)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (of_volume, of_format) = (error.of_volume(), error.of_format());
        let status = match (error.exit(), of_volume) {
            (_, Some(ErrorKind::Memory)) => Status::NoMemory,
            _ if of_format == Some(FormatError::Memory) => Status::NoMemory,
            (_, Some(ErrorKind::NoKeyslot)) => Status::Wrong,
            (Exit::NoKey, _) => Status::NoPermission,
            (Exit::InUse, _) => Status::Busy,
            _ => Status::Wrong,
        };
        let wrong =
            of_volume == Some(ErrorKind::WrongPassphrase) || of_format == Some(FormatError::WrongPassphrase);
        let line = if wrong { persona().wrong.to_owned() } else { error.what() };
        Self::new(status, line)
    }
}
