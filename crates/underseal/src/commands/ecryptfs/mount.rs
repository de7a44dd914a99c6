//! `underseal ecryptfs mount` and `umount`.

mod ending;

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use clap::Args;
use rustix::io::Errno;
use underseal_cipher::Key;
use underseal_ecryptfs::fs::{self, Allow, Crypto, CryptoPolicy, LowerFolder, Mount, MountConfig, Sealing};
use underseal_ecryptfs::options::EcryptfsOptions;
use underseal_ecryptfs::{Cipher, HeaderLocation};
use underseal_fuse::Point;
use underseal_sandbox::{Helper, Needs, OfMount, Rings};

use self::ending::MountEnding;
use super::keys;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::print;
use crate::pid_file::PidFile;
use crate::{daemon, descriptors, logging, signals};

/// The options of a mount: eCryptfs's, and those of this program only.
#[derive(Debug)]
pub(super) struct MountOptions {
    pub(super) ecryptfs: EcryptfsOptions,
    allow: Option<Allow>,
    strict: bool,
    policy: CryptoPolicy,
}

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

pub(super) fn run(args: &MountArgs, quiet: bool) -> Result<()> {
    let options = MountOptions::parse(&args.options)?;
    let sealing = |lower: &LowerFolder| keys::sealing(args, lower, &options, quiet);
    serve(&args.serve, &args.lower, &args.mountpoint, &options, quiet, sealing)
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

pub(super) fn unmount(args: &UmountArgs) -> Result<()> {
    let path = std::path::absolute(&args.mountpoint)
        .map_err(|e| Error::io(&args.mountpoint, "cannot unmount", e))?;
    fs::unmount(&path, args.lazy).map_err(|e| {
        let error = |exit| Error::new(exit, format!("cannot unmount {}", path.display())).because(&e);
        match Errno::from_io_error(&e) {
            Some(Errno::BUSY) => error(Exit::InUse).with_remedy("`fuser -m PATH` tells who uses it; --lazy"),
            Some(Errno::INVAL | Errno::NOENT) => refused_there(&path),
            _ => Error::io(&path, "cannot be unmounted", e),
        }
    })
}

/// Explains why nothing was unmounted at a path without an eCryptfs mount of this program.
fn refused_there(path: &Path) -> Error {
    let what = match fs::MountEntry::at(path) {
        Ok(Some(fs::MountEntry { kind, .. })) => {
            format!("cannot unmount {}: a {kind} is mounted there", path.display())
        }
        _ => format!("cannot unmount {}: nothing is mounted there", path.display()),
    };
    Error::usage(what)
        .with_remedy("the folder that `underseal ecryptfs mount` mounted on; `umount` for others")
}

impl MountOptions {
    pub(super) fn parse(lists: &[String]) -> Result<Self> {
        let (mut allow, mut strict, mut policy, mut rest) = (None, true, CryptoPolicy::default(), Vec::new());
        for option in lists.iter().flat_map(|list| list.split(',')).map(str::trim) {
            match option {
                "allow_other" => allow = Some(Allow::Other),
                "allow_root" => allow = Some(Allow::Root),
                "strict" => strict = true,
                "no_strict" => strict = false,
                policy_is if policy_is.starts_with("policy=") => {
                    policy = policy_is["policy=".len()..].parse()?
                }
                // This option is always in force.
                "default_permissions" => {}
                other => rest.push(other),
            }
        }
        Ok(Self { ecryptfs: EcryptfsOptions::parse(&rest.join(","))?, allow, strict, policy })
    }

    pub(super) fn sealing(&self, passphrases: &[Key]) -> Result<Sealing> {
        let options = &self.ecryptfs;
        let (keys, names) = keys::keys(passphrases, options)?;
        Ok(Sealing {
            keys,
            cipher: options.cipher_or(Cipher::DEFAULT)?,
            crypto: Crypto::new(self.policy),
            names,
            long_names: options.long_names,
            place: if options.xattr_metadata { HeaderLocation::Xattr } else { HeaderLocation::File },
            passthrough: options.passthrough,
            encrypted_view: options.encrypted_view,
            strict: self.strict,
        })
    }
}

/// Mounts, and serves until the end.
pub(super) fn serve(
    args: &ServeMountArgs,
    lower: &Path,
    mountpoint: &Path,
    options: &MountOptions,
    quiet: bool,
    sealing: impl FnOnce(&LowerFolder) -> Result<Sealing>,
) -> Result<()> {
    let failed = |folder: &Path, e: io::Error| match Errno::from_io_error(&e) {
        Some(Errno::NOTCONN) => Error::io(folder, "what was mounted there has ended", e)
            .with_remedy("`underseal ecryptfs umount PATH` first"),
        Some(Errno::NOTDIR) => Error::usage(format!("{}: not a folder", folder.display())),
        _ => Error::io(folder, "cannot be mounted", e),
    };
    let open_lower = || LowerFolder::open(lower).map_err(|e| failed(lower, e));
    open_lower()?;
    let about = std::fs::metadata(mountpoint).map_err(|e| failed(mountpoint, e))?;
    if !about.is_dir() {
        return Err(failed(mountpoint, Errno::NOTDIR.into()));
    }
    // The fork comes before any thread or key exists: see `daemon`.
    let child = if args.daemon { Some(daemon::fork()?) } else { None };
    if let Some(path) = &args.log_file {
        logging::to_file(path)?;
    }
    // A daemon closes what was opened before the fork.
    let below = open_lower()?;
    let point = Point::open(mountpoint).map_err(|e| Error::io(mountpoint, "cannot be mounted", e))?;
    if !args.no_sandbox {
        // The helper is started before any thread or key exists.
        let answer = point.answers();
        // The server has a private mount of the folder, so the helper keeps the lower folder from
        // being unmounted.
        let folder = point.descriptors()[0];
        Helper::start(Some(OfMount { answer: &answer, keeps: &[folder, below.as_fd()] }), None)
            .map_err(|e| Error::new(Exit::Failed, "no process to unmount with").because(&e))?;
        if args.daemon {
            logging::will_reopen();
        }
    }
    drop(point);
    let sealing = sealing(&below)?;
    let taken = signals::take(signals::ENDING)
        .map_err(|e| Error::new(Exit::Failed, "cannot wait for signals").because(&e))?;
    let config = MountConfig {
        threads: args.threads.into(),
        read_only: options.ecryptfs.read_only,
        allow: options.allow,
        others: options.ecryptfs.others.clone(),
        own_tree: !args.no_sandbox,
        io_uring: !args.no_io_uring,
    };
    let mount = Mount::new(below, mountpoint, Some(sealing), &config)?;
    let unmounter = mount.unmounter();
    let pid_file = args.pid_file.as_deref().map(PidFile::write).transpose()?;
    let pid_file = Arc::new(Mutex::new(pid_file));
    if !args.daemon {
        descriptors::close_folders();
    }
    if !args.no_sandbox {
        let devices = config.others.iter().any(|option| option == "dev");
        // The mount's rings exist by now, and are restricted.
        let rings = if mount.is_over_io_uring() { Rings::There } else { Rings::None };
        let (tree, root) = (Some(mount.tree()), mount.root());
        underseal_sandbox::enter(&Needs { tree, root, devices, rings, ..Needs::default() });
    }
    if !quiet {
        print(&format!("{} is mounted on {}\n", lower.display(), mountpoint.display()))?;
    }
    if let Some(child) = child {
        if args.log_file.is_none() {
            logging::to_syslog();
        }
        child.detach()?;
    }
    // The thread ends with the process: after the unmount no work is left.
    let shown = std::path::absolute(mountpoint).unwrap_or_else(|_| mountpoint.to_owned());
    let ending = MountEnding::new(unmounter, shown.display().to_string(), pid_file.clone());
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || ending.upon(&taken))
        .map_err(|e| Error::new(Exit::Failed, "cannot wait for signals").because(&e))?;
    let ended = mount.run();
    ending::remove(&pid_file);
    Ok(ended?)
}

const PROCESS: &str = "Process";

const MOUNT_EXAMPLES: &str = "\
Examples:
  underseal ecryptfs mount ~/.Secret ~/Secret
  underseal ecryptfs mount ~/.Secret ~/Secret -o ecryptfs_enable_filename_crypto --daemon
  underseal ecryptfs mount lower plain -o ecryptfs_sig=d395309aaad4de06,ecryptfs_fnek_sig=be877764c5918621,ro
  underseal ecryptfs mount lower plain -o ecryptfs_cipher=aes,ecryptfs_key_bytes=32 --passphrase-fd 0 < secret";

const UMOUNT_EXAMPLES: &str = "\
Examples:
  underseal ecryptfs umount ~/Secret";
