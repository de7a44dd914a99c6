//! `underseal ecryptfs`.

mod access;
mod change;
mod check;
mod copy;
mod info;
mod keys;
mod look;
mod mount;
mod private;
mod report;
mod wrap;

use clap::{Args, Subcommand};

use self::change::{TreeAddKeyArgs, TreeConvertArgs, TreeRemoveKeyArgs, TreeRenameArgs, TreeRewrapArgs};
use self::check::TreeCheckArgs;
use self::copy::{TreeExportArgs, TreeImportArgs};
use self::info::TreeInfoArgs;
use self::look::{TreeCatArgs, TreeLsArgs, TreeNameArgs};
use self::mount::{MountArgs, UmountArgs};
use self::private::MountPrivateArgs;
use self::wrap::{TreeUnwrapArgs, TreeWrapArgs};
use crate::error::Result;

/// Works with eCryptfs: folders whose files are encrypted one by one.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct EcryptfsArgs {
    #[command(subcommand)]
    pub(crate) what: Ecryptfs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Ecryptfs {
    Mount(Box<MountArgs>),
    MountPrivate(MountPrivateArgs),
    Umount(UmountArgs),
    Info(TreeInfoArgs),
    Ls(TreeLsArgs),
    Cat(TreeCatArgs),
    Export(TreeExportArgs),
    Import(TreeImportArgs),
    Check(TreeCheckArgs),
    Rewrap(TreeRewrapArgs),
    AddKey(TreeAddKeyArgs),
    RemoveKey(TreeRemoveKeyArgs),
    RenameTree(TreeRenameArgs),
    Convert(TreeConvertArgs),
    Name(TreeNameArgs),
    Wrap(TreeWrapArgs),
    Unwrap(TreeUnwrapArgs),
}

pub(super) fn run(args: &EcryptfsArgs, quiet: bool) -> Result<()> {
    match &args.what {
        Ecryptfs::Mount(args) => mount::run(args, quiet),
        Ecryptfs::MountPrivate(args) => private::run(args, quiet),
        Ecryptfs::Umount(args) => mount::unmount(args),
        Ecryptfs::Info(args) => info::run(args, quiet),
        Ecryptfs::Ls(args) => look::ls(args, quiet),
        Ecryptfs::Cat(args) => look::cat(args),
        Ecryptfs::Export(args) => copy::export(args, quiet),
        Ecryptfs::Import(args) => copy::import(args, quiet),
        Ecryptfs::Check(args) => check::run(args, quiet),
        Ecryptfs::Rewrap(args) => change::rewrap(args, quiet),
        Ecryptfs::AddKey(args) => change::add_key(args, quiet),
        Ecryptfs::RemoveKey(args) => change::remove_key(args, quiet),
        Ecryptfs::RenameTree(args) => change::rename_tree(args, quiet),
        Ecryptfs::Convert(args) => change::convert(args, quiet),
        Ecryptfs::Name(args) => look::name(args),
        Ecryptfs::Wrap(args) => wrap::wrap(args),
        Ecryptfs::Unwrap(args) => wrap::unwrap(args),
    }
}

const EXAMPLES: &str = "\
Examples:
  underseal ecryptfs mount ~/.Secret ~/Secret            asks for the passphrase
  underseal ecryptfs mount-private                       what ecryptfs-utils keeps in ~/.Private
  underseal ecryptfs umount ~/Secret
  underseal ecryptfs export ~/.Private recovered         without a mount, from any kernel's tree
  underseal ecryptfs rewrap ~/.Secret                    another passphrase; contents stay as they are";
