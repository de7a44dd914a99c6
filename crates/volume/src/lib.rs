//! On-disk formats: from headers to segments.
//!
//! ```text
//!   header bytes --parse--> Header --unlock(passphrase)--> volume key --activate--> Volume
//!      |                      |                                                       |
//!   luks1/, luks2/          info                    segments: range, lower offset, cipher, IV
//!      ^                                                                              ^
//!   format                             plain: a passphrase or key file, without a header
//!                                      table: device-mapper tables, the kernel's form
//!
//!   a header changes in one way only: luks1/update, luks2/update; keyslots: of both versions
//!
//!   below: kdf (PBKDF2, Argon2), af (anti-forensic splitter), area (a keyslot's encrypted area),
//!          `cipher_parameters` (a cipher without its key), hash, random, storage
//!          (bytes, syncs and lock of a header), lock (cryptsetup's), signature (of other
//!          formats), text
//! ```
//!
//! This example makes a volume, and opens it again:
//! ```
//! # use std::fs::File;
//! # use underseal_cipher::Key;
//! # use underseal_volume::{ActivateOptions, Cost, FormatOptions, Header, UnlockOptions, format};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let name = folder.path().join("disk.img");
//! # let file = File::options().read(true).write(true).create_new(true).open(&name)?;
//! let size = 32 << 20;
//! file.set_len(size)?;
//! let passphrase = Key::new(b"correct horse battery staple")?;
//! let mut options = FormatOptions::luks2();
//! # (options.pbkdf.cost, options.pbkdf.memory_kib) = (Cost::Iterations(4), 1024);
//! options.label = "work".into();
//! format(&file, size, &passphrase, options)?;
//!
//! let header = Header::read(&file)?;
//! let opened = header.unlock(&file, &passphrase, &UnlockOptions::default())?;
//! let volume = header.activate(&opened.key, size, &ActivateOptions::default())?;
//! assert_eq!((opened.slot, volume.size()), (0, 16 << 20));
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod af;
mod area;
mod backup;
mod carried;
mod check;
mod cipher_parameters;
mod contents;
mod convert;
mod dispatch;
mod error;
mod format;
mod guards;
mod hash;
mod header;
mod header_digest;
pub mod info;
mod integrity_layer;
mod kdf;
mod keyslots;
mod lock;
pub mod luks1;
pub mod luks2;
pub mod plain;
mod random;
mod recovery;
pub mod reencrypt;
mod rekey;
mod repair;
mod settings;
pub mod signature;
mod storage;
pub mod table;
mod text;
mod unlock;
mod volume;

pub use backup::{Backup, Found, RestoreOptions};
pub use carried::Carried;
pub use check::{Check, Finding};
pub use cipher_parameters::CipherParameters;
pub use contents::ImageContents;
pub use dispatch::DispatchFlags;
pub use error::{Error, ErrorKind};
pub use format::{FormatOptions, NewHeader, NewIntegrity, Version, format};
pub use guards::{Guard, GuardRefusal, GuardRule, Guards};
pub use hash::Hash;
pub use header::Header;
pub use header_digest::{HeaderDigest, Pinned};
pub use info::Info;
pub use integrity_layer::IntegrityLayer;
pub use kdf::benchmark::{Cost, Pbkdf};
pub use kdf::{Argon2Variant, Kdf, KdfLimits, PbkdfKind, pbkdf2_marks};
pub use keyslots::{NewKeyslot, Priority, Replace};
pub use lock::{HeaderLock, LockTo, ReencryptionLock, is_header_locked};
pub use random::key as random_key;
pub use recovery::{is_recovery_key, recovery_key};
pub use rekey::{KeyCheck, Keyless};
pub use repair::repair;
pub use settings::{PersistentFlag, Settings};
pub use storage::new_file::{create_private, new_file, remove_new_file};
pub use storage::{ReadAt, Target};
pub use underseal_named_file::NamedFile;
pub use unlock::{ActivateOptions, UnlockOptions, Unlocked, VolumeKey};
pub use volume::{Segment, SegmentKind, Stored, Volume};

use text::printable;
use underseal_cipher::Key;

/// The result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;
