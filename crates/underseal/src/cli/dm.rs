//! `underseal dm`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Gives programs a device mapper where the kernel has none: cryptsetup, dmsetup and others run as
/// they are.
///
/// The command that is run, and all that it starts, find /dev/mapper/control. What they load there
/// (crypt, integrity, linear, zero and error tables) is served by Underseal, and shown as a loop
/// device under /dev/mapper. Devices stay when the command has ended, until they are removed as
/// ever (`cryptsetup close`). Root only.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DmArgs {
    #[command(subcommand)]
    pub(crate) what: Dm,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Dm {
    Run(DmRunArgs),
    Shell(DmShellArgs),
    #[command(hide = true)]
    Serve(DmServeArgs),
    /// Serves one table, for the back end
    #[command(hide = true)]
    TableServer,
}

/// Runs a command that sees a device mapper
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DmRunArgs {
    /// Say what works on this machine and what cannot, and run nothing
    #[arg(long)]
    pub(crate) explain: bool,
    #[command(flatten)]
    pub(crate) how: DmHowArgs,
    /// The command and its arguments
    #[arg(required_unless_present = "explain", trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Runs a shell that sees a device mapper
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DmShellArgs {
    #[command(flatten)]
    pub(crate) how: DmHowArgs,
}

/// Serves devices to commands; `dm run` starts it where it does not run
#[derive(Debug, Args)]
pub(crate) struct DmServeArgs {
    #[command(flatten)]
    pub(crate) how: DmHowArgs,
}

/// Where the back end is.
#[derive(Debug, Args)]
pub(crate) struct DmHowArgs {
    /// The back end's folder: its socket, its log, the tables' files. Another folder is another
    /// device mapper
    #[arg(long, value_name = "DIR", default_value = "/run/underseal/dm")]
    pub(crate) folder: PathBuf,
}

const EXAMPLES: &str = "Examples:
  underseal dm run cryptsetup open disk.img plain
  underseal dm run sh -c 'cryptsetup luksFormat disk.img && cryptsetup open disk.img plain'
  mkfs.ext4 /dev/mapper/plain && mount /dev/mapper/plain /mnt
  underseal dm run dmsetup ls
  underseal dm shell
  underseal dm run --explain";
