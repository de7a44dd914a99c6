//! `luksAddKey` and similar actions, and `open --test-passphrase`.

use std::path::Path;

use underseal_cipher::Key;
use underseal_volume::{Header, UnlockOptions};

use super::Words;
use super::args::Args;
use super::call::{Call, from_stdin, source};
use super::failure::{Failure, Result, Status};
use super::header::sure;
use super::look::find;
use super::open::must_exist;
use crate::cli::SecretSource;
use crate::error::Error;
use crate::lower::open_header;
use crate::passphrase::{Secret, first_line_if_any};
use crate::persona::{Keyslot, persona};

/// `luksAddKey DEVICE [NEWKEYFILE]`.
pub(super) fn add(args: &Args, words: &Words<'_>) -> Result<()> {
    let device = words.need(0, "device")?;
    let header = find(args, device)?;
    let chosen = args.new_key_slot.or(args.key_slot);
    let in_use = |number: &u32| header.info().keyslots.iter().any(|slot| slot.number == *number);
    if let Some(number) = chosen.filter(in_use) {
        // ceph-csi searches for these words when it changes the key of a volume.
        return Err(Failure::wrong(&format!("Key slot {number} is full, please select another one.")));
    }
    let call = slots("add", args, device)
        .option("volume-key-file", args.volume_key_file.as_ref())
        .flag("unbound", args.unbound)
        .number("key-size", args.key_size.filter(|_| args.unbound))
        .number("new-key-slot", chosen)
        .number("key-slot", args.key_slot.filter(|_| args.new_key_slot.is_some() && !args.unbound));
    // An unbound key, and a given volume key, need no existing passphrase.
    let named = args.token_id.is_some() || args.token_type.is_some() || args.token_only;
    let call = if named { call.tokens(args) } else { call };
    let has_key = args.volume_key_file.is_some() || args.unbound || args.token_only;
    let call = if has_key { call } else { call.secret(args) };
    new_secret(area(call, args), args, words.get(1).map(|path| &**path)).cost(args).run()
}

/// `luksRemoveKey DEVICE [KEYFILE]`: removes the keyslot that the passphrase opens.
pub(super) fn remove(args: &Args, words: &Words<'_>) -> Result<()> {
    let device = words.need(0, "device")?;
    find(args, device)?;
    // Without a terminal no warning is asked about.
    let call = slots("remove", args, device).flag("force", args.batch_mode || from_stdin().is_some());
    match words.get(1) {
        Some(path) if args.key_file.is_empty() => call.key_file(path, args).run(),
        _ => call.secret(args).run(),
    }
}

/// `luksChangeKey DEVICE [NEWKEYFILE]`.
pub(super) fn change(args: &Args, words: &Words<'_>) -> Result<()> {
    let device = words.need(0, "device")?;
    find(args, device)?;
    let call = slots("change", args, device).number("key-slot", args.key_slot).flag("in-place", true);
    let call = call.secret(args);
    new_secret(area(call, args), args, words.get(1).map(|path| &**path)).cost(args).run()
}

/// `luksConvertKey DEVICE`.
pub(super) fn convert(args: &Args, words: &Words<'_>) -> Result<()> {
    let device = words.need(0, "device")?;
    if let Header::Luks1(_) = find(args, device)? {
        return Err(Failure::wrong("Operation is not supported for LUKS1."));
    }
    let call = slots("convert", args, device).number("key-slot", args.key_slot).flag("in-place", true);
    let call = call.secret(args);
    area(call, args).cost(args).run()
}

/// `luksKillSlot DEVICE SLOT`: with the passphrase of a remaining keyslot, or of the last one
/// itself. In batch mode the passphrase is optional, but one from stdin or a key file must be
/// right.
pub(super) fn kill(args: &Args, words: &Words<'_>) -> Result<()> {
    let device = words.need(0, "device")?;
    let slot = words.need(1, "key slot")?.to_string_lossy();
    let mut header = find(args, device)?;
    let info = header.info();
    let number = slot.parse().ok().filter(|number| info.keyslots.iter().any(|slot| slot.number == *number));
    let number: u32 = number.ok_or_else(|| Failure::wrong(&format!("Keyslot {slot} is not active.")))?;
    let path = args.header.as_deref().unwrap_or(device);
    let on = open_header(path, false)?;
    let of_data = info.digests.iter().filter(|digest| !digest.segments.is_empty());
    let is_last = of_data.flat_map(|digest| &digest.keyslots).all(|slot| *slot == number);
    if is_last {
        sure(args, "This is the last keyslot. Device will become unusable after purging this key.")?;
    }
    let options = UnlockOptions {
        slot: is_last.then_some(number),
        except: (!is_last).then_some(number),
        ..UnlockOptions::default()
    };
    let unlock = |key: &Key| Ok(header.unlock(&*on, key, &options).map_err(|e| e.in_file(path))?);
    match source(args) {
        SecretSource::Asked if args.batch_mode => {}
        // An empty stdin skips the check; a passphrase on stdin must be right.
        SecretSource::Descriptor(number) => {
            if let Some(key) = first_line_if_any(number)? {
                drop(unlock(&key)?);
            }
        }
        source => drop(Secret::new(source, device).try_with(unlock)?),
    }
    header.remove_keyslot(&*on, number, true).map_err(|e| Error::from(e.in_file(path)))?;
    persona().tell(path, Keyslot::Removed(number));
    Ok(())
}

/// `open --test-passphrase DEVICE`.
pub(super) fn test(args: &Args, device: &Path) -> Result<()> {
    must_exist(device)?;
    if args.kind.as_deref() == Some("plain") {
        return Err(Failure::new(
            Status::Wrong,
            "Option --test-passphrase is allowed only for open of LUKS.",
        ));
    }
    find(args, device)?;
    let call = slots("test", args, device);
    if args.volume_key_file.is_some() {
        let call = call.option("volume-key-file", args.volume_key_file.as_ref());
        return call.number("volume-key-size", args.key_size).run();
    }
    let call = call.number("key-slot", args.key_slot).flag("unbound", args.unbound).tokens(args);
    if args.token_only { call.run() } else { call.secret(args).run() }
}

/// Adds the options for the cipher of a new keyslot.
pub(super) fn area(call: Call, args: &Args) -> Call {
    call.option("keyslot-cipher", args.keyslot_cipher.as_ref())
        .number("keyslot-key-size", args.keyslot_key_size)
}

fn slots(action: &str, args: &Args, device: &Path) -> Call {
    Call::new(&["keyslot", action]).word(device).option("header", args.header.as_ref())
}

/// Adds the source of the new passphrase: the new key file; else the next line of stdin; else the
/// terminal.
fn new_secret(call: Call, args: &Args, file: Option<&Path>) -> Call {
    match file.or(args.new_keyfile.as_deref()) {
        Some(path) => call
            .option("new-key-file", Some(path))
            .number("new-keyfile-offset", args.new_keyfile_offset)
            .number("new-keyfile-size", args.new_keyfile_size),
        None => call.number("new-passphrase-fd", from_stdin()),
    }
}
