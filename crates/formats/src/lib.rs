//! Encrypted volumes of other systems: header bytes and secrets in, segments out.
//!
//! ```text
//!   image (volume::ReadAt) --Format::detect--> Format        only formats with a mark
//!     |
//!     +-- tcrypt/    TrueCrypt, VeraCrypt   headers look like noise: search by trial decryption
//!     +-- bitlk/     BitLocker              metadata in three copies, protectors
//!     +-- fvault2/   FileVault 2            CoreStorage metadata, users
//!     +-- loopaes/   loop-AES               no header: a key file
//!     |
//!     v
//!   OpenedFormat     Volume (stored, zero, error segments), guarded ranges, write safety
//! ```
//!
//! | format | mark | cipher of the data | written |
//! | --- | --- | --- | --- |
//! | TrueCrypt, VeraCrypt | none | chains of one to three ciphers: XTS, LRW, CBC | as read; maker |
//! | BitLocker | `-FVE-FS-` and a GUID | AES-CBC, with Elephant, AES-XTS | finished volumes |
//! | FileVault 2 | `CS` and a CRC-32C | AES-128-XTS | finished volumes |
//! | loop-AES | none | AES-CBC, with LMK's IVs | yes |
//!
//! [`partition`] finds a volume in the image of a whole disk, and [`Window`] and [`moved`] present
//! the partition as a device.
//!
//! A format's module parses within [`fields`]' bounds, derives keys into locked memory, and builds
//! a [`Volume`](underseal_volume::Volume): every export serves that volume without knowing the
//! format.

#![forbid(unsafe_code)]

pub mod bitlk;
mod error;
mod facts;
pub mod fields;
mod format;
pub mod fvault2;
pub mod loopaes;
mod opened;
mod partitions;
mod plain_data_doubt;
pub mod tcrypt;
mod window;

pub use error::{Error, ErrorKind};
pub use facts::Facts;
pub use format::Format;
pub use opened::OpenedFormat;
pub use partitions::{Partition, partition, partitions};
pub use plain_data_doubt::PlainDataDoubt;
pub use window::{Window, moved};

/// The result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;
