//! The commands: a file or folder has the arguments and the action of each.

pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod control;
pub(crate) mod dm;
pub(crate) mod ecryptfs;
pub(crate) mod format;
pub(crate) mod header;
pub(crate) mod host;
pub(crate) mod info;
pub(crate) mod integrity;
pub(crate) mod keyslot;
pub(crate) mod man;
pub(crate) mod open;
pub(crate) mod read;
pub(crate) mod reencrypt;
pub(crate) mod table;
mod tcrypt;
pub(crate) mod token;
pub(crate) mod write;

pub(crate) use control::{CloseLimit, close_open, status_of_open};
pub(crate) use header::{new_file, write_secret};
pub(crate) use table::{Active, over};

use crate::cli::{Cli, Command};
use crate::error::Result;
use crate::lower::same_file;

/// Runs the command. The error is ready to be shown.
pub(crate) fn run(cli: Cli) -> Result<()> {
    let quiet = cli.verbosity.quiet;
    match cli.command {
        Command::Format(args) => format::run(&args, quiet),
        Command::Open(args) => open::run(&args, quiet),
        Command::Info(args) => info::run(&args),
        Command::Header(args) => header::run(&args, quiet),
        Command::Keyslot(args) => keyslot::run(&args.what, quiet),
        Command::Reencrypt(args) => reencrypt::run(&args, quiet),
        Command::Check(args) => check::run(&args, quiet),
        Command::Read(args) => read::run(&args, quiet),
        Command::Write(args) => write::run(&args, quiet),
        Command::Table(args) => table::run(&args, quiet),
        Command::Token(args) => token::run(&args, quiet),
        Command::Ecryptfs(args) => ecryptfs::run(&args, quiet),
        Command::Integrity(args) => integrity::run(&args, quiet),
        Command::Control(command) => control::run(command, quiet),
        Command::Dm(args) => dm::run(&args, quiet),
        Command::Up(args) => host::up(&args, quiet),
        Command::Down(args) => host::down(&args, quiet),
        Command::Ps(args) => host::ps(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
        Command::DesktopHelper => open::help_desktop(),
    }
}
