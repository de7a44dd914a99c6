//! `underseal ecryptfs mount-private`: the mount that ecryptfs-utils has set up.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Args;
use rustix::process::geteuid;
use underseal_cipher::Key;
use underseal_ecryptfs::signatures::Signatures;
use underseal_ecryptfs::{self as ecryptfs, wrapped};

use super::mount::{MountOptions, ServeMountArgs, serve};
use crate::error::{Error, Result};
use crate::passphrase::{ask_hidden, first_line_of_descriptor, first_line_of_file};

/// Mounts ~/.Private as ecryptfs-utils has set it up in ~/.ecryptfs
///
/// The passphrase is the login's, which opens ~/.ecryptfs/wrapped-passphrase. The home folder must
/// be the caller's own.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
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

pub(super) fn run(args: &MountPrivateArgs, quiet: bool) -> Result<()> {
    let home = args
        .home
        .clone()
        .or_else(std::env::home_dir)
        .ok_or_else(|| Error::usage("there is no home folder").with_remedy("--home DIR"))?;
    let about = fs::metadata(&home).map_err(|e| Error::io(&home, "cannot be looked at", e))?;
    must_be_ours(&home, &about)?;
    let settings = home.join(".ecryptfs");
    let signatures = Signatures::read(&read(&settings.join("Private.sig"))?)?;
    let mountpoint = match &args.mountpoint {
        Some(path) => path.clone(),
        None => private_mnt(&settings.join("Private.mnt"))?,
    };
    let mut all =
        vec![format!("ecryptfs_cipher=aes,ecryptfs_key_bytes=16,ecryptfs_sig={}", signatures.contents)];
    all.extend(signatures.names.map(|names| format!("ecryptfs_fnek_sig={names}")));
    all.extend(args.options.iter().cloned());
    let options = MountOptions::parse(&all)?;
    serve(&args.serve, &home.join(".Private"), &mountpoint, &options, quiet, |_| {
        // Private.sig names the keys.
        options.sealing(&[passphrase(args, &settings.join("wrapped-passphrase"))?])
    })
}

/// Returns the mount's passphrase, unwrapped with the login's.
fn passphrase(args: &MountPrivateArgs, file: &Path) -> Result<Key> {
    let sealed = read(file)?;
    let asked = args.passphrase_file.is_none() && args.passphrase_fd.is_none();
    for left in (0..if asked { 3 } else { 1 }).rev() {
        let login = match (&args.passphrase_file, args.passphrase_fd) {
            (Some(path), _) => first_line_of_file(path)?,
            (None, Some(number)) => first_line_of_descriptor(number)?,
            (None, None) => ask_hidden("Login passphrase: ")?,
        };
        match wrapped::unwrap(&sealed, login.as_bytes()) {
            Err(e) if e.kind() == ecryptfs::ErrorKind::WrongPassphrase && left > 0 => {
                log::warn!("{}: {e}", file.display());
            }
            Err(e) => return Err(e.in_file(file).into()),
            Ok(passphrase) => return Ok(passphrase),
        }
    }
    Err(Error::usage("no passphrase was given"))
}

fn private_mnt(file: &Path) -> Result<PathBuf> {
    let bytes = read(file)?;
    let text =
        String::from_utf8(bytes).map_err(|_| Error::usage(format!("{}: not a path", file.display())))?;
    match text.trim_end_matches('\n') {
        "" => Err(Error::usage(format!("{}: there is nothing in it", file.display()))
            .with_remedy("--mountpoint DIR")),
        path => Ok(path.into()),
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    use std::io::Read;

    let failed = |e| Error::io(path, "cannot read what ecryptfs-utils has set up", e);
    let file = fs::File::open(path).map_err(failed)?;
    must_be_ours(path, &file.metadata().map_err(failed)?)?;
    let mut bytes = Vec::new();
    // The longest of these files is a path.
    file.take(8192).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// Refuses a file of another user: its contents would decide the mount's place, and root would
/// mount it for all users.
fn must_be_ours(path: &Path, about: &fs::Metadata) -> Result<()> {
    if about.uid() == geteuid().as_raw() {
        return Ok(());
    }
    Err(Error::usage(format!("{}: it belongs to another user (uid {})", path.display(), about.uid()))
        .with_remedy("as that user: `sudo -u USER underseal ecryptfs mount-private`"))
}

const EXAMPLES: &str = "\
Examples:
  underseal ecryptfs mount-private
  underseal ecryptfs mount-private --daemon -o allow_root";
