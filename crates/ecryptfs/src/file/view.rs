//! How a mount shows the lower folder: unchanged, or as eCryptfs.

use std::borrow::Cow;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;

use super::Crypto;
use crate::name::long;
use crate::{
    AuthToken, Cipher, ErrorKind, FileHeader, FileKey, HeaderLocation, Keyring, LowerName, NameCipher, XATTR,
    is_own_xattr,
};

/// How lower names and contents are shown. Without a sealing they are unchanged: a plain stacked
/// filesystem.
pub(crate) struct LowerView {
    pub(crate) sealing: Option<Sealing>,
    /// The process's limit of a file's size (`RLIMIT_FSIZE`) when the mount began.
    pub(crate) size_limit: u64,
}

/// The parameters of eCryptfs in a mount's options.
#[derive(Debug)]
pub struct Sealing {
    /// The keys that open files, and the keys of new files.
    pub keys: MountKeys,
    /// The cipher of new files.
    pub cipher: Cipher,
    /// The crypto of contents.
    pub crypto: Crypto,
    /// The encryption of names, if any.
    pub names: Option<NameCipher>,
    /// Allows encrypted names of 144 to 255 bytes, too, which the kernel does not show.
    pub long_names: bool,
    /// The first place to look for headers, and the place of new files' headers.
    pub place: HeaderLocation,
    /// Files without a header are shown unchanged.
    pub passthrough: bool,
    /// Files are shown in their encrypted form, with their headers in front.
    pub encrypted_view: bool,
    /// A missing extent is an error, not zeros.
    pub strict: bool,
}

/// The keys of a mount.
#[derive(Debug)]
pub struct MountKeys {
    /// The keys that open files.
    pub keyring: Keyring,
    /// The keys of new files: at least one.
    pub new_files: Vec<Arc<AuthToken>>,
}

type Bytes<'a> = Cow<'a, [u8]>;

/// The length of the longest name on nearly every filesystem.
const NAME_MAX: usize = 255;

impl LowerView {
    fn names(&self) -> Option<&NameCipher> {
        self.sealing.as_ref().filter(|sealing| !sealing.encrypted_view)?.names.as_ref()
    }

    /// Returns true when encrypted names may be long.
    pub(crate) fn has_long_names(&self) -> bool {
        self.names().is_some() && self.sealing.as_ref().is_some_and(|sealing| sealing.long_names)
    }

    pub(crate) fn lower_name<'a>(&self, name: &'a [u8]) -> Result<LowerName<'a>, Errno> {
        match self.names() {
            Some(names) => names.lower(name, self.has_long_names()).map_err(|e| match e.kind() {
                ErrorKind::NameTooLong => Errno::NAMETOOLONG,
                _ => Errno::INVAL,
            }),
            None if name.len() > NAME_MAX => Err(Errno::NAMETOOLONG),
            None => Ok(LowerName::short(name)),
        }
    }

    /// Returns `None` for a name in a folder that was not encrypted with this mount's key.
    pub(crate) fn upper_name(&self, folder: impl AsFd, lower: &[u8]) -> Option<Vec<u8>> {
        match self.names() {
            Some(names) if self.has_long_names() && long::is_long(lower) => {
                let name = long::read(folder, lower).and_then(|encoded| names.decode(&encoded));
                name.inspect_err(|e| log::warn!("{}: {e}", lower.escape_ascii())).ok()
            }
            Some(names) => names.decode(lower).ok(),
            None => Some(lower.to_vec()),
        }
    }

    /// Returns true when symlink targets are encrypted.
    pub(crate) fn hides_targets(&self) -> bool {
        self.names().is_some()
    }

    pub(crate) fn lower_target<'a>(&self, target: &'a [u8]) -> Result<Bytes<'a>, Errno> {
        match self.names() {
            Some(names) => names.encode_target(target).map(Cow::Owned).map_err(|_| Errno::NAMETOOLONG),
            None => Ok(Cow::Borrowed(target)),
        }
    }

    pub(crate) fn upper_target(&self, lower: &[u8]) -> Result<Vec<u8>, Errno> {
        match self.names() {
            Some(names) => names.decode_target(lower).map_err(|_| Errno::IO),
            None => Ok(lower.to_vec()),
        }
    }

    /// Returns the longest name's length, when the lower filesystem has names of up to `lower`
    /// bytes.
    pub(crate) fn name_limit(&self, lower: u64) -> u64 {
        match self.names() {
            Some(_) if self.has_long_names() => (NameCipher::MAX_LONG_NAME as u64).min(lower),
            Some(_) => (NameCipher::MAX_NAME as u64).min(lower),
            None => lower,
        }
    }

    /// Returns true when an xattr is a header or a tool's mark, which are hidden from callers:
    /// tools believe a mark. The encrypted view shows headers.
    pub(crate) fn hides_xattr(&self, name: &[u8]) -> bool {
        self.sealing.as_ref().is_some_and(|sealing| {
            is_own_xattr(name) && !(sealing.encrypted_view && name == XATTR.as_bytes())
        })
    }

    /// Returns true when writes are refused.
    pub(crate) fn is_read_only(&self) -> bool {
        self.sealing.as_ref().is_some_and(|sealing| sealing.encrypted_view)
    }
}

impl Sealing {
    /// Returns a key and a header for a new file.
    pub(super) fn new_file(&self) -> crate::Result<(FileKey, FileHeader)> {
        let key = FileKey::random(self.cipher)?;
        let tokens: Vec<&AuthToken> = self.keys.new_files.iter().map(|token| &**token).collect();
        let mut header = FileHeader::new(&key, &tokens, self.place)?;
        header.set_encrypted_names(self.names.is_some());
        Ok((key, header))
    }
}
