//! `underseal ecryptfs`.

mod mount;
mod tools;

use clap::{Args, Subcommand};

pub(crate) use mount::{MountArgs, MountPrivateArgs, ServeMountArgs, UmountArgs};
pub(crate) use tools::{
    HeaderPlace, NewPassphraseArgs, TreeAddKeyArgs, TreeCatArgs, TreeCheckArgs, TreeConvertArgs,
    TreeExportArgs, TreeImportArgs, TreeInfoArgs, TreeKeyArgs, TreeLsArgs, TreeNameArgs, TreeRemoveKeyArgs,
    TreeRenameArgs, TreeRewrapArgs, TreeUnwrapArgs, TreeWrapArgs,
};

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

const EXAMPLES: &str = "\
Examples:
  underseal ecryptfs mount ~/.Secret ~/Secret            asks for the passphrase
  underseal ecryptfs mount-private                       what ecryptfs-utils keeps in ~/.Private
  underseal ecryptfs umount ~/Secret
  underseal ecryptfs export ~/.Private recovered         without a mount, from any kernel's tree
  underseal ecryptfs rewrap ~/.Secret                    another passphrase; contents stay as they are";
