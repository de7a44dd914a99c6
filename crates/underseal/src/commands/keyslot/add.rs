//! The commands that add keyslots.

use std::path::PathBuf;

use clap::Args;
use underseal_cipher::Key;
use underseal_volume::{Cost, Hash, NewKeyslot, Pbkdf, random_key, recovery_key as new_recovery_key};

use super::{EXAMPLES, Opened, Priority};
use crate::cli::{AreaArgs, HeaderPathArgs, NewSecretArgs, PbkdfArgs, SecretArgs, TokenArgs, TrustArgs};
use crate::commands::write_secret;
use crate::error::{Error, Result};
use crate::passphrase::{Secret, volume_key_file};
use crate::persona::{Keyslot, persona};

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

pub(super) fn run(args: &KeyslotAddArgs, quiet: bool) -> Result<()> {
    let mut opened = Opened::to_change(&args.of)?.held_to(&args.trust)?;
    let new = NewKeyslot {
        number: args.new_key_slot,
        priority: args.priority.map(Into::into),
        ..opened.new_keyslot(&args.pbkdf, &args.area)?
    };
    let secret = Secret::another(&args.new, opened.path);
    let added = if args.unbound {
        let other = other_key(args)?;
        let passphrase = secret.get_new()?;
        opened.header.add_unbound_keyslot(&*opened.on, &other, &passphrase, &new)
    } else {
        let key = match &args.volume_key_file {
            Some(file) => opened.volume_key(file, None)?,
            None => {
                let old = Secret::new(args.secret.source(), opened.path);
                let options = opened.options(args.key_slot);
                match opened.unlock_by(&args.tokens, &old, &options)? {
                    Some(unlocked) => unlocked.key,
                    None => opened.unlock(&args.secret, &options)?.key,
                }
            }
        };
        let passphrase = secret.get_new()?;
        opened.header.add_keyslot(&*opened.on, &key, &passphrase, &new)
    };
    let number = added.map_err(|e| opened.error(e))?;
    persona().tell(opened.path, Keyslot::Created(number));
    opened.say(quiet, &format!("keyslot {number} is new"))
}

/// Returns a key other than the volume's: from a file, or random.
fn other_key(args: &KeyslotAddArgs) -> Result<Key> {
    if let Some(file) = &args.volume_key_file {
        return volume_key_file(file, None, args.key_size / 8);
    }
    if !args.key_size.is_multiple_of(8) {
        return Err(Error::usage(format!("{} bits are no whole number of bytes", args.key_size)));
    }
    Ok(random_key(args.key_size / 8)?)
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

pub(super) fn recovery_key(args: &RecoveryKeyArgs) -> Result<()> {
    let mut opened = Opened::to_change(&args.of)?.held_to(&args.trust)?;
    let key = opened.key(args.volume_key_file.as_deref(), &args.secret, args.key_slot)?;
    let recovery = new_recovery_key()?;
    // 256 random bits cannot be guessed, even without a slow derivation; systemd does the same.
    let pbkdf = Pbkdf { cost: Cost::Iterations(1000), ..Pbkdf::pbkdf2() };
    let hash = match opened.header {
        underseal_volume::Header::Luks1(_) => None,
        _ => Some(Hash::Sha512),
    };
    let new = NewKeyslot { number: args.new_key_slot, hash, recovery: true, ..NewKeyslot::new(pbkdf) };
    let added = opened.header.add_keyslot(&*opened.on, &key, &recovery, &new);
    let number = added.map_err(|e| opened.error(e))?;
    let shown = write_secret(recovery.as_bytes()).and_then(|()| write_secret(b"\n"));
    shown.or_else(|e| {
        // A key that was not shown is of no use.
        let removed = opened.header.remove_keyslot(&*opened.on, number, false);
        removed.map_err(|e| opened.error(e))?;
        Err(e.within("the key is removed again"))
    })
}
