//! `underseal ecryptfs rewrap`, `add-key`, `remove-key`, `rename-tree`, `convert`.

use std::sync::Arc;

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
    let mut access = Access::new(&args.keys, &args.lower)?;
    let names = match (args.plain, access.new_names()?) {
        (true, _) => None,
        (false, Some(names)) => Some(names),
        // Another passphrase gives another key.
        (false, None) => {
            let question = format!("New passphrase for names in {}: ", args.lower.display());
            let new = new_passphrase(&args.new, &question)?;
            let token = AuthToken::from_passphrase(new.as_bytes(), AuthToken::NAME_SALT)?;
            log::info!("the new key of names is {}", token.signature());
            let token = Arc::new(token);
            access.keys.add(token.clone());
            Some(NameCipher::new(token, access.options.name_cipher_or(Cipher::DEFAULT)?)?)
        }
    };
    let mut told = TreeReport::new("renaming", quiet);
    let summary =
        rename(&args.lower, &mut access.keys, names.as_ref(), access.options.long_names, &mut told)?;
    told.finish(&summary, args.json, quiet)
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
