//! `underseal ecryptfs rewrap`, `add-key`, `remove-key`, `rename-tree`, `convert`.

use std::sync::Arc;

use underseal_ecryptfs::options::EcryptfsOptions;
use underseal_ecryptfs::tools::{KeyChange, TreeKeys, convert as to_place, rekey, rename};
use underseal_ecryptfs::{AuthToken, Cipher, HeaderLocation, NameCipher};

use super::access::{Access, new_passphrase};
use super::report::TreeReport;
use crate::cli::{HeaderPlace, TreeConvertArgs, TreeRemoveKeyArgs, TreeRenameArgs, TreeRewrapArgs};
use crate::error::{Error, Result};

pub(super) fn rewrap(args: &TreeRewrapArgs, quiet: bool) -> Result<()> {
    with_new_key(args, quiet, KeyChange::Replace)
}

pub(super) fn add_key(args: &TreeRewrapArgs, quiet: bool) -> Result<()> {
    with_new_key(args, quiet, KeyChange::Add)
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

pub(super) fn remove_key(args: &TreeRemoveKeyArgs, quiet: bool) -> Result<()> {
    let signature = args.signature.parse()?;
    let mut access = Access::new(&args.keys, &args.lower)?;
    let mut told = TreeReport::new("writing headers", quiet);
    let summary = rekey(&args.lower, &mut access.keys, &KeyChange::Remove(signature), &mut told)?;
    told.finish(&summary, args.json, quiet)
}

pub(super) fn rename_tree(args: &TreeRenameArgs, quiet: bool) -> Result<()> {
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
