//! Work that is done apart, and its outcome: messages between the back end and a process that may
//! hang.

use std::fmt;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use underseal_device::{FileId, LoopFile};
use underseal_dm::{DeviceNumber, Error, LoopStep, LoopWork, Result};

use super::lower;

/// Work that may hang.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::dm) enum HelperWork {
    /// A step over a loop device.
    Loop(LoopWork),
    /// Find out the number of the block device that a path leads to.
    Find { path: PathBuf },
    /// Open a lower device for itself, and the file that it lies on.
    Open { number: DeviceNumber, read_only: bool },
    /// Lock the file that comes along, on which a device lies.
    Lock { number: DeviceNumber, exclusive: bool },
    /// Say which file the loop device that comes along lies on.
    Below { number: DeviceNumber },
    /// Close the device that comes along.
    Close { number: DeviceNumber },
}

/// The outcome of work.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::dm) enum HelperOutcome {
    Done {
        yes: bool,
    },
    Found {
        number: Option<DeviceNumber>,
    },
    /// The device comes along, and after it the file that it lies on.
    Opened {
        read_only: bool,
        file: Option<(FileId, bool)>,
        beneath: Vec<DeviceNumber>,
    },
    Below {
        file: Option<FileId>,
        beneath: Vec<DeviceNumber>,
    },
    Refused {
        errno: i32,
        why: String,
    },
}

impl HelperWork {
    /// The name of the device or path that hangs if this does. Work on it is refused meanwhile.
    pub(super) fn subject(&self) -> String {
        match self {
            Self::Loop(work) if work.step() == LoopStep::Look => {
                format!("{} under a look", work.subject())
            }
            Self::Loop(work) => work.subject(),
            Self::Find { path } => format!("the path {}", path.display()),
            Self::Open { number, .. } => format!("lower device {number}"),
            Self::Lock { number, .. } => format!("the file of lower device {number}"),
            Self::Below { number } => format!("lower device {number}, looked at"),
            Self::Close { number } => format!("lower device {number}, closed"),
        }
    }

    /// The work that takes this one back.
    pub(super) fn undoing(&self) -> Option<Self> {
        match self {
            Self::Loop(work) => work.undoing().map(Self::Loop),
            _ => None,
        }
    }

    /// Does it, however long it takes.
    pub(super) fn run(&self, mut fds: Vec<OwnedFd>) -> (HelperOutcome, Vec<OwnedFd>) {
        let mut file =
            || fds.pop().map(File::from).ok_or_else(|| Error::new(Errno::INVAL, "no descriptor came along"));
        let done = match self {
            Self::Loop(work) => work.run().map(|yes| (HelperOutcome::Done { yes }, Vec::new())),
            Self::Find { path } => Ok((HelperOutcome::Found { number: lower::number_of(path) }, Vec::new())),
            Self::Open { number, read_only } => lower::open(*number, *read_only),
            Self::Lock { number, exclusive } => file()
                .and_then(|file| lower::lock(*number, &file, *exclusive))
                .map(|()| HelperOutcome::done()),
            Self::Below { number } => file().map(|node| {
                let file = LoopFile::of(&node).map(|below| below.id());
                let beneath = lower::beneath(*number);
                (HelperOutcome::Below { file, beneath }, Vec::new())
            }),
            Self::Close { .. } => file().map(|file| {
                drop(file);
                HelperOutcome::done()
            }),
        };
        done.unwrap_or_else(|e| {
            (HelperOutcome::Refused { errno: e.errno().raw_os_error(), why: e.to_string() }, Vec::new())
        })
    }
}

impl fmt::Display for HelperWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.subject())?;
        match self {
            Self::Loop(work) => write!(f, ", {}", work.step()),
            _ => Ok(()),
        }
    }
}

impl HelperOutcome {
    fn done() -> (Self, Vec<OwnedFd>) {
        (Self::Done { yes: false }, Vec::new())
    }

    /// The refusal as an error.
    pub(super) fn accepted(self) -> Result<Self> {
        match self {
            Self::Refused { errno, why } => Err(Error::new(Errno::from_raw_os_error(errno), why)),
            outcome => Ok(outcome),
        }
    }
}
