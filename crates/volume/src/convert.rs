//! Conversion from LUKS1 to LUKS2 and back, where both versions can express the header. Data,
//! passphrases and keys stay unchanged.
//!
//! A header opens at every instant. LUKS1's takes the first 592 bytes, LUKS2's two copies the first
//! 32 KiB, where LUKS1 keeps key material:
//! ```text
//!   to LUKS2:  key material moves to where both versions permit it -> second copy
//!              -> first copy's JSON -> first sector: LUKS2 -> the rest of the first copy
//!   to LUKS1:  second sector (the first copy is bad, the second counts) -> first sector: LUKS1
//!              -> the remains of both copies are wiped
//! ```
//! A disk writes a sector whole or not at all, and the first sector says which version it is.

mod to_luks1;
mod to_luks2;

use crate::format::Version;
use crate::{Error, ErrorKind, Header, Priority, Result, Target};

impl Header {
    /// Converts the header to another version. The volume must be closed.
    ///
    /// # Errors
    /// `Unsupported` when the other version cannot express this header, naming the reason; `NoRoom`
    /// when its keyslots do not fit; `BadOption` when it is of that version; `Busy`, `Ambiguous`
    /// when the header cannot be changed now; `Io`.
    pub fn convert(self, on: &(impl Target + ?Sized), to: Version) -> Result<Self> {
        match (self, to) {
            (Self::Luks1(header), Version::Luks2) => to_luks2::convert(*header, on)?,
            (Self::Luks2(header), Version::Luks1) => to_luks1::convert(*header, on)?,
            (Self::Luks1(_), Version::Luks1) => return Err(already("LUKS1")),
            (Self::Luks2(_), Version::Luks2) => return Err(already("LUKS2")),
        }
        Self::read(on)
    }

    /// Returns the parts that another version cannot express, and that a conversion drops: `label
    /// "work"`. The names are printable.
    pub fn dropped_by(&self, to: Version) -> Vec<String> {
        let (Self::Luks2(_), Version::Luks1) = (self, to) else { return vec![] };
        let info = self.info();
        let name = |what: &str, text: Option<String>| {
            text.filter(|text| !text.is_empty()).map(|text| format!("{what} {}", crate::printable(&text)))
        };
        let names = [name("label", info.label), name("subsystem", info.subsystem)];
        let flags = info.flags.iter().map(|flag| format!("flag {}", crate::printable(flag)));
        let priorities = info.keyslots.iter().filter_map(|slot| {
            let name = Some(slot.priority).filter(|name| *name != Priority::Normal.name())?;
            Some(format!("priority {name} of keyslot {}", slot.number))
        });
        names.into_iter().flatten().chain(flags).chain(priorities).collect()
    }
}

fn already(version: &str) -> Error {
    Error::new(ErrorKind::BadOption, format!("the header is {version} already"))
}

/// Makes the error for a part that the other version cannot express.
fn lacks(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, what)
}

#[cfg(test)]
mod tests;
