//! Options for a TrueCrypt or VeraCrypt volume, and for a volume's place in an image.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use underseal_formats::tcrypt::{ChainFilter, Pim, Place, Prf, UnlockOptions};

use super::TrustArgs;
use super::volume::PlainArgs;
use crate::error::{Error, Result};
use crate::size;

/// The part of the image that holds the volume.
#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "Image of a whole disk")]
pub(crate) struct PartArgs {
    /// The volume is partition N of the image (GPT or MBR). TrueCrypt and VeraCrypt with --system:
    /// the partition of the encrypted system that is opened
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) partition: Option<u32>,
    /// The volume, or with --system the partition, begins at this byte of the image and ends with
    /// it
    #[arg(long, value_name = "BYTES", value_parser = size::parse, conflicts_with = "partition")]
    pub(crate) offset_bytes: Option<u64>,
}

/// Which header of a TrueCrypt or VeraCrypt volume is opened, and how. Nothing of this is known
/// from the image: what is not given is tried.
#[derive(Debug, Args)]
#[command(next_help_heading = "TrueCrypt and VeraCrypt volumes (--type tcrypt)")]
pub(crate) struct TcryptArgs {
    /// Open the hidden volume
    #[arg(long, conflicts_with = "system")]
    pub(crate) hidden: bool,
    /// Open by the backup header at the volume's end
    #[arg(long, conflicts_with = "system")]
    pub(crate) backup_header: bool,
    /// The image is of a disk with system encryption; --partition says which partition is opened
    #[arg(long)]
    pub(crate) system: bool,
    /// VeraCrypt's Personal Iterations Multiplier
    #[arg(long, value_name = "N", value_parser = pim)]
    pub(crate) pim: Option<Pim>,
    /// The function under the key derivation, where it is known: sha512, sha256, blake2s-256,
    /// whirlpool, streebog512, ripemd160, sha1, argon2id; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) prf: Vec<Prf>,
    /// Try TrueCrypt's derivations only
    #[arg(long)]
    pub(crate) no_veracrypt: bool,
    /// Try only chains whose name contains this: cryptsetup's --cipher
    #[arg(long, value_name = "PART", hide = true, conflicts_with = "cipher")]
    pub(crate) chain_part: Option<String>,
    /// Refuse writes to the hidden volume inside of this one, which its own passphrase finds, and
    /// every write after such a one
    #[arg(long, conflicts_with_all = ["hidden", "system"])]
    pub(crate) protect_hidden: bool,
    /// The first line of this file is the hidden volume's passphrase, which is asked for on the
    /// terminal unless this is given
    #[arg(long, value_name = "FILE", requires = "protect_hidden")]
    pub(crate) hidden_passphrase_file: Option<PathBuf>,
    /// The hidden volume's PIM
    #[arg(long, value_name = "N", value_parser = pim, requires = "protect_hidden")]
    pub(crate) hidden_pim: Option<Pim>,
    /// A key file of the hidden volume, or a folder of them; may be repeated
    #[arg(long, value_name = "FILE", requires = "protect_hidden")]
    pub(crate) hidden_key_file: Vec<OsString>,
}

/// Which header of a TrueCrypt or VeraCrypt volume is changed, for commands that otherwise work on
/// LUKS headers.
#[derive(Debug, Args)]
#[command(next_help_heading = "TrueCrypt and VeraCrypt headers (--type tcrypt)")]
pub(crate) struct TcryptHeaderArgs {
    /// The format of the image
    #[arg(long = "type", value_name = "TYPE", value_enum, default_value_t = HeaderKind::Luks)]
    pub(crate) kind: HeaderKind,
    /// The hidden volume's headers
    #[arg(long)]
    pub(crate) hidden: bool,
    /// Open the backup header; both are written
    #[arg(long)]
    pub(crate) backup_header: bool,
    /// VeraCrypt's Personal Iterations Multiplier
    #[arg(long, value_name = "N", value_parser = pim)]
    pub(crate) pim: Option<Pim>,
    /// The function under the key derivation, where it is known; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) prf: Vec<Prf>,
}

/// The volume whose headers a command changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum HeaderKind {
    /// LUKS1 or LUKS2
    Luks,
    /// TrueCrypt or VeraCrypt
    Tcrypt,
}

pub(crate) fn pim(text: &str) -> std::result::Result<Pim, String> {
    let number = text.parse().map_err(|_| "want a number".to_owned())?;
    Pim::new(number).map_err(|e| e.to_string())
}

impl TcryptArgs {
    /// Returns the secrets to try on each header. Fails with `Usage` for ciphers that no chain has.
    pub(crate) fn options(&self, plain: &PlainArgs, trust: &TrustArgs) -> Result<UnlockOptions> {
        let chains = match (&self.chain_part, &plain.cipher) {
            (Some(part), _) => ChainFilter::containing(part),
            (None, Some(cipher)) => cipher.0.parse().map_err(|e: underseal_formats::Error| {
                let remedy = "serpent-twofish-aes, \"AES(Twofish(Serpent))\", or no --cipher: all are tried";
                Error::usage(format!("--cipher {}: {e}", cipher.0)).with_remedy(remedy)
            })?,
            (None, None) => ChainFilter::default(),
        };
        // clap ensures that the options do not contradict each other.
        let place = Place::named(self.hidden, self.backup_header, self.system).unwrap_or(Place::Normal);
        Ok(UnlockOptions {
            place,
            pim: self.pim.unwrap_or_default(),
            prfs: self.prf.clone(),
            chains,
            veracrypt: !self.no_veracrypt,
            limits: trust.limits(),
            ..UnlockOptions::default()
        })
    }

    /// Returns the secrets to try on the header of the protected hidden volume.
    pub(crate) fn hidden_options(&self, trust: &TrustArgs) -> UnlockOptions {
        UnlockOptions {
            place: if self.backup_header { Place::BackupHidden } else { Place::Hidden },
            pim: self.hidden_pim.unwrap_or_default(),
            veracrypt: !self.no_veracrypt,
            limits: trust.limits(),
            ..UnlockOptions::default()
        }
    }
}
