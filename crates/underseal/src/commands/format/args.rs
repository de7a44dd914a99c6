//! The arguments of `underseal format`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use underseal_cipher::CipherSpec;
use underseal_formats::tcrypt::{Pim, Prf};
use uuid::Uuid;

use crate::cli::{AreaArgs, PbkdfArgs, SecretArgs, integrity_type, pim};
use crate::size;

/// Makes an encrypted volume.
///
/// IMAGE is created (for you alone, and sparse) if it does not exist; else it must be empty, or
/// --force given. What is made here opens with cryptsetup and QEMU too.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct FormatArgs {
    /// The image or block device, an NBD server's export (nbd://..., nbd+unix://...), or an image
    /// on Ceph (rbd:POOL/IMAGE)
    pub(crate) image: PathBuf,
    /// The image's size, header included (LUKS2's takes 16 MiB); needed where it does not exist yet
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) size: Option<u64>,
    /// Size of the decrypted volume; the image is made larger by the header and, with --integrity,
    /// the tags and journal
    #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with = "size")]
    pub(crate) plain_size: Option<u64>,
    /// Print how large the image has to be, and make nothing, if another program makes the image
    #[arg(long, requires = "plain_size", conflicts_with = "size")]
    pub(crate) dry_run: bool,
    /// For programs: what was made (or would be), as one JSON object. Fields may be added
    #[arg(long)]
    pub(crate) json: bool,
    /// The type of the volume
    #[arg(long = "type", value_name = "TYPE", value_enum, default_value_t = NewType::Luks2)]
    pub(crate) kind: NewType,
    /// Write the header to this file instead; IMAGE then looks like noise
    #[arg(long, value_name = "FILE")]
    pub(crate) header: Option<PathBuf>,
    /// Overwrite what is there without asking
    #[arg(long)]
    pub(crate) force: bool,

    /// The cipher of the data
    #[arg(long, value_name = "CIPHER", default_value = "aes-xts-plain64", value_parser = cipher, help_heading = CIPHER)]
    pub(crate) cipher: CipherSpec,
    /// The volume key's length; the cipher's largest by default
    #[arg(long, value_name = "BITS", help_heading = CIPHER)]
    pub(crate) key_size: Option<usize>,
    /// Bytes a sector, 512 to 4096; 4096 by default where the data's size and the cipher allow it
    /// (LUKS1: 512)
    #[arg(long, value_name = "BYTES", help_heading = CIPHER)]
    pub(crate) sector_size: Option<u32>,
    /// Accept cipher_null, which encrypts nothing
    #[arg(long, help_heading = CIPHER)]
    pub(crate) allow_null: bool,

    /// LUKS2: keep a tag beside each sector, so that a changed one is noticed: hmac-sha256,
    /// hmac-sha512, hmac-sha1 or cmac-aes with a usual cipher; "aead" with aes-gcm-random,
    /// aegis128-random or aes-ccm-random; poly1305 with chacha20-random; "none" for random IVs
    /// alone
    #[arg(long, value_name = "TYPE", value_parser = integrity_type, help_heading = AUTHENTICATED)]
    pub(crate) integrity: Option<String>,
    /// The MAC's part of the key; its digest's length by default
    #[arg(long, value_name = "BITS", requires = "integrity", help_heading = AUTHENTICATED)]
    pub(crate) integrity_key_size: Option<usize>,
    /// Let every open write in place, without the journal: faster, but blocks that are being
    /// written during a power cut cannot be read afterwards
    #[arg(long, requires = "integrity", help_heading = AUTHENTICATED)]
    pub(crate) integrity_no_journal: bool,
    /// Do not fill it with zeros: what was never written cannot be read then, and a file system
    /// must not expect it to
    #[arg(long, requires = "integrity", help_heading = AUTHENTICATED)]
    pub(crate) integrity_no_wipe: bool,

    #[command(flatten)]
    pub(crate) veracrypt: NewVeracryptArgs,

    #[command(flatten)]
    pub(crate) pbkdf: PbkdfArgs,

    /// LUKS2: a name for people, up to 47 bytes
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, help_heading = NAMES)]
    pub(crate) label: String,
    /// LUKS2: a second name, up to 47 bytes
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, help_heading = NAMES)]
    pub(crate) subsystem: String,
    /// The UUID; random by default
    #[arg(long, value_name = "UUID", help_heading = NAMES)]
    pub(crate) uuid: Option<Uuid>,

    /// LUKS2: the size of one copy of the metadata, a power of two from 16K to 4M
    #[arg(long, value_name = "SIZE", value_parser = size::parse, help_heading = LAYOUT)]
    pub(crate) metadata_size: Option<u64>,
    /// LUKS2: the room for keyslots; all that is left before the data by default
    #[arg(long, value_name = "SIZE", value_parser = size::parse, help_heading = LAYOUT)]
    pub(crate) keyslots_size: Option<u64>,
    /// Where the data begins on the image; behind the header by default, or at 0 with --header
    #[arg(long, value_name = "BYTES", value_parser = size::parse, help_heading = LAYOUT)]
    pub(crate) data_offset: Option<u64>,
    /// The number of the keyslot
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = LAYOUT)]
    pub(crate) key_slot: u32,
    #[command(flatten)]
    pub(crate) area: AreaArgs,
    /// The volume key: all bytes of this file ("-" is stdin); a random one by default
    #[arg(long, value_name = "FILE", help_heading = CIPHER)]
    pub(crate) volume_key_file: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) secret: SecretArgs,
}

/// The types of volumes that can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NewType {
    /// A header with both copies, Argon2id, sectors up to 4096 bytes
    Luks2,
    /// The older header: PBKDF2 and 512-byte sectors
    Luks1,
    /// No header: only the file is made, and its parameters are given when it is opened
    Plain,
    /// A volume that VeraCrypt opens, and that looks like noise
    Veracrypt,
}

/// The parameters of a new VeraCrypt volume.
#[derive(Debug, Args)]
#[command(next_help_heading = "VeraCrypt volumes (--type veracrypt)")]
pub(crate) struct NewVeracryptArgs {
    /// Make a hidden volume of this size inside of the VeraCrypt volume that the image is, at its
    /// end. It needs a passphrase of its own, and the outer file system must not use that room
    #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with_all = ["size", "plain_size"])]
    pub(crate) hidden_size: Option<u64>,
    /// The function under the key derivation: sha512 (the default), sha256, blake2s-256, whirlpool,
    /// streebog512, ripemd160, argon2id
    #[arg(long, value_name = "NAME")]
    pub(crate) prf: Option<Prf>,
    /// VeraCrypt's Personal Iterations Multiplier, which has to be given each time the volume is
    /// opened
    #[arg(long, value_name = "N", value_parser = pim)]
    pub(crate) pim: Option<Pim>,
    /// Do not fill the volume with noise: what was never written shows then, and that there is a
    /// hidden volume may show too
    #[arg(long)]
    pub(crate) quick: bool,
}

/// Parses a cipher specification as LUKS2 writes it. Ciphers without a mode are accepted by the
/// kernel's name alone.
fn cipher(text: &str) -> Result<CipherSpec, underseal_cipher::Error> {
    text.parse().or_else(|e| match text.split_once('-') {
        Some((_, iv)) if !iv.contains('-') && !text.starts_with("capi:") => {
            format!("capi:{text}").parse().map_err(|_| e)
        }
        _ => Err(e),
    })
}

const AUTHENTICATED: &str = "Authenticated volumes";
const CIPHER: &str = "Cipher";
const NAMES: &str = "Names";
const LAYOUT: &str = "Layout";

const EXAMPLES: &str = "\
Examples:
  underseal format disk.img --size 10G
  underseal format disk.img --size 10G --passphrase-file pass.txt --label backup
  underseal format disk.img --plain-size 10G --pbkdf-memory low
  underseal format rbd:pool/image --plain-size 10G --dry-run --json    # how large `rbd create` has to make it
  underseal format /dev/sdx1 --iter-time 5000
  underseal format disk.img --size 10G --header disk.header
  underseal format disk.img --size 10G --cipher aes-gcm-random --integrity aead
  underseal format disk.img --size 10G --type luks1 --cipher aes-cbc-essiv:sha256
  underseal format stick.hc --size 10G --type veracrypt --cipher serpent-twofish-aes --prf whirlpool
  underseal format stick.hc --type veracrypt --hidden-size 2G        inside of the volume that is there";
