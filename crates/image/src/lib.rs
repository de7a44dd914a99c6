//! Encrypted images for programs: opened, read and written at any byte, without root and without a
//! daemon.
//!
//! ```text
//!   OpenOptions --open(path | address | LowerDevice)--> Image    read_at, write_at, flush, discard
//!     options/  options by name, for other languages     |
//!     foreign/  VeraCrypt, BitLocker, ..                 |
//!   Header  keyslots, backup, info                       +-- sectors/   whole sectors, decrypted in
//!                                                        |              the caller's memory
//!                                                        +-- layer      tags of authenticated volumes
//!     new/        format                                 +-- lower      a file, an NBD or Ceph image,
//!     reencrypt/  in place, resumable                                   or a program's own device
//!   veracrypt   format_veracrypt
//!   one_process   connections and threads, which a child of a fork leaves alone
//! ```
//!
//! This crate is the public face of the workspace: its API holds no types but its own and those of
//! the standard library, and its error kinds and options may grow. The command, the Python module
//! and the C library lie on the same crates below.
//!
//! Make an image, open it and read it back:
//! ```
//! use underseal_image::{FormatOptions, Header, OpenOptions};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("disk.img");
//! std::fs::File::create_new(&path)?.set_len(32 << 20)?;
//! Header::format(&path, b"correct horse", &FormatOptions::luks2().pbkdf2(1000))?;
//!
//! let image = OpenOptions::new().passphrase(b"correct horse")?.writable(true).open(&path)?;
//! image.write_at(1_000_001, b"any byte")?;
//! image.flush()?;
//! let mut bytes = [0; 8];
//! assert_eq!(image.read_at(1_000_001, &mut bytes)?, 8);
//! assert_eq!((&bytes, image.size()), (b"any byte", 16 << 20));
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod error;
mod file_lock;
mod foreign;
mod header;
mod image;
mod layer;
mod lower;
mod new;
mod one_process;
mod open;
mod options;
mod reencrypt;
mod sectors;
mod setters;
mod traces;
mod turn;
mod veracrypt;

pub use error::{Error, ErrorKind};
pub use foreign::TcryptOptions;
pub use header::{Header, KeyslotOptions, VolumeKey, info_json, info_json_file, info_json_on};
pub use image::{Image, Segment};
pub use lower::LowerDevice;
pub use new::FormatOptions;
pub use open::OpenOptions;
pub use reencrypt::{ReencryptionEnd, ReencryptionOptions};
pub use veracrypt::{Formatted, VeracryptOptions, format_veracrypt};

/// Keeps this process's memory out of core dumps, and away from debuggers and other processes of
/// the same user. For programs that hold other secrets too: a core dump has no pages of this
/// crate's keys, and the traces of its calls in registers and on the stack are wiped, but the
/// plaintext and a passphrase in the program's memory are dumped.
///
/// # Errors
/// `Io`. Steps that do not fail are done.
pub fn protect_process() -> Result<()> {
    let done = underseal_cipher::protect_process();
    done.map_err(|e| Error::new(ErrorKind::Io, "the process's memory is not protected").with_source(e))
}

/// The result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;
