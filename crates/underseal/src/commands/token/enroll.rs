//! A new keyslot whose passphrase a token keeps.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use underseal_cipher::Key;
use underseal_tokens::{Token, Tpm2Enrollment};
use underseal_volume::luks2::NewToken;
use underseal_volume::{Cost, FormatOptions, NewKeyslot, Pbkdf, UnlockOptions};

use super::EXAMPLES;
use crate::cli::{HardwareArgs, HeaderPathArgs, SecretArgs, TrustArgs};
use crate::error::{Error, Result};
use crate::output::print;
use crate::passphrase::{Secret, ask_hidden, first_line_of_file};
use crate::tokens;

/// Adds a keyslot whose passphrase something else keeps, and its token
///
/// A passphrase that the volume has already is asked for, or given by the options below.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct EnrollArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// The new keyslot's number; the first that is free by default
    #[arg(long, value_name = "N")]
    pub(crate) key_slot: Option<u32>,
    /// The new token's number; the first that is free by default
    #[arg(long, value_name = "N")]
    pub(crate) token_id: Option<u32>,
    #[command(flatten)]
    pub(crate) hardware: HardwareArgs,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
    #[command(subcommand)]
    pub(crate) into: EnrollInto,
}

#[derive(Debug, Subcommand)]
pub(crate) enum EnrollInto {
    /// A TPM 2.0, as systemd-cryptenroll does it
    #[command(after_help = EXAMPLES)]
    Tpm2 {
        /// PCRs that must be as they are now: numbers with + between them; "none" for none
        #[arg(long, value_name = "N+N..", default_value = "7")]
        pcrs: String,
        /// The PCRs' bank: sha1, sha256, sha384, sha512
        #[arg(long, value_name = "HASH", default_value = "sha256")]
        bank: String,
        #[command(flatten)]
        pin: TokenPinArgs,
    },
    /// A FIDO2 device that has hmac-secret, as systemd-cryptenroll does it
    #[command(after_help = EXAMPLES)]
    Fido2 {
        #[command(flatten)]
        pin: TokenPinArgs,
    },
    /// A pin of clevis's, as `clevis luks bind` does it
    #[command(after_help = EXAMPLES)]
    Clevis {
        /// The pin's name: tang, tpm2, sss
        pin: String,
        /// The pin's configuration, in JSON
        config: String,
        /// Take a server's keys without asking whether they are right (clevis -y)
        #[arg(long)]
        trust: bool,
    },
    /// A key of the kernel's keyring that is there already: its payload opens the new keyslot
    #[command(after_help = EXAMPLES)]
    Keyring {
        /// The description of a key of type user
        description: String,
    },
}

pub(super) fn run(args: &EnrollArgs, quiet: bool) -> Result<()> {
    let (on, mut header) = super::open_pinned(&args.of, false, &args.trust.pinned())?;
    let path = args.of.path();
    let in_file = |e: underseal_volume::Error| e.in_file(path);
    let secret = Secret::new(args.secret.source(), &args.of.image);
    let options = UnlockOptions { limits: args.trust.limits(), ..UnlockOptions::default() };
    let unlocked = secret.try_with(|key| Ok(header.unlock(&*on, key, &options).map_err(in_file)?))?;
    let (passphrase, token) = new_secret(args)?;
    // A random secret needs no slow derivation; a passphrase that a person chose does.
    let pbkdf = match args.into {
        EnrollInto::Keyring { .. } => FormatOptions::luks2().pbkdf,
        _ => Pbkdf { cost: Cost::Iterations(1000), ..Pbkdf::pbkdf2() },
    };
    let new = NewKeyslot { number: args.key_slot, ..NewKeyslot::new(pbkdf) };
    // Only the token knows the passphrase of that keyslot: without its token it would be of no use.
    let place = NewToken { number: args.token_id, replace: false };
    let added = header.add_keyslot_with_token(&*on, &unlocked.key, &passphrase, &new, (token, place));
    let (slot, number) = added.map_err(in_file)?;
    if quiet { Ok(()) } else { print(&format!("{}: token {number} opens keyslot {slot}\n", path.display())) }
}

fn new_secret(args: &EnrollArgs) -> Result<(Key, Token)> {
    let options = tokens::options(&args.hardware)?;
    Ok(match &args.into {
        EnrollInto::Tpm2 { pcrs, bank, pin } => {
            let how = Tpm2Enrollment { pcrs: parse_pcrs(pcrs)?, bank: bank.clone() };
            underseal_tokens::enroll_tpm2(&how, new_pin(pin, true)?.as_ref(), &options)?
        }
        EnrollInto::Fido2 { pin } => underseal_tokens::enroll_fido2(new_pin(pin, false)?.as_ref(), &options)?,
        EnrollInto::Clevis { pin, config, trust } => {
            underseal_tokens::enroll_clevis(pin, config, *trust, &options)?
        }
        EnrollInto::Keyring { description } => underseal_tokens::enroll_keyring(description)?,
    })
}

/// A PIN for something new.
#[derive(Debug, Args)]
pub(crate) struct TokenPinArgs {
    /// Ask for the PIN that is needed from now on (FIDO2: the device's own)
    #[arg(long)]
    pub(crate) pin: bool,
    /// The PIN is the first line of this file
    #[arg(long, value_name = "FILE", conflicts_with = "pin")]
    pub(crate) pin_file: Option<PathBuf>,
}

/// Returns a PIN: a new one is typed twice, an existing one of a device once.
fn new_pin(args: &TokenPinArgs, is_new: bool) -> Result<Option<Key>> {
    if let Some(path) = &args.pin_file {
        return first_line_of_file(path).map(Some);
    }
    if !args.pin {
        return Ok(None);
    }
    let pin = ask_hidden("PIN: ")?;
    if pin.is_empty() {
        return Err(Error::usage("an empty PIN protects nothing").with_remedy("without --pin"));
    }
    if is_new && pin != ask_hidden("The same again: ")? {
        return Err(Error::usage("the two PINs differ").with_remedy("retype both slowly"));
    }
    Ok(Some(pin))
}

fn parse_pcrs(text: &str) -> Result<Vec<u8>> {
    if text == "none" || text.is_empty() {
        return Ok(Vec::new());
    }
    let number = |part: &str| part.parse().ok().filter(|&pcr: &u8| pcr < 24);
    let mut pcrs = Vec::new();
    for part in text.split(['+', ',']) {
        let pcr = number(part).ok_or_else(|| {
            Error::usage(format!("{part} is no PCR: they are 0 to 23")).with_remedy("--pcrs 7+11, or none")
        })?;
        pcrs.push(pcr);
    }
    pcrs.sort_unstable();
    pcrs.dedup();
    Ok(pcrs)
}
