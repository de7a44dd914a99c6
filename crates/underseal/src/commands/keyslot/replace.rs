//! Keyslots that take the place of others.

use underseal_cipher::Key;
use underseal_volume::{ErrorKind, NewKeyslot, Replace, Unlocked};

use super::{Opened, of_slot};
use crate::cli::{KeyslotChangeArgs, KeyslotConvertArgs};
use crate::error::{Error, Result};
use crate::passphrase::{Secret, confirm};

pub(super) fn change(args: &KeyslotChangeArgs, quiet: bool) -> Result<()> {
    let mut opened = Opened::to_change(&args.of)?;
    let new = opened.new_keyslot(&args.pbkdf, &args.area)?;
    let old = opened.unlock(&args.secret, &of_slot(args.key_slot))?;
    let passphrase = Secret::another(&args.new, opened.path).get_new()?;
    let number = replace(&mut opened, &old, &passphrase, &new, args.in_place)?;
    opened.say(quiet, &format!("keyslot {number} has the new passphrase"))
}

pub(super) fn convert(args: &KeyslotConvertArgs, quiet: bool) -> Result<()> {
    let mut opened = Opened::to_change(&args.of)?;
    let new = opened.new_keyslot(&args.pbkdf, &args.area)?;
    let options = of_slot(args.key_slot);
    let secret = Secret::new(args.secret.source(), opened.path);
    let (old, passphrase) = secret.try_with(|passphrase| {
        let old = opened.unlock_with(passphrase, &options)?;
        Ok((old, Key::new(passphrase.as_bytes())?))
    })?;
    let number = replace(&mut opened, &old, &passphrase, &new, args.in_place)?;
    opened.say(quiet, &format!("keyslot {number} is converted"))
}

/// Beside the old one where there is room for both; else over it, if that is wanted.
fn replace(
    opened: &mut Opened<'_>,
    old: &Unlocked,
    passphrase: &Key,
    new: &NewKeyslot,
    in_place: bool,
) -> Result<u32> {
    let path = opened.path.display();
    let beside = opened.header.change_keyslot(&*opened.on, old, passphrase, new, Replace::Beside);
    match beside {
        Err(e) if e.kind() == ErrorKind::NoRoom => {
            let what = format!(
                "{path}: no room for both, the old keyslot and the new one: overwriting is not safe against a power cut"
            );
            if !in_place && !confirm(&what)? {
                return Err(Error::usage(what)
                    .with_remedy("--in-place to overwrite it, after a backup of the header"));
            }
            let over = opened.header.change_keyslot(&*opened.on, old, passphrase, new, Replace::InPlace);
            over.map_err(|e| opened.error(e))
        }
        other => other.map_err(|e| opened.error(e)),
    }
}
