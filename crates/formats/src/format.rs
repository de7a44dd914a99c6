//! The formats by name.

use std::fmt;
use std::str::FromStr;

use underseal_volume::ReadAt;

use crate::bitlk::Bitlk;
use crate::fvault2::Fvault2;
use crate::{Error, ErrorKind, Result};

/// A format of another system, by cryptsetup's name of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// TrueCrypt and VeraCrypt.
    Tcrypt,
    /// BitLocker.
    Bitlk,
    /// FileVault 2 on CoreStorage.
    Fvault2,
    /// loop-AES.
    Loopaes,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Tcrypt, Self::Bitlk, Self::Fvault2, Self::Loopaes];

    /// The name that `--type` takes: `tcrypt`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcrypt => "tcrypt",
            Self::Bitlk => "bitlk",
            Self::Fvault2 => "fvault2",
            Self::Loopaes => "loopaes",
        }
    }

    /// The name that people know: `BitLocker`.
    pub fn title(self) -> &'static str {
        match self {
            Self::Tcrypt => "TrueCrypt or VeraCrypt",
            Self::Bitlk => "BitLocker",
            Self::Fvault2 => "FileVault 2",
            Self::Loopaes => "loop-AES",
        }
    }

    /// The format whose mark the image carries. TrueCrypt, VeraCrypt and loop-AES have no mark.
    ///
    /// # Errors
    /// `Io`; an image that is too small for a mark carries none and is no error.
    pub fn detect(image: &(impl ReadAt + ?Sized)) -> Result<Option<Self>> {
        if Bitlk::is_marked(image)? {
            return Ok(Some(Self::Bitlk));
        }
        Ok(Fvault2::is_marked(image)?.then_some(Self::Fvault2))
    }
}

impl FromStr for Format {
    type Err = Error;

    /// Takes a format's name; returns `BadOption` for any other name.
    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| Error::new(ErrorKind::BadOption, "no format of another system has this name"))
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
