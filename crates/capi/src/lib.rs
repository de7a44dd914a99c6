//! libunderseal: encrypted images from C, over [`underseal_image`].
//!
//! A program makes a handle, sets the image's address (`underseal_set_path`, `_fd`, `_callbacks`),
//! unlocks it once, and then reads and writes at any byte. Every function returns 0 or -errno;
//! `underseal_error` has the text of a handle's last failure. `include/underseal.h` is the
//! contract.
//!
//! ```text
//!   underseal.h  --  handle.rs (options, image, last error)     edge.rs (pointers, panics, -errno)
//!                    callbacks.rs (a C program's lower device)  header.rs (keyslots)
//!                    lower.rs (path, file or callbacks)         reencrypt.rs (closed volumes)
//!                    inside.rs (callbacks that use their handle)  last_error.rs (its text)
//! ```
//!
//! No panic leaves the library: a panic is -EIO with its text. Threads may share an unlocked handle
//! for reading, writing and flushing; set-up, unlocking and freeing belong to one thread.

#![deny(unsafe_code)]

mod callbacks;
mod edge;
mod handle;
mod header;
mod inside;
mod last_error;
mod lower;
mod reencrypt;
