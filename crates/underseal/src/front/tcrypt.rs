//! TCRYPT volumes: the options that choose the header, `tcryptDump`, and `open --test-passphrase`.

use std::path::Path;

use underseal_formats::tcrypt::{Prf, Program, Unlocked};

use super::Words;
use super::args::Args;
use super::call::{Call, from_stdin};
use super::failure::{Failure, Result, Status};
use super::header::sure;
use super::key::{ROW, rows};
use super::open::must_exist;
use crate::cli::Command;
use crate::commands::{new_file, write_secret};
use crate::error::Error;
use crate::foreign::{self, Request};
use crate::lower::open_header;
use crate::output::{print, printable};
use crate::part;
use crate::passphrase::ask_hidden;

/// cryptsetup's message when no header opens.
pub(super) const WRONG: &str = "No device header detected with this passphrase.";

/// Adds the options of a command on a TCRYPT volume. Fails with `NoPermission` for a hash that no
/// header is derived with; with `Wrong` for an invalid PIM.
pub(super) fn options(call: Call, args: &Args) -> Result<Call> {
    if args.header.is_some() {
        return Err(Failure::unsupported("--header with --type tcrypt is not supported"));
    }
    let mut call = call
        .option("type", Some("tcrypt"))
        .flag("hidden", args.tcrypt_hidden)
        .flag("backup-header", args.tcrypt_backup)
        .flag("system", args.tcrypt_system)
        .flag("no-veracrypt", args.disable_veracrypt)
        .number("pim", pim(args)?)
        .option("chain-part", args.cipher.as_ref());
    if let Some(part) = &args.hash {
        let named: Vec<_> = Prf::ALL.into_iter().filter(|prf| prf.kernel_name().contains(&**part)).collect();
        if named.is_empty() {
            return Err(Failure::new(Status::NoPermission, WRONG));
        }
        call = named.into_iter().fold(call, |call, prf| call.option("prf", Some(prf.name())));
    }
    let call = args.key_file.iter().fold(call, |call, file| call.option("key-file", Some(file)));
    // With key files, too, the passphrase is a line of stdin or is asked for.
    Ok(call.number("passphrase-fd", from_stdin()))
}

fn pim(args: &Args) -> Result<Option<u32>> {
    if !args.veracrypt_query_pim {
        return Ok(args.veracrypt_pim);
    }
    let typed = ask_hidden("Enter VeraCrypt PIM: ")?;
    match std::str::from_utf8(typed.as_bytes()).ok().and_then(|text| text.parse().ok()) {
        Some(0) => Err(Failure::wrong("Invalid PIM value: 0.")),
        Some(pim) => Ok(Some(pim)),
        None => Err(Failure::wrong("Invalid PIM value: parse error.")),
    }
}

/// Tests a passphrase, for `open --test-passphrase`. Fails with `NoPermission` when no header
/// opens.
pub(super) fn test(args: &Args, device: &Path) -> Result<()> {
    unlocked(args, device).map(drop)
}

/// `tcryptDump DEVICE`.
pub(super) fn dump(args: &Args, words: &Words<'_>) -> Result<()> {
    let device = words.need(0, "device")?;
    if args.dump_volume_key {
        sure(
            args,
            "The header dump with volume key is sensitive information\n\
             that allows access to encrypted partition without a passphrase.",
        )?;
    }
    let unlocked = unlocked(args, device)?;
    let shown = printable(&device.to_string_lossy());
    if !args.dump_volume_key {
        return Ok(print(&text(&unlocked, &shown))?);
    }
    let (of, key) = (&unlocked.header, unlocked.volume_key().map_err(Error::from)?);
    if let Some(file) = &args.volume_key_file {
        return Ok(new_file(file, key.as_bytes())?);
    }
    print(&format!(
        "TCRYPT header information for {shown}\nCipher chain:  \t{}\nCipher mode:   \t{}\nPayload offset:\t{}\n\
         MK bits:       \t{}\nMK dump:\t",
        unlocked.chain.name(),
        unlocked.chain.mode().name(),
        of.start / 512,
        key.len() * 8
    ))?;
    Ok(write_secret(rows(&key, ROW)?.as_bytes())?)
}

fn text(unlocked: &Unlocked, shown: &str) -> String {
    let (of, derivation) = (&unlocked.header, unlocked.derivation);
    let program = if of.program == Program::VeraCrypt { "VERACRYPT" } else { "TCRYPT" };
    let hidden = match of.hidden_size {
        0 => String::new(),
        size => format!("Hidden size:\t{size}\n"),
    };
    let pbkdf = match derivation.prf.hash() {
        Some(hash) => format!("PBKDF:\t\tPBKDF2\nPBKDF2 hash:\t{hash}\n"),
        None => "PBKDF:\t\tArgon2id\n".to_owned(),
    };
    format!(
        "{program} header information for {shown}\nVersion:       \t{}\nDriver req.:\t{}\nFlags:\t\t{:#x}\n\
         Sector size:\t{}\nMK offset:\t{}\nVolume size:\t{}\n{hidden}{pbkdf}Cipher chain:\t{}\nCipher mode:\t{}\n\
         MK bits:       \t{}\n",
        of.version,
        of.program_text(),
        of.flags,
        of.sector_size,
        of.start,
        of.size,
        unlocked.chain.name(),
        unlocked.chain.mode().name(),
        unlocked.volume_key().map_or(0, |key| key.len() * 8),
    )
}

fn unlocked(args: &Args, device: &Path) -> Result<Unlocked> {
    must_exist(device)?;
    let Command::Info(info) = options(Call::new(&["info"]).word(device), args)?.parsed()?.command else {
        return Err(Failure::wrong("no such command"));
    };
    let image = open_header(device, true)?;
    let range = part::range(info.volume.part, &*image)?;
    Ok(foreign::unlock_header(Request::of(&info.volume), &image, range.as_ref())?)
}
