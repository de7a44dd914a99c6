//! A backup of a header with its keyslots, and the restore.
//!
//! ```text
//!   device --take--> Backup (cryptsetup's format) --found_on--> losses --restore--> device
//! ```

pub(crate) mod restore;

use std::fmt;

use crate::lock::LockTo;
use crate::storage::bytes::Bytes;
use crate::{Error, ErrorKind, Header, ReadAt, Result, Target, storage};

pub use restore::{Found, RestoreOptions};

/// The longest backup: 8 MiB of metadata and 128 MiB of keyslots in LUKS2 fit.
const MAX_LEN: u64 = 256 << 20;

/// A copy of a header and its keyslots: no data, and no unencrypted key.
pub struct Backup {
    bytes: Vec<u8>,
    header: Header,
}

impl Backup {
    /// Copies a header with its keyslots. If one of LUKS2's two copies is bad, the backup's is
    /// repaired.
    ///
    /// # Errors
    /// The kinds of [`Header::read`]; `TooSmall` when the device ends within the keyslots;
    /// `Unsupported` when they extend further than in any known header.
    pub fn take(from: &(impl ReadAt + ?Sized)) -> Result<Self> {
        let _lock = from.lock(LockTo::Read)?;
        let header = Header::parse(from)?;
        let bytes = Bytes::new(read(from, &header)?);
        mend(&header, &bytes)?;
        Self::parse(bytes)
    }

    /// Reads a backup, as strictly as any header: an attacker may have written it.
    ///
    /// # Errors
    /// The kinds of [`Backup::take`].
    pub fn read(from: &(impl ReadAt + ?Sized)) -> Result<Self> {
        Self::take(from).map_err(|e| e.within("the backup"))
    }

    /// Returns the backup's file contents: LUKS2's two copies and all of its keyslots, or LUKS1's
    /// header up to the end of the last keyslot.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the header in the backup.
    pub fn header(&self) -> &Header {
        &self.header
    }

    fn parse(bytes: Bytes) -> Result<Self> {
        let header = Header::parse(&bytes)?;
        let mut bytes = bytes.into_inner();
        if let Header::Luks1(header) = &header {
            // The bytes between header and keyslots have no meaning.
            bytes[header.unused()].fill(0);
        }
        Ok(Self { bytes, header })
    }
}

impl fmt::Debug for Backup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backup").field("header", &self.header).finish_non_exhaustive()
    }
}

/// Returns the length of a header with its keyslots.
fn len(header: &Header) -> Result<usize> {
    let len = header.keyslots_end();
    if len > MAX_LEN {
        let context = format!("its keyslots reach to byte {len}: no header is longer than {MAX_LEN} bytes");
        return Err(Error::new(ErrorKind::Unsupported, context));
    }
    // The limit above is 256 MiB.
    Ok(usize::try_from(len).unwrap_or(usize::MAX))
}

/// Reads a header with its keyslots. A copy that cannot be read is replaced by zeros.
fn read(from: &(impl ReadAt + ?Sized), header: &Header) -> Result<Vec<u8>> {
    let len = len(header)?;
    match storage::read(from, 0, len) {
        Err(e) if e.kind() == ErrorKind::Io => {
            let Header::Luks2(header) = header else { return Err(e) };
            let Some(bad) = header.bad_copy() else { return Err(e) };
            // Both copies lie before the end of the keyslots.
            let [start, end] = [bad.start, bad.end].map(|at| usize::try_from(at).unwrap_or(len).min(len));
            let mut bytes = vec![0; len];
            storage::read_into(from, 0, &mut bytes[..start])?;
            storage::read_into(from, end as u64, &mut bytes[end..])?;
            Ok(bytes)
        }
        read => read,
    }
}

/// Rewrites LUKS2's bad copy, in the backup only.
fn mend(header: &Header, to: &(impl Target + ?Sized)) -> Result<()> {
    match header {
        Header::Luks2(header) => header.mend(to),
        Header::Luks1(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests;
