//! `underseal ecryptfs mount` and `umount`.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::io::Errno;
use underseal_cipher::Key;
use underseal_ecryptfs::fs::{
    self, Allow, Crypto, CryptoPolicy, LowerFolder, Mount, MountConfig, Sealing, Unmounter,
};
use underseal_ecryptfs::options::EcryptfsOptions;
use underseal_ecryptfs::{Cipher, HeaderLocation};
use underseal_fuse::Point;
use underseal_sandbox::{Helper, Needs, OfMount, Rings, will_open_log};

use super::keys;
use crate::cli::{MountArgs, ServeMountArgs, UmountArgs};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::print;
use crate::pid_file::PidFile;
use crate::signals::Woken;
use crate::{daemon, logging, signals};

/// The options of a mount: eCryptfs's, and those of this program only.
#[derive(Debug)]
pub(super) struct MountOptions {
    pub(super) ecryptfs: EcryptfsOptions,
    allow: Option<Allow>,
    strict: bool,
    policy: CryptoPolicy,
}

pub(super) fn run(args: &MountArgs, quiet: bool) -> Result<()> {
    let options = MountOptions::parse(&args.options)?;
    let sealing = || keys::sealing(args, &options, quiet);
    serve(&args.serve, &args.lower, &args.mountpoint, &options, quiet, sealing)
}

pub(super) fn unmount(args: &UmountArgs) -> Result<()> {
    let path = std::path::absolute(&args.mountpoint)
        .map_err(|e| Error::io(&args.mountpoint, "cannot unmount", e))?;
    fs::unmount(&path, args.lazy).map_err(|e| {
        let error = |exit| Error::new(exit, format!("cannot unmount {}", path.display())).because(&e);
        match Errno::from_io_error(&e) {
            Some(Errno::BUSY) => error(Exit::InUse).with_remedy("`fuser -m PATH` tells who uses it; --lazy"),
            Some(Errno::INVAL | Errno::NOENT) => refused_there(&path),
            _ => error(Exit::Failed),
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
    sealing: impl FnOnce() -> Result<Sealing>,
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
        let [folder] = point.descriptors();
        Helper::start(Some(OfMount { answer: &answer, keeps: &[folder, below.as_fd()] }), None)
            .map_err(|e| Error::new(Exit::Failed, "no process to unmount with").because(&e))?;
        if let Some(path) = args.log_file.as_deref().filter(|_| args.daemon) {
            will_open_log(&std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
        }
    }
    drop(point);
    let sealing = sealing()?;
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
    let for_signals = pid_file.clone();
    let shown = std::path::absolute(mountpoint).unwrap_or_else(|_| mountpoint.to_owned());
    let shown = shown.display().to_string();
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            let mut is_second = false;
            while let Ok(Woken::Signal(signal)) = taken.wait(None) {
                stop(&unmounter, &shown, signal, is_second, &for_signals);
                is_second = true;
            }
        })
        .map_err(|e| Error::new(Exit::Failed, "cannot wait for signals").because(&e))?;
    let ended = mount.run();
    remove(&pid_file);
    Ok(ended?)
}

/// Removes the PID file; the thread that ends the process calls this.
fn remove(pid_file: &Mutex<Option<PidFile>>) {
    drop(pid_file.lock().unwrap_or_else(PoisonError::into_inner).take());
}

/// Unmounts. Open files stay usable, and the process ends when the last one is closed; a second
/// signal ends it at once.
fn stop(unmounter: &Unmounter, shown: &str, signal: i32, is_second: bool, pid_file: &Mutex<Option<PidFile>>) {
    let Err(e) = unmounter.unmount(false) else { return };
    match Errno::from_io_error(&e) {
        Some(Errno::BUSY) => {
            log::warn!("the mount is in use: it ends when its last file is closed, or with a second signal");
            if let Err(e) = unmounter.unmount(true) {
                log::error!("cannot unmount: {e}");
            }
        }
        // The volume is unmounted already, and a further signal asks for the end.
        Some(Errno::INVAL | Errno::NOENT) => end(signal, pid_file),
        // Without its server the mount would stay, and fail every request.
        _ if !is_second => log::error!(
            "{shown}: cannot be unmounted, and is served still: {e}; try: `underseal ecryptfs umount {shown}`, \
             or a second signal, which ends the server and leaves the mount"
        ),
        _ => end(signal, pid_file),
    }
}

fn end(signal: i32, pid_file: &Mutex<Option<PidFile>>) -> ! {
    remove(pid_file);
    std::process::exit(128 + signal)
}
