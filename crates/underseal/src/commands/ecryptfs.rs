//! `underseal ecryptfs`.

mod access;
mod change;
mod copy;
mod keys;
mod look;
mod mount;
mod private;
mod report;
mod wrap;

use crate::cli::{Ecryptfs, EcryptfsArgs};
use crate::error::Result;

pub(super) fn run(args: &EcryptfsArgs, quiet: bool) -> Result<()> {
    match &args.what {
        Ecryptfs::Mount(args) => mount::run(args, quiet),
        Ecryptfs::MountPrivate(args) => private::run(args, quiet),
        Ecryptfs::Umount(args) => mount::unmount(args),
        Ecryptfs::Info(args) => look::info(args, quiet),
        Ecryptfs::Ls(args) => look::ls(args, quiet),
        Ecryptfs::Cat(args) => look::cat(args),
        Ecryptfs::Export(args) => copy::export(args, quiet),
        Ecryptfs::Import(args) => copy::import(args, quiet),
        Ecryptfs::Check(args) => look::check(args, quiet),
        Ecryptfs::Rewrap(args) => change::rewrap(args, quiet),
        Ecryptfs::AddKey(args) => change::add_key(&args.same, quiet),
        Ecryptfs::RemoveKey(args) => change::remove_key(args, quiet),
        Ecryptfs::RenameTree(args) => change::rename_tree(args, quiet),
        Ecryptfs::Convert(args) => change::convert(args, quiet),
        Ecryptfs::Name(args) => look::name(args),
        Ecryptfs::Wrap(args) => wrap::wrap(args),
        Ecryptfs::Unwrap(args) => wrap::unwrap(args),
    }
}
