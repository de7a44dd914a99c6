//! What a mount makes of the lower folder: nothing, or eCryptfs.

use std::borrow::Cow;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;

use super::Crypto;
use crate::name::long;
use crate::{
    AuthToken, Cipher, ErrorKind, FileHeader, FileKey, HeaderLocation, Keyring, LowerName, NameCipher, XATTR,
};

/// How lower names and contents are seen. Without a sealing they are what they are: a plain stacked
/// filesystem.
pub(crate) struct LowerView {
    pub(crate) sealing: Option<Sealing>,
}

/// eCryptfs, as a mount's options have it.
#[derive(Debug)]
pub struct Sealing {
    /// Who may open files, and for whom new ones are made.
    pub keys: MountKeys,
    /// The cipher of new files.
    pub cipher: Cipher,
    /// Who does the crypto of contents.
    pub crypto: Crypto,
    /// How names are encrypted, if they are.
    pub names: Option<NameCipher>,
    /// Encrypted names may have 144 to 255 bytes, too, which the kernel does not show.
    pub long_names: bool,
    /// Where headers are looked for first, and where those of new files go.
    pub place: HeaderLocation,
    /// Files without a header are served as they are.
    pub passthrough: bool,
    /// Files are shown as they lie below, with their headers in front.
    pub encrypted_view: bool,
    /// An extent that is missing is an error, not zeros.
    pub strict: bool,
}

/// The keys of a mount.
#[derive(Debug)]
pub struct MountKeys {
    /// Those that open files.
    pub keyring: Keyring,
    /// Those that new files are made for: at least one.
    pub new_files: Vec<Arc<AuthToken>>,
}

type Bytes<'a> = Cow<'a, [u8]>;

/// The longest name of nearly every filesystem.
const NAME_MAX: usize = 255;

impl LowerView {
    fn names(&self) -> Option<&NameCipher> {
        self.sealing.as_ref().filter(|sealing| !sealing.encrypted_view)?.names.as_ref()
    }

    /// Whether encrypted names may be long.
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

    /// Nothing for a name in a folder that this mount's key did not encrypt.
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

    /// Whether symlink targets are encrypted.
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

    /// The longest name, where the lower filesystem has names of up to `lower` bytes.
    pub(crate) fn name_limit(&self, lower: u64) -> u64 {
        match self.names() {
            Some(_) if self.has_long_names() => (NameCipher::MAX_LONG_NAME as u64).min(lower),
            Some(_) => (NameCipher::MAX_NAME as u64).min(lower),
            None => lower,
        }
    }

    /// Whether an xattr is a header, and none of the callers' business.
    pub(crate) fn hides_xattr(&self, name: &[u8]) -> bool {
        self.sealing.as_ref().is_some_and(|sealing| !sealing.encrypted_view) && name == XATTR.as_bytes()
    }

    /// Whether nothing may be written.
    pub(crate) fn is_read_only(&self) -> bool {
        self.sealing.as_ref().is_some_and(|sealing| sealing.encrypted_view)
    }
}

impl Sealing {
    /// A key and a header for a new file.
    pub(super) fn new_file(&self) -> crate::Result<(FileKey, FileHeader)> {
        let key = FileKey::random(self.cipher)?;
        let tokens: Vec<&AuthToken> = self.keys.new_files.iter().map(|token| &**token).collect();
        let mut header = FileHeader::new(&key, &tokens, self.place)?;
        header.set_encrypted_names(self.names.is_some());
        Ok((key, header))
    }
}
