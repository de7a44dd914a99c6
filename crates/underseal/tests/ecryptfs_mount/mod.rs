//! `underseal ecryptfs mount`: the plain files of an encrypted folder, used by real programs.
//!
//! ```text
//!   mounted.rs   the server of a mount, waited for, stopped, killed
//!   vectors.rs   trees that the kernel wrote, read through the mount
//!   posix.rs     names, links, modes, xattrs, ACLs, times, unlinked files, temporary files
//!   contents.rs  writes, cuts and reads at random beside a plain file; fio; a tree of files
//!   begun_writes.rs  writes below that have begun, and not ended, when a file is opened
//!   changed_below.rs files replaced below between the kernel's look and its request
//!   other_mounts.rs  two mounts of one folder; open files whose lower names change
//!   pages.rs     the kernel's pages: writers beside those who open and ask, lower files that are changed
//!   options.rs   ciphers, names, headers in xattrs, several keys, plain files, the encrypted view
//!   long_names.rs   names of 144 to 255 bytes, and what may be left over of them
//!   damage.rs    missing keys, damaged or missing headers and extents, lower folders that change
//!   alone.rs     one writer a tree: second mounts, tools, folders in a mounted one
//!   typed.rs     passphrases that were mistyped, on a terminal and from files
//!   growth.rs    files that grow long: a disk that is full, a program that is killed meanwhile
//!   process.rs   what the process leaves: its start folder, its number, mounts elsewhere
//!   ending.rs    signals while files are open, and the mount is covered, moved or unmounted
//!   swaps.rs     lower folders and mounts that are replaced while a command uses them
//!   limits.rs    limits of files' sizes that end inside of an extent
//!   over.rs      mounted over the lower folder itself
//!   lost_names.rs    files that lose names below which the kernel still knows
//!   lost_writes.rs   a disk that loses bytes after they were written
//!   crash.rs     killed in the middle of writes
//!   users.rs     mounted by a user, by root for users; ecryptfs-utils's ~/.Private
//! ```
//!
//! scripts/posix-tests runs pjdfstest and fsx on such a mount.

mod alone;
mod begun_writes;
mod changed_below;
mod contents;
mod crash;
mod damage;
mod ending;
mod growth;
mod limits;
mod long_names;
mod lost_names;
mod lost_writes;
pub(crate) mod mounted;
mod options;
mod other_mounts;
mod over;
mod pages;
mod posix;
mod process;
mod swaps;
mod typed;
mod users;
mod vectors;
