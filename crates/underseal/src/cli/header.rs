//! `underseal header`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use underseal_volume::PersistentFlag;
use uuid::Uuid;

use super::{HeaderPathArgs, SecretArgs, TcryptHeaderArgs, TrustArgs};

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

/// Says what is wrong with the header and its keyslots, and what could be done
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HeaderCheckArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// For programs: what was found as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Makes the header good: LUKS2's bad copy from the other, LUKS1's free keyslots, a reencryption
/// that was cut off
///
/// Of a reencryption under way, with a passphrase: metadata without a digest are signed (cryptsetup
/// before 2.4.3 wrote none), a step that was cut off is made good, and the metadata of all others
/// are checked. The volume must be closed for that. The command fails where the header then still
/// asks for what this program does not know.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HeaderRepairArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// Do not ask before something else than a header is overwritten, or metadata are signed
    #[arg(long)]
    pub(crate) force: bool,
    /// Try this keyslot only
    #[arg(long, value_name = "N")]
    pub(crate) key_slot: Option<u32>,
    /// The first line of this file is the passphrase of the other key that a volume has while it is
    /// reencrypted, where no passphrase opens both
    #[arg(long, value_name = "FILE")]
    pub(crate) other_passphrase_file: Option<PathBuf>,
    /// All bytes of this file are
    #[arg(long, value_name = "FILE", conflicts_with = "other_passphrase_file")]
    pub(crate) other_key_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
}

/// Destroys all keyslots: only a backup of the header opens the volume again
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HeaderEraseArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// Do not ask
    #[arg(long)]
    pub(crate) force: bool,
}

/// Changes names and persistent flags
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HeaderSetArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    #[command(flatten)]
    pub(crate) what: HeaderSettings,
}

/// The settings, of which at least one is given.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(crate) struct HeaderSettings {
    /// LUKS2: a name for people, up to 47 bytes
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// LUKS2: a second name, up to 47 bytes
    #[arg(long, value_name = "TEXT")]
    pub(crate) subsystem: Option<String>,
    /// The UUID, of a closed volume
    #[arg(long, value_name = "UUID")]
    pub(crate) uuid: Option<Uuid>,
    /// LUKS2: set a flag for every program that opens the volume: allow-discards, same-cpu-crypt,
    /// submit-from-crypt-cpus, no-read-workqueue, no-write-workqueue, high-priority, no-journal
    #[arg(long, value_name = "FLAG")]
    pub(crate) flag: Vec<PersistentFlag>,
    /// LUKS2: clear a flag
    #[arg(long, value_name = "FLAG")]
    pub(crate) no_flag: Vec<PersistentFlag>,
}

/// Makes a LUKS1 header one of LUKS2, or the other way round, where both can say the same
///
/// Passphrases and data stay as they are, and the volume opens after a crash at any moment. It must
/// not be open. LUKS1 has no label, subsystem, flags and priorities: where there are any, it asks.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HeaderConvertArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// The version to make
    #[arg(long, value_name = "VERSION", value_enum)]
    pub(crate) to: HeaderVersion,
    /// Do not ask before what LUKS1 has no words for is dropped: label, subsystem, flags,
    /// priorities
    #[arg(long)]
    pub(crate) force: bool,
}

/// The version of LUKS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum HeaderVersion {
    /// Version 1
    Luks1,
    /// Version 2
    Luks2,
}

/// Prints the volume key: it decrypts the volume, whatever becomes of the passphrases
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HeaderDumpKeyArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// The file to make, for you alone and read only, with the key's bytes (- is stdout, where that
    /// is no terminal); else they are shown in hex on the terminal
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Try this keyslot only
    #[arg(long, value_name = "N")]
    pub(crate) key_slot: Option<u32>,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
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
