//! `underseal format`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use underseal_cipher::CipherSpec;
use uuid::Uuid;

use super::{AreaArgs, PbkdfArgs, SecretArgs};
use crate::size;

/// Makes an encrypted volume.
///
/// IMAGE is created (for you alone, and sparse) if it does not exist; else it must be empty, or --force given. What
/// is made here opens with cryptsetup and QEMU too.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct FormatArgs {
    /// The image or block device, or an NBD server's export (nbd://..., nbd+unix://...)
    pub(crate) image: PathBuf,
    /// The image's size, header included (LUKS2's takes 16 MiB); needed where it does not exist yet
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) size: Option<u64>,
    /// What to make
    #[arg(long = "type", value_name = "TYPE", value_enum, default_value_t = NewType::Luks2)]
    pub(crate) kind: NewType,
    /// Write the header to this file instead; IMAGE then looks like noise
    #[arg(long, value_name = "FILE")]
    pub(crate) header: Option<PathBuf>,
    /// Overwrite what is there without asking
    #[arg(long)]
    pub(crate) force: bool,

    /// The cipher of the data
    #[arg(long, value_name = "CIPHER", default_value = "aes-xts-plain64", help_heading = CIPHER)]
    pub(crate) cipher: CipherSpec,
    /// The volume key's length; the cipher's largest by default
    #[arg(long, value_name = "BITS", help_heading = CIPHER)]
    pub(crate) key_size: Option<usize>,
    /// Bytes a sector, 512 to 4096; 4096 by default where the data's size and the cipher allow it (LUKS1: 512)
    #[arg(long, value_name = "BYTES", help_heading = CIPHER)]
    pub(crate) sector_size: Option<u32>,
    /// Accept cipher_null, which encrypts nothing
    #[arg(long, help_heading = CIPHER)]
    pub(crate) allow_null: bool,

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

/// What can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NewType {
    /// A header with both copies, Argon2id, sectors up to 4096 bytes
    Luks2,
    /// The older header: PBKDF2 and 512-byte sectors
    Luks1,
    /// No header: only the file is made, and its parameters are given when it is opened
    Plain,
}

const CIPHER: &str = "Cipher";
const NAMES: &str = "Names";
const LAYOUT: &str = "Layout";

const EXAMPLES: &str = "\
Examples:
  underseal format disk.img --size 10G
  underseal format disk.img --size 10G --passphrase-file pass.txt --label backup
  underseal format /dev/sdx1 --iter-time 5000
  underseal format disk.img --size 10G --header disk.header
  underseal format disk.img --size 10G --type luks1 --cipher aes-cbc-essiv:sha256";
