//! `underseal ecryptfs`.

mod mount;

use clap::{Args, Subcommand};

pub(crate) use mount::{MountArgs, MountPrivateArgs, ServeMountArgs, UmountArgs};

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
}

const EXAMPLES: &str = "\
Examples:
  underseal ecryptfs mount ~/.Secret ~/Secret            asks for the passphrase
  underseal ecryptfs mount-private                       what ecryptfs-utils keeps in ~/.Private
  underseal ecryptfs umount ~/Secret";
