//! The commands that replace keyslots.

use clap::Args;
use underseal_cipher::Key;
use underseal_formats::tcrypt::{Pim, Prf};
use underseal_volume::{ErrorKind, Header, NewKeyslot, Replace, Unlocked};

use super::super::tcrypt;
use super::{EXAMPLES, Opened};
use crate::cli::{
    AreaArgs, HeaderKind, HeaderPathArgs, NewSecretArgs, PbkdfArgs, SecretArgs, TcryptHeaderArgs, TrustArgs,
    pim,
};
use crate::error::{Error, Result};
use crate::passphrase::{Secret, confirm};

/// Changes the passphrase of the keyslot that the old one opens. The new one is on disk before the
/// old one goes
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KeyslotChangeArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// The old passphrase is this keyslot's
    #[arg(long, value_name = "N")]
    pub(crate) key_slot: Option<u32>,
    /// Where there is no room for both, overwrite the old one: a power cut then loses it
    #[arg(long)]
    pub(crate) in_place: bool,
    #[command(flatten)]
    pub(crate) tcrypt: TcryptHeaderArgs,
    /// The image is of a disk with system encryption. Its PRF stays, and its PIM unless --new-pim
    /// is given
    #[arg(long, conflicts_with_all = ["hidden", "backup_header", "new_prf"])]
    pub(crate) system: bool,
    /// The PIM that VeraCrypt's headers get; none unless given
    #[arg(long, value_name = "N", value_parser = pim)]
    pub(crate) new_pim: Option<Pim>,
    /// The function under their key derivation; the old one unless given
    #[arg(long, value_name = "NAME")]
    pub(crate) new_prf: Option<Prf>,
    #[command(flatten)]
    pub(crate) area: AreaArgs,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
    #[command(flatten)]
    pub(crate) new: NewSecretArgs,
    #[command(flatten)]
    pub(crate) pbkdf: PbkdfArgs,
}

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

/// Gives the keyslot that a passphrase opens another key derivation, hash or cipher, and keeps the
/// passphrase
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct KeyslotConvertArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// The passphrase is this keyslot's
    #[arg(long, value_name = "N")]
    pub(crate) key_slot: Option<u32>,
    /// Where there is no room for both, overwrite the old one: a power cut then loses it
    #[arg(long)]
    pub(crate) in_place: bool,
    #[command(flatten)]
    pub(crate) area: AreaArgs,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
    #[command(flatten)]
    pub(crate) pbkdf: PbkdfArgs,
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
