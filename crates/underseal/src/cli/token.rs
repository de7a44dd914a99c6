//! The options for tokens that open a volume.

use std::path::PathBuf;

use clap::Args;

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
