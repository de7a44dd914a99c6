//! The program under cryptsetup's name, beside the real one: what one does to an image the other
//! must have done too.
//!
//! ```text
//!   pair.rs      the same command to both, each with its own folder of images
//!   words.rs     statuses, refusals, and output
//!   volumes.rs   luksFormat; open, close and status on a mounted file system
//!   ends.rs      servers that end without `close`, and what they leave
//!   keyslots.rs  luksAddKey and its kin, and what the other program makes of the image afterwards
//!   key_files.rs passphrases and key files, from wherever they come
//!   headers.rs   backup, restore, convert, config, erase, tokens
//!   options.rs   which options each action takes
//!   reencrypt.rs each program resumes reencryptions of the other
//!   typed.rs     questions on a terminal
//!   drivers.rs   the command lines of drivers of Kubernetes volumes and of Ceph's tools
//! ```

mod drivers;
mod ends;
mod headers;
mod key_files;
mod keyslots;
mod options;
mod pair;
mod reencrypt;
mod typed;
mod volumes;
mod words;
