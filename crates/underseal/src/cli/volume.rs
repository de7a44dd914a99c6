//! The options that name a volume, and how it is opened.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use underseal_cipher::CipherSpec;
use underseal_device::OpenOptions;
use underseal_formats::Format;
use underseal_formats::tcrypt::ChainFilter;
use underseal_integrity::RunSettings;
use underseal_volume::plain::PassphraseHash;

use super::{PartArgs, SecretArgs, TcryptArgs, TokenArgs, TrustArgs};
use crate::error::{Error, Result};
use crate::size;

/// The volume that a command works on.
#[derive(Debug, Args)]
pub(crate) struct VolumeArgs {
    /// The image or block device with the encrypted data; or an NBD server's export:
    /// nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH, with reconnect-delay=SECONDS (30) for a
    /// server that goes away; or an image on Ceph: rbd:POOL/IMAGE, with @SNAPSHOT, :id=USER,
    /// :conf=FILE behind it
    pub(crate) image: PathBuf,
    /// The LUKS header is in this file
    #[arg(long, value_name = "FILE")]
    pub(crate) header: Option<PathBuf>,
    /// FileVault 2 on several disks: another one of them, in any order; may be repeated.
    /// --partition and --offset-bytes hold for each
    #[arg(long, value_name = "IMAGE")]
    pub(crate) other_device: Vec<OsString>,
    /// The format of the image
    #[arg(long = "type", value_name = "TYPE", value_enum, default_value_t = VolumeType::Luks)]
    pub(crate) kind: VolumeType,
    /// Try this keyslot only
    #[arg(long, value_name = "N")]
    pub(crate) key_slot: Option<u32>,
    /// The bytes of this file are the volume's key, and no passphrase is needed ("-" is stdin): of
    /// LUKS, BitLocker, FileVault 2
    #[arg(long, value_name = "FILE", conflicts_with_all = ["secret", "key_file", "key_slot"])]
    pub(crate) volume_key_file: Option<PathBuf>,
    /// The volume's key is the first BITS bits of that file; all of it by default
    #[arg(long, value_name = "BITS", requires = "volume_key_file")]
    pub(crate) volume_key_size: Option<usize>,
    #[command(flatten)]
    pub(crate) lower: LowerArgs,
    /// Accept a volume that is not encrypted (cipher_null)
    #[arg(long)]
    pub(crate) allow_null: bool,
    #[command(flatten)]
    pub(crate) integrity: LayerArgs,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) part: PartArgs,
    #[command(flatten)]
    pub(crate) tcrypt: TcryptArgs,
    #[command(flatten)]
    pub(crate) plain: PlainArgs,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
    #[command(flatten)]
    pub(crate) tokens: TokenArgs,
}

/// The options that name a header.
#[derive(Debug, Args)]
pub(crate) struct HeaderPathArgs {
    /// The image or block device, an NBD server's export (nbd://..., nbd+unix://...), or an image
    /// on Ceph (rbd:POOL/IMAGE)
    pub(crate) image: PathBuf,
    /// The header is in this file; IMAGE is not looked at
    #[arg(long, value_name = "FILE")]
    pub(crate) header: Option<PathBuf>,
}

impl HeaderPathArgs {
    /// Returns the path of the header.
    pub(crate) fn path(&self) -> &Path {
        self.header.as_ref().unwrap_or(&self.image)
    }
}

/// The options for opening an image's file or device.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct LowerArgs {
    /// Go past the page cache (O_DIRECT)
    #[arg(long)]
    pub(crate) direct: bool,
    /// Do not lock the image, if its file system has no locks. Make sure that no other program
    /// writes to it
    #[arg(long)]
    pub(crate) no_lock: bool,
}

impl LowerArgs {
    pub(crate) fn options(self, read_only: bool) -> OpenOptions {
        OpenOptions { read_only, direct: self.direct, unlocked: self.no_lock }
    }
}

/// The options for the integrity layer below an authenticated volume.
#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "Authenticated volumes")]
pub(crate) struct LayerArgs {
    /// Write in place, without the journal: faster, and what is being written when the power goes
    /// cannot be read afterwards. A journal that was left behind is replayed all the same
    #[arg(long)]
    pub(crate) integrity_no_journal: bool,
    /// Read what is in its place, whatever the journal holds; nothing is written
    #[arg(long, conflicts_with = "integrity_no_journal")]
    pub(crate) integrity_recovery_mode: bool,
    #[command(flatten)]
    pub(crate) cache: TagCacheArgs,
}

/// The memory limit of an integrity layer.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct TagCacheArgs {
    /// Keep at most SIZE bytes of sectors' tags in memory; 16M unless given
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    tag_cache: Option<u64>,
}

impl TagCacheArgs {
    pub(crate) fn settings(self) -> RunSettings {
        let defaults = RunSettings::default();
        let most = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        RunSettings { tag_cache: self.tag_cache.map_or(defaults.tag_cache, most), ..defaults }
    }
}

/// The formats of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum VolumeType {
    /// LUKS1 or LUKS2, whichever the header says
    Luks,
    /// LUKS1 only
    Luks1,
    /// LUKS2 only
    Luks2,
    /// No header at all; wrong parameters give noise, not an error
    Plain,
    /// TrueCrypt or VeraCrypt: nothing on the image tells of it
    Tcrypt,
    /// BitLocker; recognised without this
    Bitlk,
    /// FileVault 2 on CoreStorage; recognised without this
    Fvault2,
    /// loop-AES: a key file and no header
    Loopaes,
}

impl VolumeType {
    /// Returns the format of another system, if it was named.
    pub(crate) fn format(self) -> Option<Format> {
        match self {
            Self::Luks | Self::Luks1 | Self::Luks2 | Self::Plain => None,
            Self::Tcrypt => Some(Format::Tcrypt),
            Self::Bitlk => Some(Format::Bitlk),
            Self::Fvault2 => Some(Format::Fvault2),
            Self::Loopaes => Some(Format::Loopaes),
        }
    }
}

/// A plain volume has no header: these must be what they were when it was written.
#[derive(Debug, Args)]
#[command(next_help_heading = "Plain volumes (--type plain)")]
pub(crate) struct PlainArgs {
    /// The cipher; aes-xts-plain64 unless given. TrueCrypt and VeraCrypt: the chain, where it is
    /// known, in the order of encryption (serpent-twofish-aes) or as VeraCrypt writes it
    /// ("AES(Twofish(Serpent))")
    #[arg(long, value_name = "CIPHER")]
    pub(crate) cipher: Option<CipherArg>,
    /// The key's length
    #[arg(long, value_name = "BITS", default_value_t = 256)]
    pub(crate) key_size: usize,
    /// How a passphrase becomes the key: a hash's name, "plain" for none, HASH:BYTES to use fewer
    /// (a key file is used as it is); sha256 unless given. loop-AES: how a line of the key file
    /// does
    #[arg(long, value_name = "HASH")]
    hash: Option<PassphraseHash>,
    /// Bytes a sector
    #[arg(long, value_name = "BYTES", default_value_t = 512)]
    pub(crate) sector_size: u32,
    /// IVs count sectors of that size, not of 512 bytes
    #[arg(long)]
    pub(crate) iv_large_sectors: bool,
    /// Where the data begins on the image ("2048s" is 2048 sectors)
    #[arg(long, value_name = "BYTES", value_parser = size::parse, default_value = "0")]
    pub(crate) data_offset: u64,
    /// The data's length; all of the image by default
    #[arg(long, value_name = "BYTES", value_parser = size::parse, visible_alias = "size")]
    pub(crate) data_size: Option<u64>,
    /// Added to sector numbers in IVs, in 512-byte sectors as in cryptsetup; 0 unless given.
    /// loop-AES: the number of the first sector, by default where the data begins
    #[arg(long, value_name = "SECTORS")]
    pub(crate) skip: Option<u64>,
}

impl PlainArgs {
    /// Returns the cipher of a plain volume. Fails with `Usage` for a chain of VeraCrypt's.
    pub(crate) fn cipher(&self) -> Result<CipherSpec> {
        let text = self.cipher.as_ref().map_or("aes-xts-plain64", |cipher| &cipher.0);
        text.parse().map_err(|e| Error::usage(format!("--cipher {text}")).because(&e))
    }

    /// Returns the hash, if it was named.
    pub(crate) fn named_hash(&self) -> Option<PassphraseHash> {
        self.hash
    }

    /// Returns the hash that makes a plain volume's key of a passphrase.
    pub(crate) fn hash(&self) -> PassphraseHash {
        self.hash.unwrap_or_default()
    }
}

/// A cipher of dm-crypt, or a chain of VeraCrypt: `--type` decides which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CipherArg(pub(crate) String);

impl std::str::FromStr for CipherArg {
    type Err = underseal_cipher::Error;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        if text.parse::<ChainFilter>().is_err() {
            text.parse::<CipherSpec>()?;
        }
        Ok(Self(text.to_owned()))
    }
}
