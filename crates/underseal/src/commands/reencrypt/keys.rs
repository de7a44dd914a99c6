//! The keys of a volume that is reencrypted: meanwhile it has two, and its keyslots may have
//! different passphrases.

use std::path::{Path, PathBuf};

use underseal_cipher::Key;
use underseal_volume::{ErrorKind, Header, Target, UnlockOptions, VolumeKey};

use super::args::ReencryptArgs;
use crate::error::{Error, Result};
use crate::passphrase::{
    Secret, ask_hidden, first_line_of_descriptor, first_line_of_file, secret_file, tell, terminal_is_there,
};
use crate::persona::{Keyslot, persona};
use crate::tokens;

/// A passphrase and the keyslot that it opens.
pub(super) struct Known {
    pub(super) slot: u32,
    pub(super) passphrase: Key,
}

/// Unlocks the volume's key with a token or the passphrases of the options, and returns the
/// keyslots that they open. Fails with `NoKey` when one of them opens none.
pub(super) fn unlock(
    args: &ReencryptArgs,
    header: &Header,
    on: &dyn Target,
    path: &Path,
) -> Result<(VolumeKey, Vec<Known>)> {
    let slot = args.key_slot.or_else(|| first_of_lines(args, header));
    let options = UnlockOptions { slot, limits: args.trust.limits(), ..UnlockOptions::default() };
    let open = |passphrase: &Key, options: &UnlockOptions| {
        let unlocked = header.unlock(on, passphrase, options).map_err(|e| e.in_file(path))?;
        persona().tell(path, Keyslot::Unlocked(unlocked.slot));
        Result::Ok(unlocked)
    };
    let secret = Secret::new(args.secret.source(), path);
    let (first, passphrase) = match tokens::unlock(header, on, (&args.tokens, &secret), path, &options)? {
        Some((unlocked, passphrase)) => {
            persona().tell(path, Keyslot::Unlocked(unlocked.slot));
            (unlocked, passphrase)
        }
        None => secret.try_with(|passphrase| {
            let unlocked = open(passphrase, &options)?;
            Ok((unlocked, Key::new(passphrase.as_bytes())?))
        })?,
    };
    let mut known = vec![Known { slot: first.slot, passphrase }];
    let mut key = first.key;
    for passphrase in named_others(args)? {
        let options = UnlockOptions { limits: args.trust.limits(), ..UnlockOptions::default() };
        let unlocked = open(&passphrase, &options)?;
        key = key.with(unlocked.key);
        known.push(Known { slot: unlocked.slot, passphrase });
    }
    Ok((key, known))
}

/// Returns the keyslot of the first passphrase, where a descriptor has those of all keyslots in
/// their order.
fn first_of_lines(args: &ReencryptArgs, header: &Header) -> Option<u32> {
    let Header::Luks2(header) = header else { return None };
    args.other_passphrase_fd.and_then(|_| header.lost_keyslots(&[]).first().copied())
}

/// Gets the passphrases of all other keyslots, to keep the keyslots: the lines of a descriptor, or
/// answers at the terminal, where an empty answer gives a keyslot up. Fails with the errors of the
/// terminal, the descriptor and the header. A wrong line is an error; at the terminal, the third
/// wrong answer.
pub(super) fn others_in_order(
    args: &ReencryptArgs,
    header: &Header,
    (on, path): (&dyn Target, &Path),
    known: &mut Vec<Known>,
) -> Result<()> {
    let Header::Luks2(luks2) = header else { return Ok(()) };
    let have: Vec<u32> = known.iter().map(|known| known.slot).collect();
    if let Some(descriptor) = args.other_passphrase_fd {
        for slot in luks2.lost_keyslots(&have) {
            let passphrase = first_line_of_descriptor(descriptor)?;
            let limits = args.trust.limits();
            let options = UnlockOptions { slot: Some(slot), limits, ..UnlockOptions::default() };
            header.unlock(on, &passphrase, &options).map_err(|e| e.in_file(path))?;
            persona().tell(path, Keyslot::Unlocked(slot));
            known.push(Known { slot, passphrase });
        }
        return Ok(());
    }
    if !Secret::new(args.secret.source(), path).is_asked() || !terminal_is_there() {
        return Ok(());
    }
    for slot in luks2.lost_keyslots(&have) {
        let question = format!("Passphrase of keyslot {slot}, to keep it (Enter alone: it is lost): ");
        for tries in (0..persona().tries).rev() {
            let passphrase = ask_hidden(&question)?;
            if passphrase.is_empty() {
                break;
            }
            let options =
                UnlockOptions { slot: Some(slot), limits: args.trust.limits(), ..UnlockOptions::default() };
            match header.unlock(on, &passphrase, &options) {
                Ok(_) => {
                    known.push(Known { slot, passphrase });
                    break;
                }
                Err(e) if e.kind() == ErrorKind::WrongPassphrase && tries > 0 => tell(persona().wrong),
                Err(e) => return Err(e.in_file(path).into()),
            }
        }
    }
    Ok(())
}

/// Returns the passphrases of other keyslots, from the options.
fn named_others(args: &ReencryptArgs) -> Result<Vec<Key>> {
    let lines = args.other_passphrase_file.iter().map(|path: &PathBuf| first_line_of_file(path));
    lines.chain(args.other_key_file.iter().map(|path| secret_file(path, 0, None))).collect()
}

/// Joins the bytes of both keys, and returns the length of the first. Fails with `Failed` without
/// memory.
pub(super) fn both(keys: [Option<&Key>; 2]) -> Result<(Key, usize)> {
    let [first, second] = keys.map(|key| key.map(Key::as_bytes).unwrap_or_default());
    let mut both = Key::zeroed(first.len() + second.len()).map_err(Error::from)?;
    both.as_mut_bytes()[..first.len()].copy_from_slice(first);
    both.as_mut_bytes()[first.len()..].copy_from_slice(second);
    Ok((both, first.len()))
}
