//! The program under cryptsetup's name, beside the real one: what one does to an image the other
//! must have done too.
//!
//! ```text
//!   pair.rs      the same command to both, each with its own folder of images
//!   words.rs     statuses, refusals, what is printed
//!   volumes.rs   luksFormat; open, close and status on a mounted file system
//!   keyslots.rs  luksAddKey and its kin, and what the other program makes of the image afterwards
//!   headers.rs   backup, restore, convert, config, erase, tokens
//!   options.rs   which options each action takes
//!   reencrypt.rs each goes on with what the other began
//!   typed.rs     questions on a terminal
//! ```

mod headers;
mod keyslots;
mod options;
mod pair;
mod reencrypt;
mod typed;
mod volumes;
mod words;
