//! `underseal ecryptfs info`, `export`, `rewrap` and the other commands that work without a mount.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// The keys of a tree.
#[derive(Debug, Args)]
#[command(next_help_heading = KEYS)]
pub(crate) struct TreeKeyArgs {
    /// Mount options by the kernel's names, separated by commas; what headers tell may be left out
    #[arg(short, long, value_name = "OPTIONS")]
    pub(crate) options: Vec<String>,
    /// A passphrase is the first line of this file; may be repeated, for several keys
    #[arg(long, value_name = "FILE")]
    pub(crate) passphrase_file: Vec<PathBuf>,
    /// A passphrase is the first line from this open descriptor (0 is stdin); may be repeated
    #[arg(long, value_name = "N")]
    pub(crate) passphrase_fd: Vec<u32>,
    /// The passphrase opens this file, as ecryptfs-utils keeps it in ~/.ecryptfs/wrapped-passphrase
    #[arg(long, value_name = "FILE")]
    pub(crate) wrapped: Option<PathBuf>,
    /// Take the keys that the options name, or all that headers name, from the kernel's keyring
    #[arg(long)]
    pub(crate) keyring: bool,
}

/// A new passphrase.
#[derive(Debug, Args)]
#[command(next_help_heading = "New passphrase (asked on the terminal unless one of these is given)")]
pub(crate) struct NewPassphraseArgs {
    /// The first line of this file
    #[arg(long, value_name = "FILE", group = "new")]
    pub(crate) new_passphrase_file: Option<PathBuf>,
    /// The first line from this open descriptor
    #[arg(long, value_name = "N", group = "new")]
    pub(crate) new_passphrase_fd: Option<u32>,
}

impl NewPassphraseArgs {
    /// Returns true when the new passphrase is not asked for.
    pub(crate) fn is_given(&self) -> bool {
        self.new_passphrase_file.is_some() || self.new_passphrase_fd.is_some()
    }
}

/// Shows what a header says, or what the headers of a folder say together, without any key
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal ecryptfs info ~/.Private                     the options that mount it
  underseal ecryptfs info ~/.Private/notes.txt")]
pub(crate) struct TreeInfoArgs {
    /// A lower file or folder
    pub(crate) lower: PathBuf,
    /// For programs: one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Lists plain names and sizes
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal ecryptfs ls ~/.Private
  underseal ecryptfs ls ~/.Private --json | jq -r .lower    where each file is below")]
pub(crate) struct TreeLsArgs {
    /// The lower folder
    pub(crate) lower: PathBuf,
    /// For programs: one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) keys: TreeKeyArgs,
}

/// The handling of missing extents.
#[derive(Debug, Args)]
pub(crate) struct HolesArgs {
    /// Give zeros for extents that are missing (holes, or what a power cut left unwritten) instead
    /// of an error
    #[arg(long)]
    pub(crate) no_strict: bool,
}

/// Writes a file's plain bytes to stdout
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal ecryptfs cat ~/.Private letters/2019.txt
  underseal ecryptfs cat ~/.Private/ECRYPTFS_FNEK_ENCRYPTED.FWb... > plain")]
pub(crate) struct TreeCatArgs {
    /// A lower file; or a lower folder
    pub(crate) lower: PathBuf,
    /// The file's plain path in that folder
    pub(crate) path: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) holes: HolesArgs,
    #[command(flatten)]
    pub(crate) keys: TreeKeyArgs,
}

/// Decrypts a lower folder into a folder or a tar archive
///
/// Names, hard links, symlinks, modes, owners, times and xattrs are kept. What cannot be read is
/// told of and skipped; the exit status says so. In an archive a file that turns out to be damaged
/// half way ends in zeros.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal ecryptfs export ~/.Private recovered --wrapped ~/.ecryptfs/wrapped-passphrase
  underseal ecryptfs export lower - --tar --passphrase-file secret | tar -tv")]
pub(crate) struct TreeExportArgs {
    /// The lower folder
    pub(crate) lower: PathBuf,
    /// A folder that does not exist or is empty; with --tar a file, or - for stdout
    pub(crate) dest: PathBuf,
    /// Write a tar archive
    #[arg(long)]
    pub(crate) tar: bool,
    /// For programs: what was done, as one JSON object on stdout
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) holes: HolesArgs,
    #[command(flatten)]
    pub(crate) keys: TreeKeyArgs,
}

/// Encrypts a plain folder, or a tar archive, into a new lower folder
///
/// Of an archive nothing goes anywhere else: members whose paths begin at the root or lead out of
/// it are refused, as are links to what is not in it. Where names are encrypted, names of 144 to
/// 255 bytes need -o long_names: the kernel does not show them.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal ecryptfs import photos ~/.Secret
  underseal ecryptfs import photos lower -o ecryptfs_cipher=aes,ecryptfs_key_bytes=32,ecryptfs_enable_filename_crypto
  underseal ecryptfs import photos lower -o ecryptfs_xattr_metadata --passphrase-file secret
  zcat photos.tar.gz | underseal ecryptfs import - ~/.Secret")]
pub(crate) struct TreeImportArgs {
    /// The plain folder; or a tar archive, or - for one from stdin
    pub(crate) plain: PathBuf,
    /// The lower folder: it does not exist or is empty
    pub(crate) lower: PathBuf,
    /// For programs: what was done, as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) keys: TreeKeyArgs,
}

/// Verifies names, headers, lengths and that every extent is there and can be read
///
/// eCryptfs has no checksum of contents: an extent that was changed is noise, and no check can
/// tell.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal ecryptfs check ~/.Private --passphrase-file secret")]
pub(crate) struct TreeCheckArgs {
    /// The lower folder or file
    pub(crate) lower: PathBuf,
    /// Write the present size into the header of a file that was cut after a whole extent, as a
    /// power cut may leave one. The end of this file is lost. The folder must not be mounted
    /// meanwhile
    #[arg(long)]
    pub(crate) repair: bool,
    /// For programs: one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) keys: TreeKeyArgs,
}

/// Changes the passphrase of a lower folder: headers only, contents stay as they are
///
/// Names are encrypted with a key of their own, which stays: `rename-tree` changes it. The same
/// command resumes an interrupted run. Every header is replaced in one step. The folder must not be
/// mounted meanwhile.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal ecryptfs rewrap ~/.Secret
  underseal ecryptfs rewrap lower --passphrase-file old --new-passphrase-file new")]
pub(crate) struct TreeRewrapArgs {
    /// The lower folder or file
    pub(crate) lower: PathBuf,
    /// For programs: what was done, as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) keys: TreeKeyArgs,
    #[command(flatten)]
    pub(crate) new: NewPassphraseArgs,
}

/// Lets a second passphrase open a lower folder's files
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal ecryptfs add-key lower --passphrase-file mine --new-passphrase-file yours")]
pub(crate) struct TreeAddKeyArgs {
    #[command(flatten)]
    pub(crate) same: TreeRewrapArgs,
}

/// Takes a passphrase's key away from a lower folder's files; never the last one
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal ecryptfs remove-key lower d395309aaad4de06 --passphrase-file mine")]
pub(crate) struct TreeRemoveKeyArgs {
    /// The lower folder or file
    pub(crate) lower: PathBuf,
    /// The key's signature, as `info` shows it
    pub(crate) signature: String,
    /// For programs: what was done, as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) keys: TreeKeyArgs,
}

/// Gives a lower folder's names another key, or makes them plain or encrypted
///
/// The names get the key of the new passphrase, with or without
/// `-o ecryptfs_enable_filename_crypto`; of the present passphrase with that option alone; of
/// `-o ecryptfs_fnek_sig=SIGNATURE`. The same command resumes an interrupted run. The folder must
/// not be mounted meanwhile.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal ecryptfs rename-tree lower --plain                  names in the clear
  underseal ecryptfs rename-tree lower -o ecryptfs_cipher=aes   encrypted, or under another passphrase")]
pub(crate) struct TreeRenameArgs {
    /// The lower folder
    pub(crate) lower: PathBuf,
    /// Plain names
    #[arg(long, conflicts_with = "new")]
    pub(crate) plain: bool,
    /// For programs: what was done, as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) keys: TreeKeyArgs,
    #[command(flatten)]
    pub(crate) new: NewPassphraseArgs,
}

/// Moves headers from files into xattrs, or back
///
/// Contents are copied to new files. The folder must not be mounted meanwhile.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal ecryptfs convert lower --header xattr")]
pub(crate) struct TreeConvertArgs {
    /// The lower folder or file
    pub(crate) lower: PathBuf,
    /// Where they go
    #[arg(long, value_enum)]
    pub(crate) header: HeaderPlace,
    /// For programs: what was done, as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// The place of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum HeaderPlace {
    /// In front of the contents
    File,
    /// In the xattr user.ecryptfs
    Xattr,
}

/// Decodes encrypted names, or encodes plain ones, one a line
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ls ~/.Private | underseal ecryptfs name - --passphrase-file secret
  underseal ecryptfs name --encode letters --passphrase-file secret")]
pub(crate) struct TreeNameArgs {
    /// Names; - reads lines from stdin
    #[arg(required = true)]
    pub(crate) names: Vec<String>,
    /// From plain to encrypted; names of 144 to 255 bytes with -o long_names
    #[arg(long)]
    pub(crate) encode: bool,
    /// The names are symlinks' targets
    #[arg(long)]
    pub(crate) target: bool,
    #[command(flatten)]
    pub(crate) keys: TreeKeyArgs,
}

/// Wraps a mount's passphrase with a login's, for ~/.ecryptfs/wrapped-passphrase
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal ecryptfs wrap wrapped-passphrase --passphrase-file mount --new-passphrase-file login")]
pub(crate) struct TreeWrapArgs {
    /// The file to make; it must not exist
    pub(crate) file: PathBuf,
    /// The passphrase to wrap is the first line of this file
    #[arg(long, value_name = "FILE", group = "secret")]
    pub(crate) passphrase_file: Option<PathBuf>,
    /// The passphrase to wrap is the first line from this open descriptor
    #[arg(long, value_name = "N", group = "secret")]
    pub(crate) passphrase_fd: Option<u32>,
    #[command(flatten)]
    pub(crate) new: NewPassphraseArgs,
    /// The older kind of file, with a fixed salt
    #[arg(long)]
    pub(crate) version_1: bool,
}

/// Shows the passphrase in a wrapped-passphrase file
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal ecryptfs unwrap ~/.ecryptfs/wrapped-passphrase > /dev/shm/secret")]
pub(crate) struct TreeUnwrapArgs {
    /// The file
    pub(crate) file: PathBuf,
    /// The passphrase that opens it is the first line of this file
    #[arg(long, value_name = "FILE", group = "secret")]
    pub(crate) passphrase_file: Option<PathBuf>,
    /// The passphrase that opens it is the first line from this open descriptor
    #[arg(long, value_name = "N", group = "secret")]
    pub(crate) passphrase_fd: Option<u32>,
}

const KEYS: &str = "Keys (a passphrase is asked for on the terminal unless something is given)";
