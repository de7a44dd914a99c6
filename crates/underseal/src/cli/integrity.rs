//! `underseal integrity`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{LowerArgs, ServeArgs, TagCacheArgs};
use crate::size;

/// Works on dm-integrity volumes that stand alone: a checksum or MAC for each block, nothing
/// encrypted.
///
/// What is made here opens with integritysetup and the kernel, and the other way round. The
/// superblock does not say which hash made the checksums: it has to be named each time, and with a
/// wrong one nothing can be read.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct IntegrityCommandArgs {
    #[command(subcommand)]
    pub(crate) what: Integrity,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Integrity {
    Format(IntegrityFormatArgs),
    Open(Box<IntegrityOpenArgs>),
    Info(IntegrityInfoArgs),
    Check(IntegrityCheckArgs),
    Recalculate(IntegrityRecalculateArgs),
}

/// The image of a volume.
#[derive(Debug, Args)]
pub(crate) struct IntegrityPlaceArgs {
    /// The image or block device, an NBD server's export (nbd://..., nbd+unix://...), or an image
    /// on Ceph (rbd:POOL/IMAGE)
    pub(crate) image: PathBuf,
    /// The data alone are here; IMAGE then has superblock, journal and checksums
    #[arg(long, value_name = "FILE")]
    pub(crate) data_device: Option<PathBuf>,
    /// Where the superblock is ("2048s" is 2048 sectors)
    #[arg(long, value_name = "BYTES", value_parser = size::parse, default_value = "0")]
    pub(crate) start: u64,
    /// In how large pieces the kernel reads checksums; it matters with legacy padding and a small
    /// interleave only
    #[arg(long, value_name = "SECTORS", default_value_t = 128)]
    pub(crate) buffer_sectors: u32,
}

/// The hashes and their keys. Keys are never arguments and never in the environment: both can be
/// read by others.
#[derive(Debug, Args)]
#[command(next_help_heading = "Hashes and keys")]
pub(crate) struct IntegrityHashArgs {
    /// The hash of the checksums: crc32c, crc32, xxhash64, sha1, sha256, hmac-sha256 .., "none" if
    /// dm-crypt above has tags
    #[arg(long, value_name = "HASH", default_value = "crc32c")]
    pub(crate) integrity: String,
    /// The hash's key: all bytes of this file ("-" is stdin)
    #[arg(long, value_name = "FILE")]
    pub(crate) integrity_key_file: Option<PathBuf>,
    /// Use BYTES bytes of that file
    #[arg(long, value_name = "BYTES", requires = "integrity_key_file")]
    pub(crate) integrity_key_size: Option<u64>,
    /// The hash that protects the journal's sector numbers, and the superblock: sha256, hmac-sha256
    /// ..
    #[arg(long, value_name = "HASH")]
    pub(crate) journal_integrity: Option<String>,
    /// The key of that hash: all bytes of this file
    #[arg(long, value_name = "FILE", requires = "journal_integrity")]
    pub(crate) journal_integrity_key_file: Option<PathBuf>,
    /// Use BYTES bytes of that file
    #[arg(long, value_name = "BYTES", requires = "journal_integrity_key_file")]
    pub(crate) journal_integrity_key_size: Option<u64>,
    /// The cipher of the journal: ctr-aes, cbc-aes
    #[arg(long, value_name = "CIPHER", requires = "journal_crypt_key_file")]
    pub(crate) journal_crypt: Option<String>,
    /// The cipher's key: all bytes of this file
    #[arg(long, value_name = "FILE", requires = "journal_crypt")]
    pub(crate) journal_crypt_key_file: Option<PathBuf>,
    /// Use BYTES bytes of that file
    #[arg(long, value_name = "BYTES", requires = "journal_crypt_key_file")]
    pub(crate) journal_crypt_key_size: Option<u64>,
}

/// Makes a volume, and writes zeros over it so that all of it can be read
///
/// IMAGE is created (for you alone, and sparse) if it does not exist and --size is given; else what
/// it holds is lost, for which --force is needed unless it begins with zeros.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct IntegrityFormatArgs {
    #[command(flatten)]
    pub(crate) place: IntegrityPlaceArgs,
    /// The size of an image that does not exist yet
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) size: Option<u64>,
    /// Overwrite what is there without asking
    #[arg(long)]
    pub(crate) force: bool,
    /// Write no zeros: a block can be read once it was written, or all when they were recalculated
    #[arg(long)]
    pub(crate) no_wipe: bool,
    #[command(flatten)]
    pub(crate) hashes: IntegrityHashArgs,

    /// Bytes of a checksum; as long as the hash by default
    #[arg(long, value_name = "BYTES", help_heading = LAYOUT)]
    pub(crate) tag_size: Option<u16>,
    /// Bytes of a block, which has one checksum: 512 to 4096
    #[arg(long, value_name = "BYTES", default_value_t = 512, help_heading = LAYOUT)]
    pub(crate) sector_size: u32,
    /// The journal's size; a 128th of the device by default, 64 MiB at most
    #[arg(long, value_name = "SIZE", value_parser = size::parse, help_heading = LAYOUT)]
    pub(crate) journal_size: Option<u64>,
    /// Sectors of data between checksums
    #[arg(long, value_name = "SECTORS", help_heading = LAYOUT)]
    pub(crate) interleave_sectors: Option<u32>,
    /// For kernels before 5.11: checksums are padded to 128 KiB
    #[arg(long, help_heading = LAYOUT)]
    pub(crate) integrity_legacy_padding: bool,
    /// For kernels before 5.11: no salt, and sections of the journal can be exchanged
    #[arg(long, help_heading = LAYOUT)]
    pub(crate) integrity_legacy_hmac: bool,
}

/// Serves the bytes until SIGINT or SIGTERM, as `underseal open` does
///
/// A block whose checksum is wrong cannot be read. What the journal holds goes to its place first;
/// with --read-only it is read from the journal, and nothing is written.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct IntegrityOpenArgs {
    #[command(flatten)]
    pub(crate) place: IntegrityPlaceArgs,
    /// Refuse writes
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Let clients free space on the image, which shows how much of it is in use; a block that was
    /// discarded is then read unverified
    #[arg(long)]
    pub(crate) allow_discards: bool,
    #[command(flatten)]
    pub(crate) hashes: IntegrityHashArgs,
    #[command(flatten)]
    pub(crate) mode: IntegrityModeArgs,
    #[command(flatten)]
    pub(crate) lower: LowerArgs,
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
}

/// How writes survive a power cut: by the journal, unless one of the first three is given.
#[derive(Debug, Args)]
#[command(next_help_heading = "Mode")]
pub(crate) struct IntegrityModeArgs {
    /// Write in place, without the journal: what is being written when the power goes cannot be
    /// read afterwards. A journal that was left behind is replayed all the same
    #[arg(long, group = "mode")]
    pub(crate) integrity_no_journal: bool,
    /// Write in place, and keep a bitmap of where: checksums are made anew there when the power
    /// went
    #[arg(long, group = "mode")]
    pub(crate) integrity_bitmap_mode: bool,
    /// Read what is in its place, whatever the journal holds and without comparing checksums;
    /// nothing is written
    #[arg(long, group = "mode")]
    pub(crate) integrity_recovery_mode: bool,
    /// So much of the journal is filled before its blocks are copied to their places
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(..=100))]
    pub(crate) journal_watermark: Option<u8>,
    /// Writes are in the journal on disk after this time, also without a flush
    #[arg(long, value_name = "MS")]
    pub(crate) journal_commit_time: Option<u32>,
    /// How many sectors a bit of the bitmap stands for
    #[arg(long, value_name = "SECTORS", requires = "integrity_bitmap_mode")]
    pub(crate) bitmap_sectors_per_bit: Option<u32>,
    /// Bits of the bitmap are cleared this long after the last write
    #[arg(long, value_name = "MS", requires = "integrity_bitmap_mode")]
    pub(crate) bitmap_flush_time: Option<u32>,
    /// Make checksums anew from what is there, beside requests, unless that was begun before
    #[arg(long, conflicts_with_all = ["read_only", "integrity_recovery_mode"])]
    pub(crate) integrity_recalculate: bool,
    /// The same, from the beginning
    #[arg(long, conflicts_with_all = ["read_only", "integrity_recovery_mode"])]
    pub(crate) integrity_recalculate_reset: bool,
    /// Permit it with a key, too, although the new checksums then also cover changes of an attacker
    #[arg(long)]
    pub(crate) integrity_legacy_recalculate: bool,
    #[command(flatten)]
    pub(crate) cache: TagCacheArgs,
}

/// Shows what the superblock says, and how the journal was left, without any key
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct IntegrityInfoArgs {
    #[command(flatten)]
    pub(crate) place: IntegrityPlaceArgs,
    /// For programs: everything as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Reads all blocks and lists those whose checksums are wrong; nothing is changed
///
/// What is still in the journal is read from there.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct IntegrityCheckArgs {
    #[command(flatten)]
    pub(crate) place: IntegrityPlaceArgs,
    #[command(flatten)]
    pub(crate) hashes: IntegrityHashArgs,
    /// Accept blocks that were discarded
    #[arg(long)]
    pub(crate) allow_discards: bool,
    /// For programs: everything as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Makes the checksums anew from what is there; goes on where it was stopped
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct IntegrityRecalculateArgs {
    #[command(flatten)]
    pub(crate) place: IntegrityPlaceArgs,
    #[command(flatten)]
    pub(crate) hashes: IntegrityHashArgs,
    /// From the beginning, whatever was done before
    #[arg(long)]
    pub(crate) reset: bool,
    /// Permit it with a key, too, although the new checksums then also cover changes of an attacker
    #[arg(long)]
    pub(crate) integrity_legacy_recalculate: bool,
}

const LAYOUT: &str = "Layout";

const EXAMPLES: &str = "\
Examples:
  underseal integrity format disk.img --size 10G
  underseal integrity format disk.img --size 10G --integrity hmac-sha256 --integrity-key-file key
  underseal integrity open disk.img --nbd unix:disk.sock
  underseal integrity info disk.img
  underseal integrity check disk.img                 every block whose checksum is wrong
  underseal integrity recalculate disk.img --reset";
