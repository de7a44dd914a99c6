//! `underseal dm`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Gives programs a device mapper where the kernel has none: cryptsetup, dmsetup and others run as
/// they are.
///
/// The command that is run, and all that it starts, find /dev/mapper/control. What they load there
/// (crypt, integrity, verity, linear, striped, zero, error and delay tables) is served by
/// Underseal, and shown as a loop device under /dev/mapper. Devices stay when the command has
/// ended, until they are removed as ever (`cryptsetup close`). Root only.
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
    Install(DmInstallArgs),
    Uninstall(DmUninstallArgs),
    #[command(hide = true)]
    Serve(DmServeArgs),
    /// Serves one table, for the back end
    #[command(hide = true)]
    TableServer,
    /// Makes system calls that may hang, for the back end
    #[command(hide = true)]
    SyscallHelpers(DmApartArgs),
    /// Answers system calls of the commands that are run with it
    #[command(hide = true)]
    Supervisor(DmShellArgs),
}

/// How a process apart is.
#[derive(Debug, Args)]
pub(crate) struct DmApartArgs {
    /// Stay in memory, for devices that carry the disk of this program
    #[arg(long)]
    pub(crate) lock: bool,
}

/// Runs a command that sees a device mapper
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DmRunArgs {
    /// Say what works on this machine and what cannot, and run nothing
    #[arg(long)]
    pub(crate) explain: bool,
    /// Answer system calls by a supervisor that the kernel asks, in place of the preloaded library:
    /// for static programs and those in Go. Opening files takes longer; keys are digits only
    #[arg(long)]
    pub(crate) supervise: bool,
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

/// Gives a whole machine the device mapper: units of systemd's and root's shells
///
/// It writes a service that starts the back end at boot, drop-ins for the units of /etc/crypttab,
/// /etc/integritytab and /etc/veritytab and for systemd-homed.service, a rule for udev, and a file
/// in /etc/profile.d for root's shells. It changes no file that it has not written, and starts
/// nothing.
#[derive(Debug, Args)]
#[command(after_help = INSTALL_EXAMPLES)]
pub(crate) struct DmInstallArgs {
    /// The machine's root folder, as for an image that is built
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub(crate) root: PathBuf,
    #[command(flatten)]
    pub(crate) how: DmHowArgs,
    /// Also where the kernel has a device mapper, whose devices programs do not see any more
    #[arg(long)]
    pub(crate) force: bool,
}

/// Takes back what `dm install` has written
///
/// A file that was changed since then stays, and is named. Devices that are open stay open.
#[derive(Debug, Args)]
#[command(after_help = INSTALL_EXAMPLES)]
pub(crate) struct DmUninstallArgs {
    /// The machine's root folder
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub(crate) root: PathBuf,
}

const INSTALL_EXAMPLES: &str = "Examples:
  underseal dm install && systemctl daemon-reload && systemctl start underseal-dm
  underseal dm install --root /mnt/image
  underseal dm uninstall";

/// Serves devices to commands; `dm run` starts it where it does not run
#[derive(Debug, Args)]
pub(crate) struct DmServeArgs {
    /// Stay also without devices and callers
    #[arg(long)]
    pub(crate) stay: bool,
    #[command(flatten)]
    pub(crate) how: DmHowArgs,
}

/// The back end's folder.
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
  underseal dm run --supervise ./static-program
  underseal dm shell
  underseal dm run --explain";
