//! `underseal ecryptfs mount`, `mount-private`, `umount`.

use std::path::PathBuf;

use clap::Args;

/// Mounts the plain files of an encrypted folder, without root
///
/// Runs until it is unmounted, or until SIGINT or SIGTERM, which unmount it. Passphrases are asked
/// for on the terminal unless --passphrase-file or --passphrase-fd says where they are, or the
/// option key=passphrase:.. does. A passphrase that opens none of the existing files is refused,
/// unless ecryptfs_sig names its key. No other program may write to the encrypted files meanwhile:
/// a second mount, and tools that write, are refused.
#[derive(Debug, Args)]
#[command(after_help = MOUNT_EXAMPLES)]
pub(crate) struct MountArgs {
    /// The folder with the encrypted files
    pub(crate) lower: PathBuf,
    /// The folder to mount on
    pub(crate) mountpoint: PathBuf,
    /// Options, separated by commas: those of the kernel's eCryptfs and of its mount helper by
    /// their names; ro, nosuid, nodev, noexec, noatime, sync; allow_other or allow_root; strict
    /// (the default: an extent that is missing is an error) or no_strict (zeros); policy=inline,
    /// workers or adaptive (the default): who encrypts and decrypts large requests; long_names:
    /// encrypted names may have 144 to 255 bytes, too, which the kernel does not show
    #[arg(short, long, value_name = "OPTIONS")]
    pub(crate) options: Vec<String>,
    /// A passphrase is the first line of this file; may be repeated, for several keys
    #[arg(long, value_name = "FILE")]
    pub(crate) passphrase_file: Vec<PathBuf>,
    /// A passphrase is the first line from this open descriptor (0 is stdin); may be repeated
    #[arg(long, value_name = "N")]
    pub(crate) passphrase_fd: Vec<u32>,
    #[command(flatten)]
    pub(crate) serve: ServeMountArgs,
}

/// Mounts ~/.Private as ecryptfs-utils has set it up in ~/.ecryptfs
///
/// The passphrase is the login's, which opens ~/.ecryptfs/wrapped-passphrase. The home folder must
/// be the caller's own.
#[derive(Debug, Args)]
#[command(after_help = PRIVATE_EXAMPLES)]
pub(crate) struct MountPrivateArgs {
    /// The home folder; by default yours
    #[arg(long, value_name = "DIR")]
    pub(crate) home: Option<PathBuf>,
    /// The folder to mount on; by default the one in ~/.ecryptfs/Private.mnt
    #[arg(long, value_name = "DIR")]
    pub(crate) mountpoint: Option<PathBuf>,
    /// More options, as for `mount`
    #[arg(short, long, value_name = "OPTIONS")]
    pub(crate) options: Vec<String>,
    /// The login passphrase is the first line of this file
    #[arg(long, value_name = "FILE", group = "secret")]
    pub(crate) passphrase_file: Option<PathBuf>,
    /// The login passphrase is the first line from this open descriptor (0 is stdin)
    #[arg(long, value_name = "N", group = "secret")]
    pub(crate) passphrase_fd: Option<u32>,
    #[command(flatten)]
    pub(crate) serve: ServeMountArgs,
}

/// The options of the process.
#[derive(Debug, Args)]
pub(crate) struct ServeMountArgs {
    /// Threads that take requests; growth, cuts and fsync have eight of their own
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: u16,
    /// Take requests through /dev/fuse, even where the kernel offers io_uring for them (Linux 6.14,
    /// the setting fuse.enable_uring)
    #[arg(long)]
    pub(crate) no_io_uring: bool,
    /// Continue in the background once it is mounted
    #[arg(long, help_heading = PROCESS)]
    pub(crate) daemon: bool,
    /// Write the process's number there, and remove the file at the end
    #[arg(long, value_name = "FILE", help_heading = PROCESS)]
    pub(crate) pid_file: Option<PathBuf>,
    /// Append messages to this file, which in the background is opened anew on SIGHUP; by default
    /// they go to stderr, in the background to syslog
    #[arg(long, value_name = "FILE", help_heading = PROCESS)]
    pub(crate) log_file: Option<PathBuf>,
    /// Keep all privileges while serving: capabilities, files, system calls. For a machine where
    /// the sandbox is in the way of something
    #[arg(long, help_heading = PROCESS)]
    pub(crate) no_sandbox: bool,
}

/// Unmounts what `mount` has mounted, as `fusermount3 -u`
#[derive(Debug, Args)]
#[command(after_help = UMOUNT_EXAMPLES)]
pub(crate) struct UmountArgs {
    /// Where it is mounted
    pub(crate) mountpoint: PathBuf,
    /// Detach the mount at once, even if it is in use; open files stay usable
    #[arg(short = 'z', long)]
    pub(crate) lazy: bool,
}

const PROCESS: &str = "Process";

const MOUNT_EXAMPLES: &str = "\
Examples:
  underseal ecryptfs mount ~/.Secret ~/Secret
  underseal ecryptfs mount ~/.Secret ~/Secret -o ecryptfs_enable_filename_crypto --daemon
  underseal ecryptfs mount lower plain -o ecryptfs_sig=d395309aaad4de06,ecryptfs_fnek_sig=be877764c5918621,ro
  underseal ecryptfs mount lower plain -o ecryptfs_cipher=aes,ecryptfs_key_bytes=32 --passphrase-fd 0 < secret";

const PRIVATE_EXAMPLES: &str = "\
Examples:
  underseal ecryptfs mount-private
  underseal ecryptfs mount-private --daemon -o allow_root";

const UMOUNT_EXAMPLES: &str = "\
Examples:
  underseal ecryptfs umount ~/Secret";
