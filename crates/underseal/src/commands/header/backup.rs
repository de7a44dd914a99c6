//! `underseal header backup` and `restore`.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use underseal_volume::{
    Backup, Error as VolumeError, ErrorKind, Found, NamedFile, RestoreOptions, Target, create_private,
    remove_new_file,
};

use super::super::tcrypt;
use super::{EXAMPLES, agreed, locked, say, to_change};
use crate::cli::{HeaderKind, HeaderPathArgs, SecretArgs, TcryptHeaderArgs};
use crate::error::{Error, Result};
use crate::lower::open_header;
use crate::size;

/// Copies the header with its keyslots to a new file, which cryptsetup takes, too
///
/// Who has the backup and one of its passphrases opens the volume, also after that passphrase was
/// removed from it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HeaderBackupArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// The file to make, for you alone and read only
    pub(crate) backup: PathBuf,
    #[command(flatten)]
    pub(crate) tcrypt: TcryptHeaderArgs,
}

pub(super) fn backup(args: &HeaderBackupArgs, quiet: bool) -> Result<()> {
    if args.tcrypt.kind == HeaderKind::Tcrypt {
        return tcrypt::backup(args, quiet);
    }
    let path = args.of.path();
    let backup = Backup::take(&*open_header(path, true)?).map_err(|e| e.in_file(path))?;
    new_file(&args.backup, backup.bytes())?;
    let to = format!(
        "{} of header and keyslots are in {}",
        size::show(backup.bytes().len() as u64),
        args.backup.display()
    );
    say(quiet, &args.of, &to)
}

/// Makes a read-only file for its owner, and syncs it and its name. The file is removed again after
/// a failure. Fails with `Failed`, also where the file exists.
pub(crate) fn new_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let made = File::options().write(true).create_new(true).mode(0o400).open(path);
    let file = NamedFile::made(made.map_err(|e| Error::io(path, "cannot create", e))?);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = || File::open(folder).and_then(|folder| folder.sync_all());
    let written = file.write_all_at(bytes, 0).and_then(|()| synced()).and_then(|()| file.sync_all());
    written.map_err(|e| {
        // A partly written file is of no use.
        remove_new_file(path, file.file());
        Error::io(path, "cannot write", e)
    })
}

/// Puts the header and its keyslots back from a backup; passphrases are those of then
///
/// Also cryptsetup's backups. Over another volume's header it asks twice. A crash leaves the old
/// header or the backup's where both keep keyslots and data in the same places.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HeaderRestoreArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// The backup
    pub(crate) backup: PathBuf,
    /// Do not ask
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) tcrypt: TcryptHeaderArgs,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
}

pub(super) fn restore(args: &HeaderRestoreArgs, quiet: bool) -> Result<()> {
    if args.tcrypt.kind == HeaderKind::Tcrypt {
        return tcrypt::restore(args, quiet);
    }
    let path = args.of.path();
    let backup = File::open(&args.backup).map_err(|e| Error::io(&args.backup, "cannot open", e))?;
    let backup = Backup::read(&backup).map_err(|e| e.in_file(&args.backup))?;
    let is_new = args.of.header.is_some() && !path.exists();
    let new =
        is_new.then(|| create_private(path)).transpose().map_err(|e| Error::io(path, "cannot create", e))?;
    let what = put_back(args, &backup, new.as_ref()).inspect_err(|_| {
        if let Some(new) = &new {
            remove_new_file(path, new);
        }
    })?;
    say(quiet, &args.of, &what)
}

/// Writes the backup's header to its place, and describes the result. The name of a new file is not
/// opened again: another user of its folder may put a link there.
fn put_back(args: &HeaderRestoreArgs, backup: &Backup, new: Option<&File>) -> Result<String> {
    let path = args.of.path();
    let on = match new {
        Some(file) => {
            Arc::new(NamedFile::made(file.try_clone().map_err(|e| Error::io(path, "cannot open", e))?))
        }
        None => to_change(&args.of)?,
    };
    let within = |e: VolumeError| e.in_file(path);
    let found = backup.found_on(&*on).map_err(within)?;
    // The server of a volume without this header knows nothing of it, and keeps its image locked.
    let is_free = found.may_be_in_use(args.force) || new.is_some();
    let in_use = |e: Error| e.with_remedy("close it first; --force if this is the header that it had");
    let _locks = if is_free { Vec::new() } else { locked(path).map_err(in_use)? };
    agreed(args.force, &args.of, &questions(&found))?;
    let options = RestoreOptions { detached: args.of.header.is_some(), in_place: args.force };
    let restored = match backup.restore(&*on, &found, &options) {
        Err(e) if e.kind() == ErrorKind::NoRoom => {
            let question = format!("{e}. A crash while it is overwritten loses both headers.");
            agreed(false, &args.of, &[question])?;
            backup.restore(&*on, &found, &RestoreOptions { in_place: true, ..options })
        }
        restored => restored,
    };
    let info = restored.map_err(within)?.info();
    let (format, keyslots) = (info.format.to_uppercase(), info.keyslots.len());
    Ok(format!("{format} header with {keyslots} keyslots, UUID {}", info.uuid))
}

/// Returns the questions before existing data are overwritten.
fn questions(found: &Found) -> Vec<String> {
    let lost = |what: String| format!("{what} will be lost for ever.");
    match found {
        Found::Same | Found::Nothing => vec![],
        Found::OtherData => {
            let first = "the volume was or is being reencrypted since the backup was made, or amid the backup: the key or the cipher of \
                         its data, which only the header there has,";
            vec![
                lost(first.into()),
                "With the backup's header nobody may be able to read the data. Really?".into(),
            ]
        }
        Found::Another(uuid) => {
            let uuid = uuid.map_or("no UUID".into(), |uuid| format!("UUID {uuid}"));
            let first = format!("it holds the header of another volume ({uuid}), whose keyslots");
            vec![lost(first), "The backup is of another volume. Really?".into()]
        }
        Found::Damaged(why) => vec![format!("its header is damaged ({why}), and will be overwritten.")],
        Found::Foreign(name) => vec![lost(format!("it holds {name}, which"))],
        Found::Unknown => vec![lost("it holds no LUKS header, but something that".into())],
    }
}
