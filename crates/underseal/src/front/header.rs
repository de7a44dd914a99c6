//! `luksFormat`, and the actions on a whole header.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use underseal_volume::{FormatOptions, Version};

use super::Words;
use super::args::Args;
use super::call::{Call, from_stdin};
use super::failure::{Failure, Result, Status};
use super::look::{find, read};
use super::open::must_exist;
use crate::passphrase::confirm;

/// The size of cryptsetup's sectors, in bytes.
const SECTOR: u64 = 512;

/// `luksFormat DEVICE [KEYFILE]`.
pub(super) fn format(args: &Args, words: &Words<'_>) -> Result<()> {
    let device = words.need(0, "device")?;
    must_exist(device)?;
    let kind = match args.kind.as_deref() {
        None | Some("luks" | "luks2") => "luks2",
        Some("luks1") => "luks1",
        Some(other) => return Err(Failure::wrong(&format!("{other}: luksFormat makes luks1 and luks2"))),
    };
    let on = args.header.as_ref().unwrap_or(device);
    let what = format!("This will overwrite data on {} irrevocably.", on.display());
    ask(args, &what, Status::Wrong)?;
    let call = Call::new(&["format"])
        .word(device)
        .option("type", Some(kind))
        .option("header", args.header.as_ref())
        .option("cipher", args.cipher.as_ref())
        .number("key-size", args.key_size)
        .number("sector-size", args.sector_size.or(small_sectors(args, kind, device)))
        .option("uuid", args.uuid.as_ref())
        .option("label", args.label.as_ref())
        .option("subsystem", args.subsystem.as_ref())
        .number("metadata-size", args.luks2_metadata_size)
        .number("keyslots-size", args.luks2_keyslots_size.or(aligned_keyslots(args, kind)))
        .number("data-offset", data_offset(args)?)
        .option("volume-key-file", args.volume_key_file.as_ref())
        .option("integrity", args.integrity.as_ref())
        .number("integrity-key-size", args.integrity_key_size)
        .flag("integrity-no-journal", args.integrity_no_journal)
        .flag("integrity-no-wipe", args.integrity_no_wipe)
        .number("key-slot", args.key_slot)
        .flag("force", true)
        .cost(args);
    let call = super::keyslots::area(call, args);
    match words.get(1) {
        Some(path) if args.key_file.is_empty() => call.key_file(path, args).run(),
        _ => call.secret(args).run(),
    }
}

/// Returns 512 for a block device with small physical sectors, as cryptsetup chooses, and for data
/// aligned to less than 4096 bytes; every other image gets the largest sectors that fit.
fn small_sectors(args: &Args, kind: &str, device: &Path) -> Option<u32> {
    if kind == "luks2" && args.align_payload.is_some_and(|sectors| !sectors.is_multiple_of(4096 / SECTOR)) {
        return Some(512);
    }
    let about = std::fs::metadata(device).ok().filter(|about| about.file_type().is_block_device())?;
    let (major, minor) = (rustix::fs::major(about.rdev()), rustix::fs::minor(about.rdev()));
    let folder = format!("/sys/dev/block/{major}:{minor}");
    // A partition has its disk's physical block size.
    let read = |queue: &str| std::fs::read_to_string(format!("{folder}/{queue}/physical_block_size")).ok();
    let size = read("queue").or_else(|| read("../queue"))?;
    (kind == "luks2" && size.trim() == "512").then_some(512)
}

/// Asks at the terminal, unless in batch mode; without a terminal, the answer is yes. Fails with
/// `NoPermission` for another answer.
pub(super) fn sure(args: &Args, what: &str) -> Result<()> {
    ask(args, what, Status::NoPermission)
}

/// Asks in the same way before a whole header is written, with the status that cryptsetup ends with
/// after another answer.
fn ask(args: &Args, what: &str, otherwise: Status) -> Result<()> {
    let nobody = args.batch_mode || from_stdin().is_some();
    if nobody || confirm(what)? {
        return Ok(());
    }
    Err(Failure::new(otherwise, "Operation aborted."))
}

fn data_offset(args: &Args) -> Result<Option<u64>> {
    let sectors = match (args.offset, args.align_payload) {
        (Some(offset), _) => Some(offset),
        // With a detached header the data begin at offset 0.
        (None, Some(unit)) if args.header.is_none() && unit > 0 => {
            let least = if args.kind.as_deref() == Some("luks1") { luks1_end(args) } else { 32768 };
            Some(least.next_multiple_of(unit))
        }
        _ => None,
    };
    // As in cryptsetup: right behind the keyslots, if their size is given.
    if let (None, Some(keyslots), None) = (sectors, args.luks2_keyslots_size, &args.header) {
        let copies = args.luks2_metadata_size.unwrap_or(16 << 10).saturating_mul(2);
        let end = copies.checked_add(keyslots).and_then(|end| end.checked_next_multiple_of(1 << 20));
        return end.map(Some).ok_or_else(|| Failure::wrong("--luks2-keyslots-size: too large"));
    }
    let bytes =
        sectors.map(|count| count.checked_mul(SECTOR).ok_or_else(|| Failure::wrong("--offset: too large")));
    bytes.transpose()
}

/// Returns the size of the LUKS2 keyslot area in front of aligned data: as without alignment.
fn aligned_keyslots(args: &Args, kind: &str) -> Option<u64> {
    const HEADER: u64 = 16 << 20;
    let is_aligned = kind == "luks2" && args.header.is_none() && args.align_payload.is_some();
    let copies = args.luks2_metadata_size.unwrap_or(16 << 10).saturating_mul(2);
    is_aligned.then(|| HEADER.saturating_sub(copies))
}

/// Returns the first sector behind the eight LUKS1 keyslots, whose size depends on the volume key.
fn luks1_end(args: &Args) -> u64 {
    /// The offset of the first keyslot, and the alignment of all keyslots.
    const ALIGNMENT: u64 = 8;
    const STRIPES: u64 = 4000;
    let defaults = FormatOptions::luks1();
    let cipher =
        args.cipher.as_deref().and_then(|cipher| cipher.parse().ok()).unwrap_or(defaults.cipher.clone());
    let options = FormatOptions { cipher, key_size: args.key_size.map(|bits| bits / 8), ..defaults };
    // The format itself refuses an invalid cipher.
    let key_bytes = options.key_len().unwrap_or(0) as u64;
    let keyslot = key_bytes.saturating_mul(STRIPES).div_ceil(SECTOR).next_multiple_of(ALIGNMENT);
    keyslot.saturating_mul(8).saturating_add(ALIGNMENT)
}

pub(super) fn on(action: &str, args: &Args, device: &Path) -> Call {
    Call::new(&["header", action]).word(device).option("header", args.header.as_ref())
}

fn backup_file(args: &Args) -> Result<&Path> {
    args.header_backup_file
        .as_deref()
        .ok_or_else(|| Failure::wrong("Option --header-backup-file is required."))
}

/// `luksHeaderBackup DEVICE`.
pub(super) fn backup(args: &Args, words: &Words<'_>) -> Result<()> {
    let device = words.need(0, "device")?;
    find(args, device)?;
    on("backup", args, device).word(backup_file(args)?).run()
}

/// `luksHeaderRestore DEVICE`.
pub(super) fn restore(args: &Args, words: &Words<'_>) -> Result<()> {
    let device = words.need(0, "device")?;
    must_exist(device)?;
    let file = backup_file(args)?;
    let what = format!("Device {} gets another header, and loses its keyslots.", device.display());
    ask(args, &what, Status::Wrong)?;
    on("restore", args, device).word(file).flag("force", true).run()
}

/// `erase DEVICE`.
pub(super) fn erase(args: &Args, words: &Words<'_>) -> Result<()> {
    let device = words.need(0, "device")?;
    find(args, device)?;
    let what = format!(
        "This operation will erase all keyslots on device {}.\nDevice will become unusable after this operation.",
        device.display()
    );
    sure(args, &what)?;
    on("erase", args, device).flag("force", true).run()
}

/// `repair DEVICE`.
pub(super) fn repair(args: &Args, words: &Words<'_>) -> Result<()> {
    let device = words.need(0, "device")?;
    must_exist(device)?;
    // A header that cannot be read may be of the requested type.
    if read(args, device).is_ok() {
        find(args, device)?;
    }
    let nobody = args.batch_mode || from_stdin().is_some();
    on("repair", args, device).flag("force", nobody).secret(args).run()
}

/// `convert DEVICE --type luks1|luks2`.
pub(super) fn convert(args: &Args, words: &Words<'_>) -> Result<()> {
    let device = words.need(0, "device")?;
    let to = args.kind.as_deref().filter(|kind| matches!(*kind, "luks1" | "luks2"));
    let to = to.ok_or_else(|| Failure::wrong("Option --type is required: luks1 or luks2."))?;
    must_exist(device)?;
    // The question is asked once, and the losses are listed before it.
    let version = if to == "luks1" { Version::Luks1 } else { Version::Luks2 };
    let dropped = read(args, device).map(|header| header.dropped_by(version)).unwrap_or_default();
    for what in dropped {
        log::warn!("{}: LUKS1 has no words for its {what}, which will be dropped", device.display());
    }
    sure(
        args,
        &format!("This operation will convert {} to {} format.", device.display(), to.to_uppercase()),
    )?;
    on("convert", args, device).option("to", Some(to)).flag("force", true).run()
}

/// `config DEVICE`.
pub(super) fn config(args: &Args, words: &Words<'_>) -> Result<()> {
    let device = words.need(0, "device")?;
    find(args, device)?;
    if let (Some(priority), Some(slot)) = (&args.priority, args.key_slot) {
        Call::new(&["keyslot", "priority"])
            .word(device)
            .option("header", args.header.as_ref())
            .word(slot.to_string())
            .word(priority)
            .run()?;
    }
    if args.label.is_none() && args.subsystem.is_none() {
        return match args.priority {
            Some(_) => Ok(()),
            None => Err(Failure::wrong("config: requires --priority, --label or --subsystem.")),
        };
    }
    // As in cryptsetup, the label or subsystem that is not named is cleared.
    on("set", args, device)
        .option("label", Some(args.label.as_deref().unwrap_or_default()))
        .option("subsystem", Some(args.subsystem.as_deref().unwrap_or_default()))
        .run()
}
