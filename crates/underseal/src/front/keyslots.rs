//! `luksAddKey` and its kin, and `open --test-passphrase`.

use std::path::Path;

use super::Words;
use super::args::Args;
use super::call::{Call, from_stdin};
use super::failure::{Failure, Result, Status};
use super::look::find;
use super::open::must_exist;

/// `luksAddKey DEVICE [NEWKEYFILE]`.
pub(super) fn add(args: &Args, words: &Words<'_>) -> Result<()> {
    let device = words.need(0, "device")?;
    find(args, device)?;
    let call = slots("add", args, device)
        .option("volume-key-file", args.volume_key_file.as_ref())
        .flag("unbound", args.unbound)
        .number("key-size", args.key_size.filter(|_| args.unbound))
        .number("new-key-slot", args.new_key_slot.or(args.key_slot));
    // An unbound key, and a volume key that is given, need no passphrase that exists.
    let call = if args.volume_key_file.is_some() || args.unbound { call } else { call.secret(args) };
    new_secret(area(call, args), args, words.get(1).map(|path| &**path)).cost(args).run()
}

/// `luksRemoveKey DEVICE [KEYFILE]`: the passphrase says which one.
pub(super) fn remove(args: &Args, words: &Words<'_>) -> Result<()> {
    let device = words.need(0, "device")?;
    find(args, device)?;
    // Where nobody sits at the terminal, nobody is warned.
    let call = slots("remove", args, device).flag("force", args.batch_mode || from_stdin().is_some());
    match words.get(1) {
        Some(path) => call.option("key-file", Some(path)).run(),
        None => call.secret(args).run(),
    }
}

/// `luksChangeKey DEVICE [NEWKEYFILE]`.
pub(super) fn change(args: &Args, words: &Words<'_>) -> Result<()> {
    let device = words.need(0, "device")?;
    find(args, device)?;
    let call = slots("change", args, device).number("key-slot", args.key_slot).secret(args);
    new_secret(area(call, args), args, words.get(1).map(|path| &**path)).cost(args).run()
}

/// `luksConvertKey DEVICE`.
pub(super) fn convert(args: &Args, words: &Words<'_>) -> Result<()> {
    let device = words.need(0, "device")?;
    find(args, device)?;
    let call = slots("convert", args, device).number("key-slot", args.key_slot).secret(args);
    area(call, args).cost(args).run()
}

/// `luksKillSlot DEVICE SLOT`: with the passphrase of another one, unless `--batch-mode` is given and nobody is there to ask.
pub(super) fn kill(args: &Args, words: &Words<'_>) -> Result<()> {
    let device = words.need(0, "device")?;
    let slot = words.need(1, "key slot")?;
    find(args, device)?;
    let call = slots("kill", args, device).word(slot).flag("force", args.batch_mode);
    let asks = !args.batch_mode || !args.key_file.is_empty();
    if asks { call.secret(args).run() } else { call.run() }
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
        return call.option("volume-key-file", args.volume_key_file.as_ref()).run();
    }
    call.number("key-slot", args.key_slot)
        .number("token-id", args.token_id)
        .option("token-type", args.token_type.as_ref())
        .flag("token-only", args.token_only)
        .secret(args)
        .run()
}

/// What encrypts a new keyslot.
fn area(call: Call, args: &Args) -> Call {
    call.option("keyslot-cipher", args.keyslot_cipher.as_ref())
        .number("keyslot-key-size", args.keyslot_key_size)
}

fn slots(action: &str, args: &Args, device: &Path) -> Call {
    Call::new(&["keyslot", action]).word(device).option("header", args.header.as_ref())
}

/// Where the new passphrase comes from: the new key file; else the next line of stdin; else somebody at a terminal.
fn new_secret(call: Call, args: &Args, file: Option<&Path>) -> Call {
    match file.or(args.new_keyfile.as_deref()) {
        Some(path) => call
            .option("new-key-file", Some(path))
            .number("new-keyfile-offset", args.new_keyfile_offset)
            .number("new-keyfile-size", args.new_keyfile_size),
        None => call.number("new-passphrase-fd", from_stdin()),
    }
}
