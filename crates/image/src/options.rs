//! Options by name and text, for languages that have no builder: the C library, the Python module.

use std::str::FromStr;

use crate::open::{HeaderlessLayout, Type};
use crate::{Error, ErrorKind, OpenOptions, Result};

impl OpenOptions {
    /// Sets an option by its name; `include/underseal.h` of the C library lists the names.
    ///
    /// # Errors
    /// `BadOption` for a name or value that is none. Options that do not fit the type are refused
    /// when the image is opened.
    pub fn set(mut self, name: &str, value: &str) -> Result<Self> {
        let HeaderlessLayout { cipher, key_size, hash, sector_size, offset, skip } = &mut self.layout;
        match name {
            "type" => self.kind = Type::named(value)?,
            "partition" => self.partition = Some(number(name, value)?),
            "other-device" => self.others.push(value.into()),
            "key-file" => self.key_files.push(value.into()),
            "cipher" => *cipher = Some(value.into()),
            "key-size" => *key_size = Some(number(name, value)?),
            "hash" => *hash = Some(value.into()),
            "sector-size" => *sector_size = Some(number(name, value)?),
            "offset" => *offset = Some(number(name, value)?),
            "skip" => *skip = Some(number(name, value)?),
            "pim" => self.tcrypt = self.tcrypt.pim(number(name, value)?)?,
            "hidden" => self.tcrypt.hidden = flag(name, value)?,
            "backup-header" => self.tcrypt.backup_header = flag(name, value)?,
            "system" => self.tcrypt.system = flag(name, value)?,
            _ => return Err(bad(format!("no option has the name {name:?}"))),
        }
        self.asked.push(name.to_owned());
        Ok(self)
    }

    /// Protects the hidden volume in the outer one that is opened, as
    /// [`TcryptOptions::protect_hidden`](crate::TcryptOptions::protect_hidden).
    ///
    /// # Errors
    /// `BadOption` for a PIM that VeraCrypt does not take, `Memory`.
    pub fn protect_hidden(mut self, passphrase: &[u8], pim: u32) -> Result<Self> {
        self.tcrypt = self.tcrypt.protect_hidden(passphrase, pim, [])?;
        Ok(self)
    }

    /// Refuses options that are not the type's.
    pub(crate) fn check_names(&self, kind: Type) -> Result<()> {
        let fits = |name: &str| match name {
            "type" | "partition" | "key-file" => true,
            "other-device" => kind == Type::Fvault2,
            "cipher" | "hash" => matches!(kind, Type::Plain | Type::LoopAes | Type::Tcrypt),
            "key-size" | "offset" | "skip" => matches!(kind, Type::Plain | Type::LoopAes),
            "sector-size" => kind == Type::Plain,
            _ => kind == Type::Tcrypt,
        };
        if self.tcrypt.protects() && kind != Type::Tcrypt {
            return Err(bad("hidden volumes are protected in volumes of type tcrypt".into()));
        }
        match self.asked.iter().find(|name| !fits(name)) {
            Some(name) => Err(bad(format!("option {name} is not for volumes of type {}", kind.name()))),
            None => Ok(()),
        }
    }
}

fn bad(what: String) -> Error {
    Error::new(ErrorKind::BadOption, what)
}

pub(crate) fn number<T: FromStr>(name: &str, value: &str) -> Result<T> {
    value.parse().map_err(|_| bad(format!("option {name}: {value:?} is no number in its range")))
}

pub(crate) fn flag(name: &str, value: &str) -> Result<bool> {
    match value {
        "1" => Ok(true),
        "0" => Ok(false),
        _ => Err(bad(format!("option {name}: {value:?} is neither 1 nor 0"))),
    }
}
