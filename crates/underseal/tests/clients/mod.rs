//! Real clients of `underseal open`, and other programs on the images that we make and we on
//! theirs.
//!
//! ```text
//!   fio.rs         fio's nbd engine: random writes on several connections, read back and verified
//!   libnbd.rs      nbdcopy, nbdkit's nbd plugin, and libnbd from Python (libnbd.py)
//!   qemu.rs        qemu-io and qemu-img against the server
//!   images.rs      LUKS images between us, qemu, nbdkit's luks filter and cryptsetup reencrypt
//!   filesystems.rs ext4 and xfs on the served volume, through nbdfuse and a loop device
//! ```

mod filesystems;
mod fio;
mod images;
mod libnbd;
mod qemu;
