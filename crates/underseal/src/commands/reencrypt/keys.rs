//! The keys of a volume that is reencrypted: it has two meanwhile, and its keyslots may have passphrases of their own.

use std::path::{Path, PathBuf};

use underseal_cipher::Key;
use underseal_volume::{Header, Target, UnlockOptions, VolumeKey};

use crate::cli::ReencryptArgs;
use crate::error::{Error, Result};
use crate::manner::{Keyslot, manner};
use crate::passphrase::{Secret, first_line_of_file, secret_file};

/// A passphrase and the keyslot that it opens.
pub(super) struct Known {
    pub(super) slot: u32,
    pub(super) passphrase: Key,
}

/// What the passphrases of the options open: the volume's key, and with it the keyslots that they are of.
///
/// # Errors
/// `NoKey` when one of them opens nothing.
pub(super) fn unlock(
    args: &ReencryptArgs,
    header: &Header,
    on: &dyn Target,
    path: &Path,
) -> Result<(VolumeKey, Vec<Known>)> {
    let options =
        UnlockOptions { slot: args.key_slot, limits: args.trust.limits(), ..UnlockOptions::default() };
    let open = |passphrase: &Key, options: &UnlockOptions| {
        let unlocked = header.unlock(on, passphrase, options).map_err(|e| e.in_file(path))?;
        manner().tell(path, Keyslot::Unlocked(unlocked.slot));
        Result::Ok(unlocked)
    };
    let secret = Secret::new(args.secret.source(), path);
    let (first, passphrase) = secret.try_with(|passphrase| {
        let unlocked = open(passphrase, &options)?;
        Ok((unlocked, Key::new(passphrase.as_bytes())?))
    })?;
    let mut known = vec![Known { slot: first.slot, passphrase }];
    let mut key = first.key;
    for passphrase in others(args)? {
        let options = UnlockOptions { limits: args.trust.limits(), ..UnlockOptions::default() };
        let unlocked = open(&passphrase, &options)?;
        key = key.with(unlocked.key);
        known.push(Known { slot: unlocked.slot, passphrase });
    }
    Ok((key, known))
}

/// The passphrases of other keyslots, from the options.
fn others(args: &ReencryptArgs) -> Result<Vec<Key>> {
    let lines = args.other_passphrase_file.iter().map(|path: &PathBuf| first_line_of_file(path));
    lines.chain(args.other_key_file.iter().map(|path| secret_file(path, 0, None))).collect()
}

/// The bytes of both keys, one after the other, and how many are the first one's.
///
/// # Errors
/// `Failed` without memory.
pub(super) fn both(key: &VolumeKey) -> Result<(Key, usize)> {
    let (first, second) = (key.key().as_bytes(), key.other().map(Key::as_bytes).unwrap_or_default());
    let mut both = Key::zeroed(first.len() + second.len()).map_err(Error::from)?;
    both.as_mut_bytes()[..first.len()].copy_from_slice(first);
    both.as_mut_bytes()[first.len()..].copy_from_slice(second);
    Ok((both, first.len()))
}
