//! `underseal token`, and the options for tokens that open a volume.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{HeaderPathArgs, SecretArgs, TrustArgs};

/// Tokens are tried before the terminal, unless a passphrase or key file is given.
#[derive(Debug, Args)]
#[command(next_help_heading = "Tokens (LUKS2: TPM, FIDO2, smart card, clevis, keyring)")]
pub(crate) struct TokenArgs {
    /// Ask this token only
    #[arg(long, value_name = "N", conflicts_with = "no_token")]
    pub(crate) token_id: Option<u32>,
    /// Ask tokens of this type only
    #[arg(long, value_name = "TYPE", conflicts_with = "no_token")]
    pub(crate) token_type: Option<String>,
    /// Do not ask for a passphrase when no token opens the volume
    #[arg(long, conflicts_with_all = ["no_token", "secret", "key_file"])]
    pub(crate) token_only: bool,
    /// Try tokens first even where a passphrase is given; their PIN is not asked for then
    #[arg(long, conflicts_with = "no_token")]
    pub(crate) tokens_first: bool,
    /// Ask no token
    #[arg(long)]
    pub(crate) no_token: bool,
    /// The PIN of a token is the first line of this file
    #[arg(long, value_name = "FILE", conflicts_with = "no_token")]
    pub(crate) token_pin_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) hardware: HardwareArgs,
}

impl TokenArgs {
    /// Returns true when an option asks for tokens.
    pub(crate) fn are_named(&self) -> bool {
        self.token_id.is_some() || self.token_type.is_some() || self.token_only
    }
}

/// A machine's hardware, which no header can name.
#[derive(Debug, Args)]
pub(crate) struct HardwareArgs {
    /// The TPM, as tpm2-tools name it; /dev/tpmrm0 by default
    #[arg(long, value_name = "TCTI")]
    pub(crate) tpm2_device: Option<String>,
    /// The FIDO2 device; every one that is there by default
    #[arg(long, value_name = "PATH")]
    pub(crate) fido2_device: Option<PathBuf>,
    /// The PKCS#11 module; p11-kit's by default
    #[arg(long, value_name = "PATH")]
    pub(crate) pkcs11_module: Option<PathBuf>,
}

/// Lists and changes the tokens of a LUKS2 header.
///
/// A token says where a passphrase of some keyslots may be had: from a TPM, a FIDO2 device, a smart
/// card, a server, the kernel's keyring. It is JSON; what this program does not understand is kept
/// as it is.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TokenCommandArgs {
    #[command(subcommand)]
    pub(crate) what: Token,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Token {
    List(TokenListArgs),
    Import(TokenImportArgs),
    Export(TokenExportArgs),
    Remove(TokenRemoveArgs),
    Assign(TokenAssignArgs),
    /// Lets a token no longer open a keyslot; both stay
    #[command(after_help = EXAMPLES)]
    Unassign(TokenAssignArgs),
    Enroll(Box<EnrollArgs>),
}

/// Lists the tokens and the keyslots that they open
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TokenListArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// For programs: everything as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Adds a token from its JSON
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TokenImportArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// The token's JSON; "-" is stdin
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub(crate) json_file: PathBuf,
    /// The new token's number; the first that is free by default
    #[arg(long, value_name = "N")]
    pub(crate) token_id: Option<u32>,
    /// Take the place of the token that has this number
    #[arg(long, requires = "token_id")]
    pub(crate) replace: bool,
    /// Let it open this keyslot besides those that it names
    #[arg(long, value_name = "N")]
    pub(crate) key_slot: Option<u32>,
}

/// Prints a token's JSON
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TokenExportArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// The token's number
    #[arg(long, value_name = "N")]
    pub(crate) token_id: u32,
}

/// Removes a token; its keyslots stay
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TokenRemoveArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// The token's number
    #[arg(long, value_name = "N")]
    pub(crate) token_id: u32,
}

/// Lets a token open a keyslot
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TokenAssignArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// The token's number
    #[arg(long, value_name = "N")]
    pub(crate) token_id: u32,
    /// The keyslot's number
    #[arg(long, value_name = "N")]
    pub(crate) key_slot: u32,
}

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

const EXAMPLES: &str = "\
Examples:
  underseal token list disk.img
  underseal token enroll disk.img tpm2 --pcrs 7+11 --pin
  underseal token enroll disk.img --passphrase-file old clevis tang '{\"url\":\"http://tang\"}' --trust
  underseal token export disk.img --token-id 0 | underseal token import other.img
  underseal token remove disk.img --token-id 0";
