//! eCryptfs: each file is encrypted separately, with a key in its own header.
//!
//! ```text
//!   passphrase --token--> AuthToken --+--> Keyring            the keys that open files
//!                                     |
//!   the file's first bytes --header--> Header --unlock(Keyring)--> FileKey --contents--> Contents
//!        or an xattr                     |                                                  |
//!                                     packets: the file key,      whole requests of 4096-byte
//!                                     wrapped for each token      extents, in place, one call
//!
//!   name         NameCipher: names and symlink targets
//!   cipher       the ciphers that the format has codes for
//!   options      mount options, by the kernel's names
//!   kernel_keyring    keys that the mount helper gave to the kernel
//!   wrapped, signatures    the files of ~/.ecryptfs
//!   tools        whole trees without mounting: export, import, check, other keys
//! ```
//!
//! A new file, and the same file opened again:
//! ```
//! # use underseal_ecryptfs::{AuthToken, Cipher, FileHeader, FileKey, HeaderLocation, Keyring};
//! # fn main() -> underseal_ecryptfs::Result<()> {
//! let salt = AuthToken::DEFAULT_SALT;
//! let token = AuthToken::from_passphrase(b"correct horse battery staple", salt)?;
//! let key = FileKey::random(Cipher::DEFAULT)?;
//! let mut header = FileHeader::new(&key, &[&token], HeaderLocation::File)?;
//! let mut extent = [0; 4096];
//! extent[..5].copy_from_slice(b"hello");
//! header.set_size(5);
//! key.contents()?.encrypt(0, &mut extent);
//! let lower = [&header.to_file()[..], &extent[..]].concat();
//!
//! let keyring = Keyring::from(token);
//! let header = FileHeader::read(&lower)?;
//! let mut extent = lower[8192..].to_vec();
//! header.unlock(&keyring)?.contents()?.decrypt(0, &mut extent);
//! assert_eq!((header.size(), header.data_offset(), &extent[..5]), (5, 8192, &b"hello"[..]));
//! # Ok(())
//! # }
//! ```

// Allowed in the few places that explain it: an ioctl, an identity for one thread.
#![deny(unsafe_code)]

mod cipher;
mod contents;
mod durable;
mod error;
mod file;
mod file_key;
pub mod fs;
mod header;
pub mod kernel_keyring;
mod keyring;
mod lock;
mod name;
pub mod options;
mod random;
pub mod signatures;
mod token;
pub mod tools;
pub mod wrapped;

use std::os::fd::{AsFd, AsRawFd};

pub use cipher::Cipher;
pub use contents::{Contents, EXTENT};
pub use error::{Error, ErrorKind};
pub use file_key::FileKey;
pub(crate) use header::is_own_xattr;
pub use header::{FileHeader, HeaderLocation, KeyPacket, XATTR};
pub use keyring::Keyring;
pub use name::{LowerName, NameCipher, PREFIX, is_encoded, signature as name_signature};
pub use token::{AuthToken, Signature};

/// Returns a descriptor's link in /proc: a path to exactly this file, for calls that accept no
/// descriptor.
fn proc_path(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// The result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;
