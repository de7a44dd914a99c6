//! The parts of a header besides keys and data: names, and flags for opening the volume.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

use crate::{Error, ErrorKind, Header, Result, Target};

/// Changes to a header's names and flags. Fields that are `None` or empty change nothing.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// LUKS2: a name for users, up to 47 bytes.
    pub label: Option<String>,
    /// LUKS2: a second name, up to 47 bytes.
    pub subsystem: Option<String>,
    /// The UUID.
    pub uuid: Option<Uuid>,
    /// LUKS2: flags to switch on.
    pub on: Vec<PersistentFlag>,
    /// LUKS2: flags to switch off.
    pub off: Vec<PersistentFlag>,
}

/// A flag of LUKS2 for opening the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are dm-crypt's options, by their names there")]
pub enum PersistentFlag {
    AllowDiscards,
    SameCpuCrypt,
    SubmitFromCryptCpus,
    NoReadWorkqueue,
    NoWriteWorkqueue,
    HighPriority,
    NoJournal,
}

impl PersistentFlag {
    /// All flags.
    pub const ALL: [Self; 7] = [
        Self::AllowDiscards,
        Self::SameCpuCrypt,
        Self::SubmitFromCryptCpus,
        Self::NoReadWorkqueue,
        Self::NoWriteWorkqueue,
        Self::HighPriority,
        Self::NoJournal,
    ];

    /// Returns the name on disk, for example `allow-discards`.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllowDiscards => "allow-discards",
            Self::SameCpuCrypt => "same-cpu-crypt",
            Self::SubmitFromCryptCpus => "submit-from-crypt-cpus",
            Self::NoReadWorkqueue => "no-read-workqueue",
            Self::NoWriteWorkqueue => "no-write-workqueue",
            Self::HighPriority => "high-priority",
            Self::NoJournal => "no-journal",
        }
    }
}

impl FromStr for PersistentFlag {
    type Err = Error;

    /// Fails with `BadOption` for any other name.
    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|flag| flag.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            Error::new(ErrorKind::BadOption, format!("flag {} is none of {known}", crate::printable(name)))
        })
    }
}

impl fmt::Display for PersistentFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Header {
    /// Changes names and flags.
    ///
    /// # Errors
    /// `BadOption` for a name that does not fit, or that LUKS1 does not have; `Unsupported` when
    /// the header requires features that this build does not know; `Busy`, `Ambiguous` when the
    /// header cannot be changed now; `Io`.
    pub fn set(&mut self, on: &(impl Target + ?Sized), settings: &Settings) -> Result<()> {
        match self {
            Self::Luks1(header) => header.set(on, settings),
            Self::Luks2(header) => header.set(on, settings),
        }
    }

    /// Removes all keyslots and wipes their areas: after that, only the volume key or a backup of
    /// this header opens the volume. The areas are wiped first: after a crash in between, the rest
    /// can be erased again. Returns the numbers of the keyslots that were in use.
    ///
    /// # Errors
    /// `Busy`, `Ambiguous` when the header cannot be changed now; `Io`.
    pub fn erase(&mut self, on: &(impl Target + ?Sized)) -> Result<Vec<u32>> {
        match self {
            Self::Luks1(header) => header.erase(on),
            Self::Luks2(header) => header.erase(on),
        }
    }
}
