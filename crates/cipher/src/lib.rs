//! Sectors in, sectors out.
//!
//! The unit of work is the **whole request**: one call encrypts or decrypts a run of consecutive
//! sectors, in place or from one buffer to another. No I/O and no threads happen here.
//!
//! ```text
//!   CipherSpec ("aes-xts-plain64") + Key + SectorSize
//!        |  build()
//!        v
//!   dyn SectorCipher                      one call = one request
//!        |
//!        +-- mode/    xts, cbc, ..        chains blocks inside each sector, many sectors at a time
//!        +-- aead/    gcm, authenc, ..    modes with a tag for each sector, and stored IVs
//!        +-- mac/     hmac, cmac          MACs of many sectors at a time
//!        +-- iv/      plain64, essiv, ..  the IVs of all those sectors, made together
//!        +-- kernel/  aes, serpent, ..    vector code, on the path that `cpu` picked
//!        +-- build/   camellia, ..        names of ciphers and modes; block ciphers from libraries
//!        +-- chain    several ciphers in turn over each sector: VeraCrypt's cascades
//! ```
//!
//! The tuples of sectors (tags, random IVs) travel with the data through [`SectorCipher::seal`] and
//! [`SectorCipher::open`]; their place on a device does not concern this crate.
//!
//! Sector numbers are dm-crypt's: 512-byte units whatever the sector size, with the IV offset
//! added.

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the vector code is written for x86-64 and aarch64; this target has neither");

mod aead;
mod block;
mod build;
mod chain;
mod cpu;
mod error;
mod integrity;
mod iv;
mod kernel;
mod key;
mod locked;
mod mac;
mod mode;
mod sector;
mod shared;
mod spec;
mod wipe;

pub use build::{
    BuildOptions, EcbCipher, authentication, build, build_extents, build_outer_cbc, build_truecrypt_lrw,
    build_with, chain, key_sizes, weak_key,
};
pub use cipher::inout::InOutBuf;
pub use cpu::CpuPath;
pub use error::{Error, ErrorKind};
pub use integrity::{Authentication, Integrity, IntegrityKind};
pub use kernel::sha256_chain;
pub use key::Key;
pub use locked::{Locked, protect_process, when_not_locked};
pub use mac::BlockHmac;
pub use sector::{BadSector, SectorCipher, SectorSize};
pub use shared::{SharedDestination, SharedSource};
pub use spec::CipherSpec;
pub use wipe::wipe_traces;

/// The result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;
