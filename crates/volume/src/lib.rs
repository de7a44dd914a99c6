//! What is on disk: headers in, segments out.
//!
//! ```text
//!   header bytes --parse--> Header --unlock(passphrase)--> volume key --activate--> Volume
//!      |                      |                                                       |
//!   luks1/, luks2/          info                      segments: logical range, lower offset, cipher, IV offset
//!      ^                                                                              ^
//!   format                                            plain: a passphrase or key file, and no header at all
//!
//!   below: kdf (PBKDF2, Argon2), af (anti-forensic splitter), area (a keyslot's encrypted area),
//!          hash, random, storage (file or bytes), lock (cryptsetup's), text
//! ```

#![forbid(unsafe_code)]

mod af;
mod area;
mod error;
mod format;
mod hash;
mod header;
pub mod info;
mod kdf;
mod lock;
pub mod luks1;
pub mod luks2;
pub mod plain;
mod random;
mod storage;
mod text;
mod unlock;
mod volume;

pub use error::{Error, ErrorKind};
pub use format::{FormatOptions, Version, format};
pub use hash::Hash;
pub use header::Header;
pub use info::Info;
pub use kdf::benchmark::{Cost, Pbkdf};
pub use kdf::{Argon2Variant, Kdf, KdfLimits, PbkdfKind};
pub use storage::ReadAt;
pub use unlock::{ActivateOptions, UnlockOptions, Unlocked, VolumeKey};
pub use volume::{Segment, Volume};

use text::printable;
use underseal_cipher::Key;

/// The result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;
