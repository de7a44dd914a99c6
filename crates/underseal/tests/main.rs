//! The program as a whole, beside real clients, kernels and disks: one program of tests, a module
//! for each subject.
//!
//! ```text
//!   command  front  table  token    the command line, cryptsetup's, dm-crypt's tables, tokens
//!   control  host  reencrypt        an operator of one volume; a host with many; reencryption
//!   clients  fuse  vhost_user  ublk exports with real clients; ublk in a guest
//!   nbd_lower  rbd  faults          NBD servers and Ceph below; what goes wrong around a server
//!   ecryptfs_{tools,mount,power,kernel}   eCryptfs: tools, mounts, power cuts, beside the kernel's
//!   foreign                         TrueCrypt and VeraCrypt, BitLocker, FileVault 2, loop-AES
//!   hostile                         code that has taken a server over, in its sandbox
//!   dm                              Debian's cryptsetup and dmsetup over `underseal dm run`
//!   kernel                          dm-crypt and dm-integrity of a real kernel, in a guest
//!
//!   support   what all share: programs, scratch folders, volumes, servers, mounts
//!   guest     a machine with a kernel of its own, in software
//! ```
//!
//! A test's name begins with its subject: `cargo test -p underseal --test main control::` runs one
//! of them.

mod guest;
mod support;

mod clients;
mod command;
mod control;
mod dm;
mod ecryptfs_kernel;
mod ecryptfs_mount;
mod ecryptfs_power;
mod ecryptfs_tools;
mod faults;
mod foreign;
mod front;
mod fuse;
mod host;
// The registers that hostile code sets are this processor's.
#[cfg(target_arch = "x86_64")]
mod hostile;
mod kernel;
mod nbd_lower;
mod rbd;
mod reencrypt;
mod table;
mod token;
mod ublk;
mod vhost_user;
