//! `underseal ecryptfs rewrap`, `add-key`, `remove-key`, `rename-tree`, `convert`.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use underseal_ecryptfs::options::EcryptfsOptions;
use underseal_ecryptfs::tools::{KeyChange, TreeKeys, convert as to_place, rekey, rename};
use underseal_ecryptfs::{AuthToken, Cipher, HeaderLocation, NameCipher};

use super::access::{Access, NewPassphraseArgs, TreeKeyArgs, new_passphrase};
use super::report::TreeReport;
use crate::error::{Error, Result};

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

pub(super) fn rewrap(args: &TreeRewrapArgs, quiet: bool) -> Result<()> {
    with_new_key(args, quiet, KeyChange::Replace)
}

/// Lets a second passphrase open a lower folder's files
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal ecryptfs add-key lower --passphrase-file mine --new-passphrase-file yours")]
pub(crate) struct TreeAddKeyArgs {
    #[command(flatten)]
    pub(crate) same: TreeRewrapArgs,
}

pub(super) fn add_key(args: &TreeAddKeyArgs, quiet: bool) -> Result<()> {
    with_new_key(&args.same, quiet, KeyChange::Add)
}

fn with_new_key(args: &TreeRewrapArgs, quiet: bool, change: fn(Arc<AuthToken>) -> KeyChange) -> Result<()> {
    let mut access = Access::new(&args.keys, &args.lower)?;
    let question = format!("New passphrase for {}: ", args.lower.display());
    let new = new_passphrase(&args.new, &question)?;
    let token = Arc::new(AuthToken::from_passphrase(new.as_bytes(), AuthToken::DEFAULT_SALT)?);
    log::info!("the new key is {}", token.signature());
    let mut told = TreeReport::new("writing headers", quiet);
    let summary = rekey(&args.lower, &mut access.keys, &change(token), &mut told)?;
    told.finish(&summary, args.json, quiet)
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

pub(super) fn remove_key(args: &TreeRemoveKeyArgs, quiet: bool) -> Result<()> {
    let signature = args.signature.parse()?;
    let mut access = Access::new(&args.keys, &args.lower)?;
    let mut told = TreeReport::new("writing headers", quiet);
    let summary = rekey(&args.lower, &mut access.keys, &KeyChange::Remove(signature), &mut told)?;
    told.finish(&summary, args.json, quiet)
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

pub(super) fn rename_tree(args: &TreeRenameArgs, quiet: bool) -> Result<()> {
    // Names of an interrupted run would be encrypted once more.
    args.keys.must_decode_names()?;
    let options = EcryptfsOptions::parse(&args.keys.options.join(","))?;
    if let Some(signature) = options.name_signature.filter(|_| args.new.is_given()) {
        let what =
            format!("the new passphrase and ecryptfs_fnek_sig={signature} name two keys for the names");
        return Err(Error::usage(what).with_remedy("one of the two"));
    }
    let mut access = Access::new(&args.keys, &args.lower)?;
    let names = if args.plain { None } else { Some(new_name_cipher(args, &mut access)?) };
    let mut told = TreeReport::new("renaming", quiet);
    let summary =
        rename(&args.lower, &mut access.keys, names.as_ref(), access.options.long_names, &mut told)?;
    told.finish(&summary, args.json, quiet)
}

/// Returns the cipher of new names. A new passphrase gives its key, whatever the options say; one
/// is asked for where they name none.
fn new_name_cipher(args: &TreeRenameArgs, access: &mut Access) -> Result<NameCipher> {
    if !args.new.is_given()
        && let Some(names) = access.new_names()?
    {
        return Ok(names);
    }
    let question = format!("New passphrase for names in {}: ", args.lower.display());
    let new = new_passphrase(&args.new, &question)?;
    let token = Arc::new(AuthToken::from_passphrase(new.as_bytes(), AuthToken::NAME_SALT)?);
    log::info!("the new key of names is {}", token.signature());
    access.keys.add(token.clone());
    Ok(NameCipher::new(token, access.options.name_cipher_or(Cipher::DEFAULT)?)?)
}

/// Moves headers from files into xattrs, or back
///
/// Contents are copied to new files. A file that has names (hard links) outside of the folder stays
/// as it is, which is reported. The folder must not be mounted meanwhile.
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

pub(super) fn convert(args: &TreeConvertArgs, quiet: bool) -> Result<()> {
    let place = match args.header {
        HeaderPlace::File => HeaderLocation::File,
        HeaderPlace::Xattr => HeaderLocation::Xattr,
    };
    if !args.lower.exists() {
        let cause = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(Error::io(&args.lower, "cannot be looked at", cause));
    }
    let mut told = TreeReport::new("copying", quiet);
    let summary = to_place(&args.lower, &mut TreeKeys::new(Cipher::DEFAULT), place, &mut told)?;
    told.finish(&summary, args.json, quiet)
}
