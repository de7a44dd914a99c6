//! `underseal header`.

mod backup;
mod change;
mod check;
mod key;
mod repair;

use std::fs::File;
use std::path::Path;

use clap::{Args, Subcommand};

pub(crate) use backup::new_file;
pub(super) use backup::{HeaderBackupArgs, HeaderRestoreArgs};
pub(crate) use key::write_secret;

use self::change::{HeaderConvertArgs, HeaderEraseArgs, HeaderSetArgs};
use self::check::HeaderCheckArgs;
use self::key::HeaderDumpKeyArgs;
use self::repair::HeaderRepairArgs;
use crate::cli::HeaderPathArgs;
use crate::error::{Error, Result};
use crate::loop_file::lock_as_image;
use crate::lower::{is_remote, open_header};
use crate::output::print;
use crate::passphrase::confirm;
use crate::reencryption::Bytes;

/// Works on a LUKS header: backups, damage, names, the other version.
///
/// A header may be changed while its volume is open, but not converted.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HeaderArgs {
    #[command(subcommand)]
    pub(crate) what: HeaderCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum HeaderCommand {
    Backup(HeaderBackupArgs),
    Restore(HeaderRestoreArgs),
    Check(HeaderCheckArgs),
    Repair(Box<HeaderRepairArgs>),
    Erase(HeaderEraseArgs),
    Set(HeaderSetArgs),
    Convert(HeaderConvertArgs),
    DumpKey(Box<HeaderDumpKeyArgs>),
}

pub(super) fn run(args: &HeaderArgs, quiet: bool) -> Result<()> {
    match &args.what {
        HeaderCommand::Backup(args) => backup::backup(args, quiet),
        HeaderCommand::Restore(args) => backup::restore(args, quiet),
        HeaderCommand::Check(args) => check::check(args),
        HeaderCommand::Repair(args) => repair::repair(args, quiet),
        HeaderCommand::Erase(args) => change::erase(args, quiet),
        HeaderCommand::Set(args) => change::set(args),
        HeaderCommand::Convert(args) => change::convert(args, quiet),
        HeaderCommand::DumpKey(args) => key::dump(args),
    }
}

/// Opens the header's file or device for a change.
fn to_change(of: &HeaderPathArgs) -> Result<Bytes> {
    open_header(of.path(), false)
}

/// Locks an image, or the file of a detached header, and the file below a loop device, as the
/// servers of volumes do. Returns no files where there can be no locks. Fails with `InUse` while a
/// server has one open.
fn locked(path: &Path) -> Result<Vec<File>> {
    if is_remote(path) {
        return Ok(Vec::new());
    }
    let file = File::options().read(true).write(true).open(path);
    let file = file.map_err(|e| Error::io(path, "cannot open", e))?;
    let below = lock_as_image(&file, path)?;
    Ok([file].into_iter().chain(below).collect())
}

/// Asks all questions before a change that cannot be undone. Fails with `Usage` when an answer is
/// no, or no terminal can be asked.
fn agreed(force: bool, of: &HeaderPathArgs, questions: &[String]) -> Result<()> {
    if force {
        return Ok(());
    }
    for question in questions {
        if !confirm(&format!("{}: {question}", of.path().display()))? {
            let what = format!("{}: nothing was changed: {question}", of.path().display());
            return Err(Error::usage(what).with_remedy("--force, if that is meant"));
        }
    }
    Ok(())
}

fn say(quiet: bool, of: &HeaderPathArgs, what: &str) -> Result<()> {
    if quiet { Ok(()) } else { print(&format!("{}: {what}\n", of.path().display())) }
}

const EXAMPLES: &str = "\
Examples:
  underseal header backup disk.img disk.header
  underseal header restore disk.img disk.header
  underseal header check disk.img                    what is wrong, and what could be done
  underseal header repair disk.img
  underseal header set disk.img --label work --flag allow-discards
  underseal header convert disk.img --to luks2
  underseal header erase old.img                     nobody opens it again
  underseal header dump-key disk.img -o disk.key";
