//! The command line: all commands, and in `cli/` the groups of options that several of them share.
//! The arguments of one command lie beside its action, in `commands/`. The help and the manual
//! pages are made from these types.

mod area;
mod on_error;
mod parse;
mod pbkdf;
mod rate;
mod secret;
mod serve;
mod tcrypt;
mod token;
mod trust;
mod volume;

use clap::{ArgAction, Args, Parser, Subcommand};
use std::ffi::OsString;

pub(crate) use area::AreaArgs;
pub(crate) use on_error::OnError;
pub(crate) use pbkdf::PbkdfArgs;
pub(crate) use rate::RateArg;
pub(crate) use secret::{NewSecretArgs, SecretArgs, SecretSource};
pub(crate) use serve::{ControlArgs, Nbd, ServeArgs, VhostUserArgs};
pub(crate) use tcrypt::{HeaderKind, PartArgs, TcryptArgs, TcryptHeaderArgs, pim};
pub(crate) use token::{HardwareArgs, TokenArgs};
pub(crate) use trust::{TrustArgs, integrity_type};
pub(crate) use volume::{
    HeaderPathArgs, LayerArgs, LowerArgs, PlainArgs, TagCacheArgs, VolumeArgs, VolumeType,
};

use crate::commands::check::CheckArgs;
use crate::commands::completions::CompletionsArgs;
use crate::commands::control::Control;
use crate::commands::dm::DmArgs;
use crate::commands::ecryptfs::EcryptfsArgs;
use crate::commands::format::FormatArgs;
use crate::commands::header::HeaderArgs;
use crate::commands::host::{DownArgs, PsArgs, UpArgs};
use crate::commands::info::InfoArgs;
use crate::commands::integrity::IntegrityCommandArgs;
use crate::commands::keyslot::KeyslotArgs;
use crate::commands::man::ManArgs;
use crate::commands::open::OpenArgs;
use crate::commands::read::ReadArgs;
use crate::commands::reencrypt::ReencryptArgs;
use crate::commands::table::TableArgs;
use crate::commands::token::TokenCommandArgs;
use crate::commands::write::WriteArgs;
use crate::exit;

/// Makes, opens and serves encrypted volumes without root and without a kernel driver.
///
/// Volumes are LUKS2, LUKS1 or plain dm-crypt: what is made here opens with cryptsetup and QEMU,
/// and the other way round.
#[derive(Debug, Parser)]
#[command(name = "underseal", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = EXAMPLES, after_long_help = after_long_help())]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) verbosity: Verbosity,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Format(FormatArgs),
    Open(Box<OpenArgs>),
    Info(Box<InfoArgs>),
    Header(HeaderArgs),
    Keyslot(KeyslotArgs),
    Reencrypt(Box<ReencryptArgs>),
    Check(CheckArgs),
    Read(ReadArgs),
    Write(WriteArgs),
    Table(TableArgs),
    Token(Box<TokenCommandArgs>),
    Ecryptfs(EcryptfsArgs),
    Integrity(Box<IntegrityCommandArgs>),
    Dm(DmArgs),
    Up(UpArgs),
    Down(DownArgs),
    Ps(PsArgs),
    #[command(flatten)]
    Control(Control),
    Completions(CompletionsArgs),
    Man(ManArgs),
    /// Asks udisks, for a server with --desktop
    #[command(hide = true)]
    DesktopHelper,
}

impl Cli {
    /// Notes the arguments that the command was parsed from, for a new server of a handover, which
    /// runs with them.
    pub(crate) fn started_with(&mut self, words: Vec<OsString>) {
        if let Command::Open(args) = &mut self.command {
            args.serve.origin = Some(words);
        }
    }
}

/// The verbosity of messages.
#[derive(Debug, Args)]
#[command(next_help_heading = "Messages")]
pub(crate) struct Verbosity {
    /// Tell more: -v what happens, -vv every connection, -vvv everything
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "quiet")]
    verbose: u8,
    /// Tell of errors only
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
}

impl Verbosity {
    /// Returns the least important level that is written.
    pub(crate) fn level(&self) -> log::LevelFilter {
        match (self.quiet, self.verbose) {
            (true, _) => log::LevelFilter::Error,
            (_, 0) => log::LevelFilter::Warn,
            (_, 1) => log::LevelFilter::Info,
            (_, 2) => log::LevelFilter::Debug,
            _ => log::LevelFilter::Trace,
        }
    }
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  underseal format disk.img --size 10G            make a LUKS2 volume, asking for a passphrase
  underseal open disk.img --nbd unix:disk.sock    serve its plain bytes until Ctrl-C
  nbdcopy photos.ext4 'nbd+unix:///?socket=disk.sock'
  underseal info disk.img                         what the header says
  underseal read disk.img -o plain.img            the plain bytes, without a server";

fn after_long_help() -> String {
    let statuses: String = exit::STATUSES.iter().map(|(code, text)| format!("  {code}  {text}\n")).collect();
    format!("{EXAMPLES}\n\nExit status:\n{statuses}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_teaches_by_examples() {
        for command in Cli::command().get_subcommands().filter(|c| !c.is_hide_set()) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:") && help.contains("underseal "), "{}", command.get_name());
        }
    }
}
