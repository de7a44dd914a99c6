//! The commands that replace keyslots.

use underseal_cipher::Key;
use underseal_volume::{ErrorKind, Header, NewKeyslot, Replace, Unlocked};

use super::super::tcrypt;
use super::Opened;
use crate::cli::{AreaArgs, HeaderKind, KeyslotChangeArgs, KeyslotConvertArgs, PbkdfArgs};
use crate::error::{Error, Result};
use crate::passphrase::{Secret, confirm};

pub(super) fn change(args: &KeyslotChangeArgs, quiet: bool) -> Result<()> {
    if args.tcrypt.kind == HeaderKind::Tcrypt {
        return tcrypt::change(args, quiet);
    }
    if args.new_pim.is_some() || args.new_prf.is_some() {
        return Err(Error::usage("--new-pim and --new-prf are for VeraCrypt").with_remedy("--type tcrypt"));
    }
    let mut opened = Opened::to_change(&args.of)?.held_to(&args.trust)?;
    let new = replacement(&opened, &args.pbkdf, &args.area, args.key_slot)?;
    let old = opened.unlock(&args.secret, &opened.options(args.key_slot))?;
    let passphrase = Secret::another(&args.new, opened.path).get_new()?;
    let number = replace(&mut opened, &old, &passphrase, &new, args.in_place)?;
    opened.say(quiet, &format!("keyslot {number} has the new passphrase"))
}

pub(super) fn convert(args: &KeyslotConvertArgs, quiet: bool) -> Result<()> {
    let mut opened = Opened::to_change(&args.of)?.held_to(&args.trust)?;
    let new = replacement(&opened, &args.pbkdf, &args.area, args.key_slot)?;
    let options = opened.options(args.key_slot);
    let secret = Secret::new(args.secret.source(), opened.path);
    let (old, passphrase) = secret.try_with(|passphrase| {
        let old = opened.unlock_with(passphrase, &options)?;
        Ok((old, Key::new(passphrase.as_bytes())?))
    })?;
    let number = replace(&mut opened, &old, &passphrase, &new, args.in_place)?;
    opened.say(quiet, &format!("keyslot {number} is converted"))
}

/// Returns the parameters of the replacement: LUKS2's keeps the number, and LUKS1's where the
/// number was named.
fn replacement(
    opened: &Opened<'_>,
    pbkdf: &PbkdfArgs,
    area: &AreaArgs,
    slot: Option<u32>,
) -> Result<NewKeyslot> {
    let number = slot.filter(|_| matches!(opened.header, Header::Luks1(_)));
    Ok(NewKeyslot { number, ..opened.new_keyslot(pbkdf, area)? })
}

/// Writes the new keyslot beside the old one if both have room; else over the old one, if the
/// options permit.
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
