//! `reencrypt`.

use std::path::Path;

use underseal_formats::PlainDataDoubt;
use underseal_volume::Header;

use super::Words;
use super::args::Args;
use super::call::{Call, from_stdin};
use super::failure::{Failure, Result};
use super::open::must_exist;
use super::place::Place;
use crate::lower::open_header;

/// Bytes at the start of a device that are zeros after a header was removed.
const HEADER_START: usize = 4096;

/// `reencrypt DEVICE`, or `--active-name NAME`.
pub(super) fn run(args: &Args, words: &Words<'_>) -> Result<()> {
    let target = match &args.active_name {
        Some(name) => Place::of(name.as_ref())?.name.to_string().into(),
        None => {
            let device = words.need(0, "device")?;
            must_exist(device)?;
            device.clone()
        }
    };
    if let Some(what) = not_done(args, words) {
        return Err(Failure::unsupported(&format!("reencrypt: {what} is not supported")));
    }
    if args.new_volume_key_file.is_some() && args.new_key_size.is_none() && !args.resume_only {
        return Err(Failure::wrong("Option --new-volume-key-file must be paired with --new-key-size"));
    }
    refuse_what_lies_in_front(args, words)?;
    refuse_partitions(args, words)?;
    let nobody = args.batch_mode || from_stdin().is_some();
    let loses = loses_passphrases(args, words);
    // As in cryptsetup: a line of stdin for each keyslot.
    let lines = from_stdin().filter(|_| loses && args.key_file.is_empty());
    if nobody && loses && !args.key_file.is_empty() {
        let line = "Key file can be used only with --key-slot or with exactly one key slot active.";
        return Err(Failure::wrong(line));
    }
    let offset = args.offset.map(|sectors| sectors.checked_mul(512));
    let offset =
        offset.map(|bytes| bytes.ok_or_else(|| Failure::wrong("--offset: too large"))).transpose()?;
    let reduce = reduction(args, offset);
    let call = Call::new(&["reencrypt"])
        .word(target)
        .option("header", args.header.as_ref())
        .flag("encrypt", args.encrypt || args.new)
        .flag("decrypt", args.decrypt)
        .option("cipher", args.cipher.as_ref())
        .number("key-size", args.new_key_size.or(args.key_size))
        .number("sector-size", args.sector_size)
        .flag("force-offline-reencrypt", args.force_offline_reencrypt && args.sector_size.is_some())
        .option("volume-key-file", args.new_volume_key_file.as_ref().or(args.volume_key_file.as_ref()))
        .flag("keep-key", args.keep_key)
        .number("reduce-device-size", reduce)
        .number("data-offset", offset)
        .option("uuid", args.uuid.as_ref())
        .number("device-size", args.device_size)
        .option("resilience", args.resilience.as_ref())
        .option("resilience-hash", args.resilience_hash.as_ref())
        .number("hotzone-size", args.hotzone_size)
        .flag("init-only", args.init_only)
        .flag("resume-only", args.resume_only)
        .flag("force", nobody)
        .flag("no-token", true)
        .number("key-slot", args.key_slot)
        .number("other-passphrase-fd", lines)
        .secret(args);
    let makes_keyslots = args.encrypt || args.new;
    if makes_keyslots { call.cost(args).run() } else { call.run() }
}

/// Refuses to decrypt data over existing bytes in front of them, as cryptsetup does: a detached
/// header may place the data behind foreign bytes. After a decryption that was interrupted at its
/// start, these bytes were the header, and are zeros now.
fn refuse_what_lies_in_front(args: &Args, words: &Words<'_>) -> Result<()> {
    let (true, false, Some(header), Some(device)) =
        (args.decrypt, args.resume_only, &args.header, words.get(0))
    else {
        return Ok(());
    };
    let header = open_header(header, true).ok().and_then(|on| Header::read(&*on).ok());
    let Some(Header::Luks2(header)) = header else { return Ok(()) };
    let info = header.info();
    let is_behind = info.requirements.is_empty() && info.segments.iter().any(|segment| segment.offset > 0);
    let is_free = || -> std::io::Result<bool> {
        let mut start = vec![0; HEADER_START];
        let mut device = std::fs::File::open(device)?;
        std::io::Read::read_exact(&mut device, &mut start)?;
        Ok(start.iter().all(|&byte| byte == 0))
    };
    if is_behind && !crate::lower::is_remote(device) && !is_free().unwrap_or(false) {
        let line =
            "LUKS2 decryption is supported with detached header device only (with data offset set to 0).";
        return Err(Failure::wrong(line));
    }
    Ok(())
}

/// Refuses to begin the encryption of a disk with a partition table, as cryptsetup does, which
/// takes the table for broken LUKS metadata.
fn refuse_partitions(args: &Args, words: &Words<'_>) -> Result<()> {
    let begins = (args.encrypt || args.new) && !args.resume_only;
    let is_begun = args.header.as_ref().is_some_and(|header| Path::new(header).exists());
    let (true, false, Some(device)) = (begins, is_begun, words.get(0)) else { return Ok(()) };
    let found = open_header(device.as_ref(), true).ok().map(|on| PlainDataDoubt::find(&*on));
    if let Some(Ok(Some(PlainDataDoubt::Partitioned))) = found {
        let device = Path::new(device).display();
        let line = format!("Device {device} contains a partition table. Aborting operation.");
        return Err(Failure::wrong(&line));
    }
    Ok(())
}

/// Returns true when the header has keyslots whose passphrases cannot be asked for. As in
/// cryptsetup, naming one keyslot gives the others up.
fn loses_passphrases(args: &Args, words: &Words<'_>) -> bool {
    let keeps = args.encrypt || args.new || args.decrypt || args.keep_key || args.resume_only;
    let on = args.header.as_ref().or_else(|| words.get(0));
    let (None, false, Some(on)) = (args.key_slot, keeps, on) else { return false };
    let header = open_header(on.as_ref(), true).ok().and_then(|on| Header::read(&*on).ok());
    let Some(Header::Luks2(header)) = header else { return false };
    header.info().requirements.is_empty() && header.lost_keyslots(&[]).len() > 1
}

/// Returns the bytes given up at the device's end. As in cryptsetup: at most twice the distance
/// that the data move.
fn reduction(args: &Args, offset: Option<u64>) -> Option<u64> {
    let twice = offset.filter(|offset| *offset > 0 && args.header.is_none()).and_then(|n| n.checked_mul(2));
    args.reduce_device_size.map(|reduce| twice.map_or(reduce, |twice| reduce.min(twice)))
}

/// Returns an option that cryptsetup supports, and this program does not.
fn not_done(args: &Args, words: &Words<'_>) -> Option<&'static str> {
    let older = args.kind.as_deref().is_some_and(|kind| kind != "luks2" && kind != "luks");
    let given = [
        (older, "a type other than luks2"),
        (words.get(1).is_some(), "opening what was begun (open it afterwards)"),
        (args.luks2_metadata_size.is_some(), "--luks2-metadata-size"),
        (args.luks2_keyslots_size.is_some(), "--luks2-keyslots-size"),
    ];
    given.into_iter().find_map(|(is_given, what)| is_given.then_some(what))
}
