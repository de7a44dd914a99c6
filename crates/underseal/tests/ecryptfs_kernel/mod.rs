//! Trees that a real kernel's eCryptfs mounts, reads and writes, in a machine with a full kernel
//! (`../guest`).
//!
//! ```text
//!   mounts.rs   how trees are made: ciphers, plain or encrypted names, headers in files or xattrs
//!   tree.rs     a plain tree, compared with another
//!   both.rs     `underseal ecryptfs import` -> the kernel reads and writes -> `underseal ecryptfs
//!               export`; and the same with a tree that the kernel made
//!   changed.rs  other keys, other names and moved headers, as the kernel sees them
//!   through_mounts.rs   `underseal ecryptfs mount` writes -> the kernel reads and writes -> the
//!               mount reads
//!   long_names.rs   names of 144 to 255 bytes, which the kernel does not show and does not touch
//!   keys.py     puts a passphrase's keys into the guest's keyring
//! ```

mod both;
mod changed;
mod long_names;
mod mounts;
mod through_mounts;
pub(crate) mod tree;
