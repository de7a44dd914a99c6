//! A file's header: its size, and its key, wrapped for each key that may open the file.
//!
//! ```text
//!   0  size   8  marker, marker ^ 0x3c81b7f5   16  version, flags   20  extent size
//!   24  extents   26  packets ..  0               (extent size and extents: not in version 0)
//! ```
//! The header fills the file's first 8192 bytes, or more for larger pages, or is in an xattr
//! without its zeros. All integers are big-endian. Only the first 4096 bytes are ever parsed.

mod packet;

pub(crate) use packet::{PacketReader, write_length};

pub use packet::KeyPacket;

use crate::{AuthToken, Error, ErrorKind, FileKey, Keyring, Result, random};

/// The xattr of a header that is not in its file.
pub const XATTR: &str = "user.ecryptfs";
/// The beginning of the names of all xattrs in which tools leave marks on lower files.
const MARKS: &str = "user.underseal.";

/// Returns true for the xattr of a header or of a mark: they belong to one lower file, and are
/// neither shown as a plain file's nor taken from one.
pub(crate) fn is_own_xattr(name: &[u8]) -> bool {
    name == XATTR.as_bytes() || name.starts_with(MARKS.as_bytes())
}

/// The place of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderLocation {
    /// In front of the contents.
    File,
    /// In the xattr `user.ecryptfs`; the lower file begins with the contents.
    Xattr,
}

/// A header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileHeader {
    size: u64,
    place: HeaderLocation,
    marker: u32,
    version: u8,
    /// The low 24 bits of the flags.
    flags: u32,
    extent_bytes: u32,
    extents: u16,
    packets: Vec<KeyPacket>,
}

const MARKER: u32 = 0x3c81_b7f5;
/// The version of new headers, and the last known version.
const VERSION: u8 = 3;
const ENCRYPTED: u32 = 2;
const IN_XATTR: u32 = 4;
const ENCRYPTED_NAMES: u32 = 8;

/// The number of parsed bytes: a page of most machines.
const PARSED: usize = 4096;
/// The largest written length; the kernel's parser needs some spare bytes.
const WRITTEN: usize = 4000;
/// The smallest room of a header in its file.
const IN_FILE: usize = 8192;

impl FileHeader {
    /// The number of bytes to read of a file; no byte behind them is parsed.
    pub const PARSED: usize = PARSED;
    /// The room of a new header in its file.
    pub const IN_FILE: usize = IN_FILE;

    /// Returns a new file's header: its key wrapped for each token.
    ///
    /// # Errors
    /// `BadOption` for no token, or more than fit; `Memory`; `Io` when the kernel has no random
    /// bytes.
    pub fn new(key: &FileKey, tokens: &[&AuthToken], place: HeaderLocation) -> Result<Self> {
        let mut marker = [0; 4];
        random::fill(&mut marker)?;
        let place_flag = if place == HeaderLocation::Xattr { IN_XATTR } else { 0 };
        let mut header = Self {
            size: 0,
            place,
            marker: u32::from_be_bytes(marker),
            version: VERSION,
            flags: ENCRYPTED | place_flag,
            extent_bytes: 4096,
            extents: 2,
            packets: Vec::new(),
        };
        for token in tokens {
            header.add(key, token)?;
        }
        if header.packets.is_empty() {
            return Err(Error::new(ErrorKind::BadOption, "a file needs a key that opens it"));
        }
        Ok(header)
    }

    /// Reads the header at the start of a file. `bytes` has at least [`FileHeader::PARSED`] bytes,
    /// or the whole file.
    ///
    /// # Errors
    /// `NotEncrypted` without a header; `BadHeader`; `Unsupported` for a later version.
    pub fn read(bytes: &[u8]) -> Result<Self> {
        Self::parse(bytes, HeaderLocation::File)
    }

    /// Reads the header in an xattr.
    ///
    /// # Errors
    /// The kinds of [`FileHeader::read`].
    pub fn read_xattr(bytes: &[u8]) -> Result<Self> {
        Self::parse(bytes, HeaderLocation::Xattr)
    }

    /// Returns true when a file with this start has a header. Only the marker is checked.
    pub fn is_marked(bytes: &[u8]) -> bool {
        match (field(bytes, 8), field(bytes, 12)) {
            (Some(first), Some(second)) => u32::from_be_bytes(first) ^ MARKER == u32::from_be_bytes(second),
            _ => false,
        }
    }

    fn parse(bytes: &[u8], place: HeaderLocation) -> Result<Self> {
        if !Self::is_marked(bytes) {
            return Err(Error::new(ErrorKind::NotEncrypted, "there is no eCryptfs header"));
        }
        let bytes = &bytes[..bytes.len().min(PARSED)];
        let cut =
            || Error::new(ErrorKind::BadHeader, format!("the header is cut after {} bytes", bytes.len()));
        let size = u64::from_be_bytes(field(bytes, 0).ok_or_else(cut)?);
        let marker = u32::from_be_bytes(field(bytes, 8).ok_or_else(cut)?);
        let flags = u32::from_be_bytes(field(bytes, 16).ok_or_else(cut)?);
        let [version, ..] = flags.to_be_bytes();
        if version > VERSION {
            let context =
                format!("the header is of version {version}, and the last that is known is {VERSION}");
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        let (extent_bytes, extents, packets) = match version {
            0 => (4096, 2, 20),
            _ => {
                let bytes_each = u32::from_be_bytes(field(bytes, 20).ok_or_else(cut)?);
                (bytes_each, u16::from_be_bytes(field(bytes, 24).ok_or_else(cut)?), 26)
            }
        };
        let packets = packet::read(bytes.get(packets..).ok_or_else(cut)?)?;
        let header =
            Self { size, place, marker, version, flags: flags & 0xff_ffff, extent_bytes, extents, packets };
        if place == HeaderLocation::File && header.data_offset() < IN_FILE as u64 {
            let context = format!(
                "{} extents of {} bytes are no room for a header",
                header.extents, header.extent_bytes
            );
            return Err(Error::new(ErrorKind::BadHeader, context));
        }
        if i64::try_from(size).is_err() {
            return Err(Error::new(ErrorKind::BadHeader, format!("no file has {size} bytes")));
        }
        Ok(header)
    }

    /// Returns the file's key, from the first token that has a key in the keyring.
    ///
    /// # Errors
    /// `NoKey` when no token has one; `BadHeader` for an unknown cipher.
    pub fn unlock(&self, keyring: &Keyring) -> Result<FileKey> {
        for packet in &self.packets {
            if let KeyPacket::Passphrase { signature, wrapped, .. } = packet
                && let Some(token) = keyring.find(*signature)
            {
                return FileKey::unwrap(wrapped, packet.cipher()?, token);
            }
        }
        let wanted: Vec<_> = self.packets.iter().map(|packet| packet.signature().to_string()).collect();
        let context =
            format!("none of the keys at hand is {}, which it was written for", wanted.join(" or "));
        Err(Error::new(ErrorKind::NoKey, context))
    }

    /// Wraps the file's key for another token; for a token of the header, again.
    ///
    /// # Errors
    /// `BadOption` when it does not fit.
    pub fn add(&mut self, key: &FileKey, token: &AuthToken) -> Result<()> {
        let packet = KeyPacket::Passphrase {
            code: key.cipher().code(),
            salt: token.salt(),
            wrapped: key.wrap(token)?,
            signature: token.signature(),
        };
        let mut grown = self.clone();
        match grown.packets.iter_mut().find(|packet| packet.signature() == token.signature()) {
            Some(old) => *old = packet,
            None => grown.packets.push(packet),
        }
        if grown.to_xattr().len() > WRITTEN {
            let context = format!("no room for more than {} keys in a header", self.packets.len());
            return Err(Error::new(ErrorKind::BadOption, context));
        }
        *self = grown;
        Ok(())
    }

    /// Removes a token's packets. Returns true when there were any.
    ///
    /// # Errors
    /// `BadOption` for the last token, without which the file could not be opened.
    pub fn remove(&mut self, signature: crate::Signature) -> Result<bool> {
        let stays = |packet: &KeyPacket| packet.signature() != signature;
        if !self.packets.iter().any(stays) {
            return Err(Error::new(
                ErrorKind::BadOption,
                format!("{signature} is the only key that opens it"),
            ));
        }
        let before = self.packets.len();
        self.packets.retain(stays);
        Ok(self.packets.len() < before)
    }

    /// Returns the size of the plain file.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Sets the size of the plain file.
    pub fn set_size(&mut self, size: u64) {
        self.size = size;
    }

    /// Returns the beginning of the contents in the lower file.
    pub fn data_offset(&self) -> u64 {
        match self.place {
            HeaderLocation::File => u64::from(self.extent_bytes) * u64::from(self.extents),
            HeaderLocation::Xattr => 0,
        }
    }

    /// Returns the header's place.
    pub fn place(&self) -> HeaderLocation {
        self.place
    }

    /// Returns the same header for another place, with a new header's size and version.
    pub fn moved_to(&self, place: HeaderLocation) -> Self {
        let flags = match place {
            HeaderLocation::File => self.flags & !IN_XATTR,
            HeaderLocation::Xattr => self.flags | IN_XATTR,
        };
        Self { place, version: VERSION, flags, extent_bytes: 4096, extents: 2, ..self.clone() }
    }

    /// Returns the version that was read.
    pub fn version(&self) -> u8 {
        self.version
    }

    /// Returns the flags as written, including the version.
    pub fn flags(&self) -> u32 {
        u32::from(self.version) << 24 | self.flags
    }

    /// Returns true when names were encrypted in the mount that created the file.
    pub fn has_encrypted_names(&self) -> bool {
        self.flags & ENCRYPTED_NAMES != 0
    }

    /// Sets whether names are encrypted in the mount that creates the file.
    pub fn set_encrypted_names(&mut self, encrypted: bool) {
        match encrypted {
            true => self.flags |= ENCRYPTED_NAMES,
            false => self.flags &= !ENCRYPTED_NAMES,
        }
    }

    /// Returns the packets: the keys that open the file.
    pub fn packets(&self) -> &[KeyPacket] {
        &self.packets
    }

    /// Returns the beginning of the packets.
    pub(crate) fn packets_at(&self) -> usize {
        if self.version > 0 { 26 } else { 20 }
    }

    /// Returns the eight bytes of the size at the start of the header: the only change for a grown
    /// file.
    pub fn size_field(&self) -> [u8; 8] {
        self.size.to_be_bytes()
    }

    /// Returns the contents of the xattr.
    pub fn to_xattr(&self) -> Vec<u8> {
        let mut bytes = self.size_field().to_vec();
        bytes.extend_from_slice(&self.marker.to_be_bytes());
        bytes.extend_from_slice(&(self.marker ^ MARKER).to_be_bytes());
        bytes.extend_from_slice(&self.flags().to_be_bytes());
        if self.version > 0 {
            bytes.extend_from_slice(&self.extent_bytes.to_be_bytes());
            bytes.extend_from_slice(&self.extents.to_be_bytes());
        }
        for packet in &self.packets {
            packet.write(&mut bytes);
        }
        bytes
    }

    /// Returns the start of a new file: [`FileHeader::IN_FILE`] bytes. For larger pages, zeros
    /// follow up to [`FileHeader::data_offset`].
    pub fn to_file(&self) -> Vec<u8> {
        let mut bytes = self.to_xattr();
        bytes.resize(IN_FILE, 0);
        bytes
    }
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests;
