//! Volumes that a real kernel's dm-crypt opens, reads and writes, and cryptsetup formats, in a
//! machine with a full kernel (`../guest`).
//!
//! ```text
//!   tables.rs  what volumes are made: some always, more at random
//!   patches.rs what the other side writes at random places, and what must be there afterwards
//!   ours.rs    underseal format, write -> cryptsetup open, kernel reads and writes -> underseal read
//!   lines.rs   dm-crypt's own table lines: dmsetup and `underseal table` on one device, both ways;
//!              what a newer kernel takes runs in a machine of ../ublk
//!   life.rs    keyslots and headers that change -> cryptsetup open, kernel reads
//!   authenticated.rs  volumes with integrity, LUKS2 and alone, both ways
//!   journal.rs journals that are encrypted and have a MAC, data on a second device, both ways
//!   theirs.rs  cryptsetup format, kernel writes, mkfs.ext4 -> underseal read, write, open ->
//!              kernel reads
//! ```

mod authenticated;
mod journal;
mod life;
pub(crate) mod lines;
mod ours;
mod patches;
mod tables;
mod theirs;
