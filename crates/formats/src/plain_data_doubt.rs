//! Data that an owner may not mean to encrypt as they are.

use std::fmt;

use underseal_volume::ReadAt;

use crate::partitions::is_partitioned;
use crate::{Format, Result};

/// A reason to ask before plain data are encrypted in place. TrueCrypt, VeraCrypt and loop-AES
/// volumes have no mark, and give none; LUKS volumes are no plain data at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlainDataDoubt {
    /// The data are a volume of another system, which is encrypted already.
    Encrypted(Format),
    /// The data are a whole disk with partitions.
    Partitioned,
}

impl PlainDataDoubt {
    /// Looks at the beginning of plain data, and at the copy of CoreStorage's header at their end.
    ///
    /// # Errors
    /// `Io`.
    pub fn find(data: &(impl ReadAt + ?Sized)) -> Result<Option<Self>> {
        if let Some(format) = Format::detect(data)? {
            return Ok(Some(Self::Encrypted(format)));
        }
        Ok(is_partitioned(data)?.then_some(Self::Partitioned))
    }
}

impl fmt::Display for PlainDataDoubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Encrypted(format) => {
                write!(f, "it holds a {} volume, which is encrypted already", format.title())
            }
            Self::Partitioned => f.write_str(
                "it holds a partition table: the whole disk would be encrypted, and its partitions would be \
                 found in the open volume only",
            ),
        }
    }
}
