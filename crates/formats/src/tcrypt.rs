//! TrueCrypt and VeraCrypt: volumes whose headers look like noise.
//!
//! ```text
//!   passphrase, key files --Password--> bytes             pool.rs
//!        bytes, PIM, header salt --Prf--> header keys     prf.rs, search.rs: several threads
//!        header keys, Chain --> decrypted header          chain.rs: XTS, LRW, CBC; header.rs
//!        header, Place, image size --> OpenedFormat       place.rs, layout.rs: offsets
//!
//!   unlock.rs      the search over the places of one image
//!   make.rs        headers that are written: new volumes, other passphrases
//! ```
//!
//! No plaintext tells which key derivation, which ciphers and which mode a header has: all
//! combinations are tried.

mod chain;
mod header;
mod layout;
mod make;
mod place;
mod pool;
mod prf;
mod search;
mod unlock;

pub use chain::{Chain, ChainFilter, Mode};
pub use header::{Header, Program};
pub use make::{BACKUP_FILE, LEAST, NewHeaders, NewOptions, backup_file};
pub use place::Place;
pub use pool::{KeyFiles, Password};
pub use prf::{Derivation, Pim, Prf};
pub use unlock::{UnlockOptions, Unlocked, unlock};

/// Bytes of a header that count.
const HEADER: usize = 512;
/// Bytes of the salt before the encrypted part.
const SALT: usize = 64;
/// Bytes of the header's encrypted part.
const SEALED: usize = HEADER - SALT;
/// Bytes of the key area at the header's end.
const KEYS: usize = 256;
