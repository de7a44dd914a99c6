//! `underseal ecryptfs`.

mod keys;
mod mount;
mod private;

use crate::cli::{Ecryptfs, EcryptfsArgs};
use crate::error::Result;

pub(super) fn run(args: &EcryptfsArgs, quiet: bool) -> Result<()> {
    match &args.what {
        Ecryptfs::Mount(args) => mount::run(args, quiet),
        Ecryptfs::MountPrivate(args) => private::run(args, quiet),
        Ecryptfs::Umount(args) => mount::unmount(args),
    }
}
