//! `underseal keyslot`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use underseal_formats::tcrypt::{Pim, Prf};
use underseal_volume as volume;

use super::{
    AreaArgs, HeaderPathArgs, NewSecretArgs, PbkdfArgs, SecretArgs, TcryptHeaderArgs, TokenArgs, TrustArgs,
};

/// Adds, removes and changes the passphrases and keys that open a LUKS volume.
///
/// A volume's data have one key, and a header holds it in several keyslots, each under a passphrase
/// of its own. Whatever is done to them, the header is locked only for a moment, as cryptsetup
/// does (on an NBD export against your programs on this host), and may be changed while the volume
/// is open. A power cut leaves the keyslots as they were
/// or as they are going to be, and what is removed is wiped.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KeyslotArgs {
    #[command(subcommand)]
    pub(crate) what: Keyslot,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Keyslot {
    List(KeyslotListArgs),
    Add(KeyslotAddArgs),
    Remove(KeyslotRemoveArgs),
    Change(KeyslotChangeArgs),
    Kill(KeyslotKillArgs),
    Test(KeyslotTestArgs),
    Convert(KeyslotConvertArgs),
    Priority(KeyslotPriorityArgs),
    RecoveryKey(RecoveryKeyArgs),
}

/// Shows the keyslots in use, without any key
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KeyslotListArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// For programs: everything as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Gives the volume's key, or another one, a keyslot with a new passphrase
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KeyslotAddArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// The old passphrase is this keyslot's
    #[arg(long, value_name = "N")]
    pub(crate) key_slot: Option<u32>,
    /// The new keyslot's number; the first that is free by default
    #[arg(long, value_name = "N")]
    pub(crate) new_key_slot: Option<u32>,
    /// The bytes of this file are the volume's key, and no old passphrase is needed; with
    /// --unbound, the other key
    #[arg(long, value_name = "FILE", conflicts_with_all = ["secret", "key_file"])]
    pub(crate) volume_key_file: Option<PathBuf>,
    /// LUKS2: hold another key than the volume's, one that opens no data
    #[arg(long, conflicts_with_all = ["secret", "key_file", "key_slot"])]
    pub(crate) unbound: bool,
    /// The length of that other key, which is random
    #[arg(long, value_name = "BITS", default_value_t = 512, requires = "unbound")]
    pub(crate) key_size: usize,
    /// LUKS2: when the new keyslot is tried
    #[arg(long, value_name = "WHEN", value_enum)]
    pub(crate) priority: Option<Priority>,
    #[command(flatten)]
    pub(crate) area: AreaArgs,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
    #[command(flatten)]
    pub(crate) new: NewSecretArgs,
    #[command(flatten)]
    pub(crate) tokens: TokenArgs,
    #[command(flatten)]
    pub(crate) pbkdf: PbkdfArgs,
}

/// Removes the keyslot that a passphrase opens
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KeyslotRemoveArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// The passphrase is this keyslot's
    #[arg(long, value_name = "N")]
    pub(crate) key_slot: Option<u32>,
    /// Remove the last keyslot without asking: the volume cannot be opened afterwards
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
}

/// Removes a keyslot by its number. The passphrase asked for is that of one that stays
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KeyslotKillArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// The keyslot's number
    #[arg(value_name = "N")]
    pub(crate) number: u32,
    /// Ask for no passphrase, and remove even the last keyslot: the volume cannot be opened
    /// afterwards
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
}

/// Changes the passphrase of the keyslot that the old one opens. The new one is on disk before the
/// old one goes
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KeyslotChangeArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// The old passphrase is this keyslot's
    #[arg(long, value_name = "N")]
    pub(crate) key_slot: Option<u32>,
    /// Where there is no room for both, overwrite the old one: a power cut then loses it
    #[arg(long)]
    pub(crate) in_place: bool,
    #[command(flatten)]
    pub(crate) tcrypt: TcryptHeaderArgs,
    /// The image is of a disk with system encryption. Its PRF stays, and its PIM unless --new-pim
    /// is given
    #[arg(long, conflicts_with_all = ["hidden", "backup_header", "new_prf"])]
    pub(crate) system: bool,
    /// The PIM that VeraCrypt's headers get; none unless given
    #[arg(long, value_name = "N", value_parser = super::tcrypt::pim)]
    pub(crate) new_pim: Option<Pim>,
    /// The function under their key derivation; the old one unless given
    #[arg(long, value_name = "NAME")]
    pub(crate) new_prf: Option<Prf>,
    #[command(flatten)]
    pub(crate) area: AreaArgs,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
    #[command(flatten)]
    pub(crate) new: NewSecretArgs,
    #[command(flatten)]
    pub(crate) pbkdf: PbkdfArgs,
}

/// Gives the keyslot that a passphrase opens another key derivation, hash or cipher, and keeps the
/// passphrase
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KeyslotConvertArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// The passphrase is this keyslot's
    #[arg(long, value_name = "N")]
    pub(crate) key_slot: Option<u32>,
    /// Where there is no room for both, overwrite the old one: a power cut then loses it
    #[arg(long)]
    pub(crate) in_place: bool,
    #[command(flatten)]
    pub(crate) area: AreaArgs,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
    #[command(flatten)]
    pub(crate) pbkdf: PbkdfArgs,
}

/// Tells which keyslot a passphrase or the volume's key opens
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KeyslotTestArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// Try this keyslot only
    #[arg(long, value_name = "N")]
    pub(crate) key_slot: Option<u32>,
    /// The passphrase is a recovery key: reject malformed ones at once
    #[arg(long)]
    pub(crate) recovery_key: bool,
    /// The bytes of this file are the volume's key: is it the right one?
    #[arg(long, value_name = "FILE", conflicts_with_all = ["secret", "key_file", "key_slot", "recovery_key"])]
    pub(crate) volume_key_file: Option<PathBuf>,
    /// The volume's key is the first BITS bits of that file; all of it by default
    #[arg(long, value_name = "BITS", requires = "volume_key_file")]
    pub(crate) volume_key_size: Option<usize>,
    /// LUKS2: try keyslots of other keys than the volume's, too
    #[arg(long)]
    pub(crate) unbound: bool,
    #[command(flatten)]
    pub(crate) tokens: TokenArgs,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
}

/// LUKS2: settles when a keyslot is tried
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KeyslotPriorityArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// The keyslot's number
    #[arg(value_name = "N")]
    pub(crate) number: u32,
    /// When it is tried
    #[arg(value_enum)]
    pub(crate) priority: Priority,
}

/// Adds a keyslot for a new random key that people can type, and prints that key, once
///
/// The key is 256 bits in 64 characters, as systemd-cryptenroll makes it. Wherever a passphrase is
/// asked for it can be typed, with its dashes or without.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RecoveryKeyArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// The passphrase is this keyslot's
    #[arg(long, value_name = "N")]
    pub(crate) key_slot: Option<u32>,
    /// The new keyslot's number; the first that is free by default
    #[arg(long, value_name = "N")]
    pub(crate) new_key_slot: Option<u32>,
    /// The bytes of this file are the volume's key, and no passphrase is needed
    #[arg(long, value_name = "FILE", conflicts_with_all = ["secret", "key_file"])]
    pub(crate) volume_key_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
}

/// The priority of a keyslot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Priority {
    /// Only when it is asked for by its number
    #[value(alias = "ignore")]
    Ignored,
    /// After those that are preferred
    Normal,
    /// First
    #[value(alias = "prefer")]
    Preferred,
}

impl From<Priority> for volume::Priority {
    fn from(priority: Priority) -> Self {
        match priority {
            Priority::Ignored => Self::Ignored,
            Priority::Normal => Self::Normal,
            Priority::Preferred => Self::Preferred,
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  underseal keyslot list disk.img
  underseal keyslot add disk.img --new-key-file usb.key
  underseal keyslot change disk.img --key-slot 1
  underseal keyslot kill disk.img 2
  underseal keyslot convert disk.img --pbkdf argon2id --iter-time 5000
  underseal keyslot recovery-key disk.img
  printf '%s\\n%s\\n' \"$old\" \"$new\" | underseal keyslot change disk.img --passphrase-fd 0 --new-passphrase-fd 0";
