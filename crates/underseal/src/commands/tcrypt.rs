//! Changes of TrueCrypt's and VeraCrypt's headers: new passphrases, backups, restoring.

use std::fs::File;
use std::path::{Path, PathBuf};

use underseal_device::OpenOptions;
use underseal_formats::tcrypt::{
    BACKUP_FILE, NewHeaders, Password, Pim, Place, UnlockOptions, Unlocked, backup_file, unlock,
};
use underseal_volume::{ImageContents, ReadAt};

use super::header::{HeaderBackupArgs, HeaderRestoreArgs};
use super::keyslot::KeyslotChangeArgs;
use super::new_file;
use crate::cli::{SecretArgs, TcryptHeaderArgs};
use crate::error::{Error, Result};
use crate::foreign::{new_password_of, with_password};
use crate::lower::Lower;
use crate::output::print;
use crate::passphrase::confirm;
use crate::reencryption::Bytes;

/// `keyslot change --type tcrypt`: writes both headers, or the only one, with another passphrase,
/// PIM or PRF.
pub(super) fn change(args: &KeyslotChangeArgs, quiet: bool) -> Result<()> {
    let path = alone(&args.of.image, args.of.header.as_ref())?;
    let (_lock, host) = open(path)?;
    let host_size = size(&host)?;
    let mut options = options(&args.tcrypt);
    if args.system {
        options.place = Place::System;
    }
    let old = unlocked(path, &args.secret, &host, &options)?;
    // A boot loader may have the present PIM in its settings.
    let kept = if args.system { options.pim } else { Pim::default() };
    let pim = args.new_pim.unwrap_or(kept);
    let prf = args.new_prf.unwrap_or(old.derivation.prf);
    let (password, len) = new_password_of(args.new.passphrase(), args.new.key_files(), path, true)?;
    let checked = pim.check_passphrase(prf, old.derivation.system, len);
    checked.map_err(|e| Error::from(e).with_remedy("a longer passphrase, or another --new-pim"))?;
    let within = |e| Error::from(e).within(path.display());
    let new = NewHeaders::again(host_size, &old, prf, pim, &password).map_err(within)?;
    new.replace(&*host).map_err(within)?;
    say(
        quiet,
        path,
        match new.has_backup() {
            true => "both headers have the new passphrase",
            false if args.system => {
                "the system's header has the new passphrase; a rescue disk still has one with the old"
            }
            false => "the header, which has no backup in a volume this old, has the new passphrase",
        },
    )
}

/// `header backup --type tcrypt`: writes VeraCrypt's backup file, with the present passphrases.
pub(super) fn backup(args: &HeaderBackupArgs, quiet: bool) -> Result<()> {
    let path = alone(&args.of.image, args.of.header.as_ref())?;
    let bytes = backup_file(&*crate::lower::open_header(path, true)?)?;
    new_file(&args.backup, &bytes)?;
    say(quiet, path, &format!("both header areas are in {}", args.backup.display()))
}

/// `header restore --type tcrypt`: writes the header that the passphrase opens in a backup file to
/// both of its places.
pub(super) fn restore(args: &HeaderRestoreArgs, quiet: bool) -> Result<()> {
    let path = alone(&args.of.image, args.of.header.as_ref())?;
    let saved = File::open(&args.backup).map_err(|e| Error::io(&args.backup, "cannot open", e))?;
    let saved_size = ReadAt::size(&saved).map_err(|e| Error::io(&args.backup, "cannot be measured", e))?;
    if saved_size != BACKUP_FILE as u64 {
        let what = format!(
            "{}: {saved_size} bytes; a backup of VeraCrypt's has {BACKUP_FILE}",
            args.backup.display()
        );
        return Err(Error::usage(what));
    }
    let (_lock, host) = open(path)?;
    let host_size = size(&host)?;
    let options = options(&args.tcrypt);
    let secret = &args.secret;
    let of = (secret.passphrase(), secret.key_files());
    // The passphrase is the backup's, which is not asked for twice.
    let new = with_password(of.0, of.1, &args.backup, |password: &Password| {
        let old = unlock(&saved, password, &options)?;
        let pim = if old.derivation.veracrypt { options.pim } else { Pim::default() };
        Ok(NewHeaders::again(host_size, &old, old.derivation.prf, pim, password)?)
    });
    let new = new.map_err(|e| e.within(args.backup.display()))?;
    let shown = path.display();
    let which = if options.place.is_hidden() { "the hidden volume's headers" } else { "its headers" };
    let held = match ImageContents::of(&*host).map_err(|e| e.in_file(path))? {
        ImageContents::Known(name) => format!("holds {name}, which will be damaged: "),
        _ => String::new(),
    };
    let what =
        format!("{shown}: {held}{which} will be overwritten; passphrases of now open the volume no more.");
    if !args.force && !confirm(&what)? {
        return Err(Error::usage(what).with_remedy("--force"));
    }
    new.replace(&*host).map_err(|e| Error::from(e).within(&shown))?;
    say(quiet, path, "both headers are those of the backup")
}

/// Returns the image; its header cannot be detached.
fn alone<'a>(image: &'a Path, header: Option<&PathBuf>) -> Result<&'a Path> {
    match header {
        Some(_) => {
            Err(Error::usage("a VeraCrypt volume has its headers in itself").with_remedy("without --header"))
        }
        None => Ok(image),
    }
}

/// Opens the image with a lock that excludes programs that have the volume open.
fn open(path: &Path) -> Result<(Lower, Bytes)> {
    let lower = Lower::open(path, OpenOptions::default())?;
    let bytes = lower.again().bytes()?;
    Ok((lower, bytes))
}

fn size(of: &Bytes) -> Result<u64> {
    of.size().map_err(|e| Error::io(Path::new("the image"), "cannot be measured", e))
}

fn options(args: &TcryptHeaderArgs) -> UnlockOptions {
    let place = Place::named(args.hidden, args.backup_header, false).unwrap_or(Place::Normal);
    let (pim, prfs) = (args.pim.unwrap_or_default(), args.prf.clone());
    UnlockOptions { place, pim, prfs, ..UnlockOptions::default() }
}

fn unlocked(path: &Path, secret: &SecretArgs, host: &Bytes, options: &UnlockOptions) -> Result<Unlocked> {
    with_password(secret.passphrase(), secret.key_files(), path, |password| {
        unlock(&**host, password, options).map_err(|e| Error::from(e).within(path.display()))
    })
}

fn say(quiet: bool, path: &Path, what: &str) -> Result<()> {
    if quiet { Ok(()) } else { print(&format!("{}: {what}\n", path.display())) }
}
