//! `underseal header`.

mod backup;
mod change;
mod check;
mod key;
mod repair;

pub(crate) use backup::new_file;
pub(crate) use key::write_secret;

use crate::cli::{HeaderArgs, HeaderCommand, HeaderPathArgs};
use crate::error::{Error, Result};
use crate::lower::open_header;
use crate::output::print;
use crate::passphrase::confirm;
use crate::reencryption::Bytes;

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
