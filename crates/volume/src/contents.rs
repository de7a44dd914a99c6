//! The contents of an image that is about to be overwritten.

use crate::signature::{LOOKED_AT, signature};
use crate::{ErrorKind, Header, ReadAt, Result, storage};

/// The contents of an image, as its beginning tells them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageContents {
    /// The first megabyte is all zeros, or the image is empty.
    Zeros,
    /// A LUKS header, sound or damaged, or the signature of another format.
    Known(&'static str),
    /// Bytes of no known format.
    Unknown,
}

impl ImageContents {
    /// Reads the beginning of an image, and the copies of LUKS headers.
    ///
    /// # Errors
    /// `Busy` when another program keeps the header's lock; `Io`.
    pub fn of(image: &(impl ReadAt + ?Sized)) -> Result<Self> {
        let size = storage::size(image)?;
        if size == 0 {
            return Ok(Self::Zeros);
        }
        match Header::read(image) {
            Ok(Header::Luks1(_)) => return Ok(Self::Known("a LUKS1 volume")),
            Ok(_) => return Ok(Self::Known("a LUKS2 volume")),
            Err(e) if e.kind() == ErrorKind::NoHeader => {}
            Err(e) if matches!(e.kind(), ErrorKind::Busy | ErrorKind::Locked) => return Err(e),
            Err(e) if e.kind() == ErrorKind::UnfinishedStart => {
                return Ok(Self::Known(
                    "the start of an encryption that was cut off (`reencrypt --resume-only` undoes it)",
                ));
            }
            Err(_) => return Ok(Self::Known("a damaged LUKS header")),
        }
        let start = storage::read(image, 0, usize::try_from(size.min(LOOKED_AT)).unwrap_or(0))?;
        if start.iter().all(|&byte| byte == 0) {
            return Ok(Self::Zeros);
        }
        Ok(signature(&start).map_or(Self::Unknown, Self::Known))
    }

    /// The contents that an owner may want to keep; none for zeros.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Zeros => None,
            Self::Known(name) => Some(name),
            Self::Unknown => Some("data"),
        }
    }
}
