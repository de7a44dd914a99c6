//! The arguments of `underseal reencrypt`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use underseal_cipher::CipherSpec;
use underseal_volume::Hash;
use uuid::Uuid;

use crate::cli::{PbkdfArgs, RateArg, SecretArgs, TokenArgs, TrustArgs};
use crate::size;

/// Gives a volume another key, cipher or sector size, encrypts a plain image or decrypts a volume:
/// in place, also while it is open.
///
/// IMAGE is a closed volume, or the name or image of an open one, whose users keep reading and
/// writing: only access to the few MiB that are being rewritten waits. It can be stopped at any
/// time, and a crash or power cut loses nothing; the same command with --resume-only resumes it,
/// and so does cryptsetup. Of the header nothing but a backup helps: make one first.
///
/// Without --encrypt or --decrypt the volume gets a new random key. Each passphrase that is given
/// keeps its keyslot; those that are not given open nothing when it is done, and before it begins
/// you are asked whether that is meant.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReencryptArgs {
    /// The image or block device; or an open volume, as `underseal list` calls it
    #[arg(value_name = "IMAGE|NAME")]
    pub(crate) image: PathBuf,
    /// The LUKS header is in this file; with --decrypt, and a header in front of the data, the file
    /// that it is moved to
    #[arg(long, value_name = "FILE")]
    pub(crate) header: Option<PathBuf>,

    /// Encrypt an image that is not encrypted yet, with a new LUKS2 header
    #[arg(long, help_heading = WHAT, group = "what")]
    pub(crate) encrypt: bool,
    /// Decrypt the volume; nothing of LUKS is left on it then
    #[arg(long, help_heading = WHAT, group = "what")]
    pub(crate) decrypt: bool,
    /// The new cipher of the data; the old one by default, aes-xts-plain64 with --encrypt
    #[arg(long, value_name = "CIPHER", help_heading = WHAT, conflicts_with = "decrypt")]
    pub(crate) cipher: Option<CipherSpec>,
    /// The new key's length; the old one's by default, or the cipher's largest
    #[arg(long, value_name = "BITS", help_heading = WHAT, conflicts_with_all = ["decrypt", "keep_key"])]
    pub(crate) key_size: Option<usize>,
    /// The new volume key: all bytes of this file ("-" is stdin); a random one by default
    #[arg(long, value_name = "FILE", help_heading = WHAT, conflicts_with_all = ["decrypt", "keep_key"])]
    pub(crate) volume_key_file: Option<PathBuf>,
    /// Bytes a sector, 512 to 4096; as before by default, 512 with --encrypt. Not more than a block
    /// of the file system that is there
    #[arg(long, value_name = "BYTES", help_heading = WHAT, conflicts_with = "decrypt")]
    pub(crate) sector_size: Option<u32>,
    /// Make the sectors of a closed volume larger although nothing is known of what is on it
    #[arg(long, help_heading = WHAT, requires = "sector_size")]
    pub(crate) force_offline_reencrypt: bool,
    /// Keep the volume's key: only the cipher or the sectors become others
    #[arg(long, help_heading = WHAT, conflicts_with = "what")]
    pub(crate) keep_key: bool,
    /// The header in front of --encrypt's data takes half of this much from the end of the device,
    /// which must be free: make the file system smaller before
    #[arg(long, value_name = "BYTES", value_parser = size::parse, help_heading = WHAT,
        conflicts_with_all = ["decrypt", "device_size"])]
    pub(crate) reduce_device_size: Option<u64>,
    /// With --encrypt: the encrypted data begin at this byte. With --reduce-device-size the header
    /// takes what is in front of it, and the rest of what is given up is room to move; half of it
    /// by default. With --header what lies in front stays as it is
    #[arg(long, value_name = "BYTES", value_parser = size::parse, help_heading = WHAT, visible_alias = "offset",
        requires = "encrypt")]
    pub(crate) data_offset: Option<u64>,
    /// The new header's UUID, with --encrypt; a random one by default
    #[arg(long, value_name = "UUID", help_heading = WHAT, requires = "encrypt")]
    pub(crate) uuid: Option<Uuid>,
    /// Only the first BYTES bytes of the data
    #[arg(long, value_name = "BYTES", value_parser = size::parse, help_heading = WHAT)]
    pub(crate) device_size: Option<u64>,

    /// Of a volume without a header: how far it is, is kept in this file, which is made and can be
    /// removed at the end. The volume is what --old-table says, and will be what --new-table says
    #[arg(long, value_name = "FILE", help_heading = TABLES, requires_all = ["old_table", "new_table"],
        conflicts_with_all = ["what", "header", "cipher", "key_size", "sector_size", "keep_key", "volume_key_file",
            "reduce_device_size", "device_size", "secret", "key_file"])]
    pub(crate) state: Option<PathBuf>,
    /// A file with one line of a dm-crypt table, crypt or linear: how the data are encrypted now
    #[arg(long, value_name = "FILE", help_heading = TABLES, requires = "new_table")]
    pub(crate) old_table: Option<PathBuf>,
    /// The same for how they will be, at the same place. Sectors may have up to 64 KiB
    #[arg(long, value_name = "FILE", help_heading = TABLES, requires = "old_table")]
    pub(crate) new_table: Option<PathBuf>,

    /// How the old bytes of a step survive a crash: checksum, journal, or none, which loses them
    #[arg(long, value_name = "WAY", value_enum, help_heading = HOW)]
    pub(crate) resilience: Option<Resilience>,
    /// The hash of checksums
    #[arg(long, value_name = "HASH", help_heading = HOW)]
    pub(crate) resilience_hash: Option<Hash>,
    /// How long a step is at most; long ones are faster, and users of an open volume may wait for
    /// one
    #[arg(long, value_name = "BYTES", value_parser = size::parse, help_heading = HOW)]
    pub(crate) hotzone_size: Option<u64>,
    /// From the beginning to the end, or from the end to the beginning: with --state and
    /// --reduce-device-size
    #[arg(long, value_name = "WAY", value_enum, help_heading = HOW)]
    pub(crate) direction: Option<StepOrder>,
    /// Write down what is to be done, and do nothing of it yet
    #[arg(long, help_heading = HOW, conflicts_with = "resume_only")]
    pub(crate) init_only: bool,
    /// Resume an unfinished reencryption, and begin none
    #[arg(long, help_heading = HOW)]
    pub(crate) resume_only: bool,
    /// Of a step that was cut off, leave blocks as they are that are neither old nor new: what was
    /// in them is lost
    #[arg(long, help_heading = HOW, requires = "resume_only")]
    pub(crate) keep_lost: bool,
    /// Do not ask whether passphrases, or what a crash would take, may be lost
    #[arg(long, help_heading = HOW)]
    pub(crate) force: bool,

    /// Of an open volume, how fast: "give-way", as fast as its users hardly notice; "full"; or
    /// bytes a second. Of one that is being reencrypted, from now on
    #[arg(long, value_name = "RATE", help_heading = OPEN)]
    pub(crate) rate: Option<RateArg>,
    /// Rest between two steps until --resume
    #[arg(long, help_heading = OPEN, group = "order", conflicts_with_all = BEGIN)]
    pub(crate) pause: bool,
    /// Rest no more
    #[arg(long, help_heading = OPEN, group = "order", conflicts_with_all = BEGIN)]
    pub(crate) resume: bool,
    /// End where it is; --resume-only goes on, also when the volume is closed
    #[arg(long, help_heading = OPEN, group = "order", conflicts_with_all = BEGIN)]
    pub(crate) stop: bool,
    /// Do not wait for the end: the server goes on by itself
    #[arg(long, help_heading = OPEN)]
    pub(crate) no_wait: bool,

    /// The passphrase is this keyslot's
    #[arg(long, value_name = "N")]
    pub(crate) key_slot: Option<u32>,
    /// The first line of this file is the passphrase of one more keyslot, which is to be kept; may
    /// be repeated
    #[arg(long, value_name = "FILE", help_heading = OTHERS)]
    pub(crate) other_passphrase_file: Vec<PathBuf>,
    /// All bytes of this file are; may be repeated
    #[arg(long, value_name = "FILE", help_heading = OTHERS)]
    pub(crate) other_key_file: Vec<PathBuf>,
    /// The passphrases of all other keyslots are the next lines of this descriptor, in the order of
    /// their numbers
    #[arg(long, value_name = "N", help_heading = OTHERS, conflicts_with = "key_slot")]
    pub(crate) other_passphrase_fd: Option<u32>,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
    #[command(flatten)]
    pub(crate) tokens: TokenArgs,
    #[command(flatten)]
    pub(crate) pbkdf: PbkdfArgs,
}

/// The resilience of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Resilience {
    /// The hashes of what is overwritten
    Checksum,
    /// The old bytes
    Journal,
    /// Nothing: a crash loses data
    None,
    /// The place that the data move away from
    Datashift,
    /// As datashift, and hashes where the data do not move far enough
    DatashiftChecksum,
    /// As datashift, and the old bytes where the data do not move far enough
    DatashiftJournal,
}

/// The order of the steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StepOrder {
    /// Upwards
    Forward,
    /// Downwards
    Backward,
}

const WHAT: &str = "What becomes of the volume";
const HOW: &str = "How";
const TABLES: &str = "Volumes without a header";
const OPEN: &str = "Open volumes";
const OTHERS: &str = "Passphrases of other keyslots (asked for on a terminal)";
/// Options that only have an effect on a new reencryption.
const BEGIN: [&str; 4] = ["what", "init_only", "resume_only", "keep_key"];

const EXAMPLES: &str = "\
Examples:
  underseal header backup disk.img disk.hdr && underseal reencrypt disk.img
  underseal reencrypt disk.img --cipher serpent-xts-plain64 --sector-size 4096
  underseal reencrypt work --rate 50M                  an open volume, at 50 MiB a second at most
  underseal reencrypt work --pause; underseal reencrypt work --resume
  underseal reencrypt disk.img --resume-only           goes on with what was stopped
  underseal reencrypt plain.img --encrypt --reduce-device-size 32M
  underseal reencrypt old.img --state old.state --old-table old.table --new-table new.table
  underseal reencrypt plain.img --encrypt --header disk.header
  underseal reencrypt disk.img --decrypt --header disk.header";
