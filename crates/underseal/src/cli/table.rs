//! `underseal table`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{LowerArgs, OnError, PlainArgs, RateArg, SecretArgs, ServeArgs, VolumeArgs};

/// Works on dm-crypt's own tables, as dmsetup takes and prints them.
///
/// Lines are START LENGTH crypt CIPHER KEY IV-OFFSET DEVICE OFFSET [#OPTIONS OPTION..], or linear,
/// integrity, zero and error lines; several make one device. With a name before each ("NAME: ", as
/// dmsetup prints several devices) one lies on the others: on integrity lines, by /dev/mapper/NAME.
/// What the kernel refuses is refused in its words. Keys come in the file or through the kernel's
/// keyring (:SIZE:user:NAME), never as arguments.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TableArgs {
    #[command(subcommand)]
    pub(crate) what: Table,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Table {
    Check(TableCheckArgs),
    Plain(Box<TablePlainArgs>),
    Volume(Box<TableVolumeArgs>),
    Encrypt(TableEncryptArgs),
    Decrypt(TableDecryptArgs),
    Open(Box<TableOpenArgs>),
}

/// The source of the table.
#[derive(Debug, Args)]
pub(crate) struct TableFileArgs {
    /// The file with the table; "-" is stdin
    #[arg(long, value_name = "FILE")]
    pub(crate) table: PathBuf,
}

/// Prints the table as the kernel's status would, and warns of weak choices
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TableCheckArgs {
    #[command(flatten)]
    pub(crate) file: TableFileArgs,
    /// Print keys too; else they are zeros
    #[arg(long)]
    pub(crate) show_keys: bool,
}

/// Prints the table of a plain volume, with its key, for what takes tables: `reencrypt --state`,
/// `table open`
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TablePlainArgs {
    /// The image or block device
    pub(crate) image: PathBuf,
    #[command(flatten)]
    pub(crate) plain: PlainArgs,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
}

/// Prints the table that a volume of another system comes to, with its key: TrueCrypt and VeraCrypt
/// of one cipher, BitLocker, FileVault 2, loop-AES
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TableVolumeArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
}

/// Writes plain bytes through the table onto its devices, from its start on, and flushes them
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TableEncryptArgs {
    #[command(flatten)]
    pub(crate) file: TableFileArgs,
    /// The plain bytes; stdin by default or for "-"
    #[arg(short, long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) lower: LowerArgs,
}

/// Reads the plain bytes of everything that the table maps
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TableDecryptArgs {
    #[command(flatten)]
    pub(crate) file: TableFileArgs,
    /// The file to write, created for you alone; stdout by default, "-" for stdout even on a
    /// terminal
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// At what is not as it was written, by its tag, stop, or give zeros for it and list it on
    /// stderr
    #[arg(long, value_name = "WAY", value_enum, default_value_t = OnError::Stop)]
    pub(crate) on_error: OnError,
    #[command(flatten)]
    pub(crate) lower: LowerArgs,
}

/// Serves the plain bytes until SIGINT or SIGTERM, as `underseal open` does
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TableOpenArgs {
    #[command(flatten)]
    pub(crate) file: TableFileArgs,
    /// Refuse writes
    #[arg(long)]
    pub(crate) read_only: bool,
    /// The volume is in the middle of a reencryption: this file says how far it is, and --new-table
    /// what it becomes
    #[arg(long, value_name = "FILE", requires = "new_table", conflicts_with = "read_only")]
    pub(crate) state: Option<PathBuf>,
    /// The table that the volume becomes
    #[arg(long, value_name = "FILE", requires = "state")]
    pub(crate) new_table: Option<PathBuf>,
    /// Resume the reencryption at RATE: "give-way" (the default, yields to clients), "full", or
    /// bytes per second
    #[arg(long, value_name = "RATE", num_args = 0..=1, require_equals = true, default_missing_value = "give-way",
        requires = "state")]
    pub(crate) reencrypt: Option<RateArg>,
    #[command(flatten)]
    pub(crate) lower: LowerArgs,
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
}

const EXAMPLES: &str = "\
Examples:
  dmsetup table --showkeys secret | underseal table check --table -
  underseal table encrypt --table secret.table -i plain.img
  underseal table decrypt --table secret.table -o plain.img
  underseal table open --table secret.table --nbd unix:secret.sock
  underseal table plain old.img --hash sha256 | underseal table check --table -
  underseal table volume stick.hc --type tcrypt | underseal table check --table -";
