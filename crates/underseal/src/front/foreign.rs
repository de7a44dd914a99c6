//! `bitlkDump`, `fvault2Dump`, and `open --test-passphrase` for these formats.

use std::path::Path;

use underseal_formats::Format;

use super::Words;
use super::args::Args;
use super::call::Call;
use super::failure::{Failure, Result};
use super::header::sure;
use super::key::rows;
use super::open::{must_exist, volume};
use crate::cli::Command;
use crate::commands::{new_file, write_secret};
use crate::foreign::{self, Request};
use crate::lower::open_header;
use crate::output::{print, printable};

/// Prints what a header says without a secret, or the volume key that a secret opens.
///
/// # Errors
/// `Wrong` for a device without such a header; `NoPermission` when nothing opens.
pub(super) fn dump(args: &Args, words: &Words<'_>) -> Result<()> {
    let device = words.need(0, "device")?;
    let format = kind(args, device)?;
    let shown = printable(&device.to_string_lossy());
    if args.dump_volume_key {
        sure(
            args,
            "The header dump with volume key is sensitive information\n\
             that allows access to encrypted partition without a passphrase.",
        )?;
        let key = opened(args, device, format)?.volume_key;
        if let Some(file) = &args.volume_key_file {
            return Ok(new_file(file, key.as_bytes())?);
        }
        print(&format!(
            "{} header information for {shown}\nMK bits:       \t{}\nMK dump:\t",
            name(format),
            key.len() * 8
        ))?;
        return Ok(write_secret(rows(&key)?.as_bytes())?);
    }
    let on = open_header(device, true)?;
    let facts = foreign::described(format, &on).map_err(|e| e.within(&shown))?;
    let facts = facts.ok_or_else(|| Failure::wrong("nothing is known of it without a secret"))?;
    Ok(print(&format!("Info for {} device {shown}.\n{facts}\n", name(format)))?)
}

/// `open --test-passphrase`.
///
/// # Errors
/// As [`dump`].
pub(super) fn test(args: &Args, device: &Path) -> Result<()> {
    opened(args, device, kind(args, device)?).map(drop)
}

fn kind(args: &Args, device: &Path) -> Result<Format> {
    must_exist(device)?;
    let asked = args.kind.as_deref().and_then(|kind| kind.parse::<Format>().ok());
    let format = asked.ok_or_else(|| Failure::wrong("no such type"))?;
    let on = open_header(device, true)?;
    if Format::detect(&*on).map_err(crate::error::Error::from)? != Some(format) {
        let shown = printable(&device.to_string_lossy());
        return Err(Failure::wrong(&format!("Device {shown} is not a valid {} device.", name(format))));
    }
    Ok(format)
}

fn opened(args: &Args, device: &Path, format: Format) -> Result<underseal_formats::OpenedFormat> {
    let call = volume(Call::new(&["info"]).word(device), args)?;
    let Command::Info(info) = call.parsed()?.command else {
        return Err(Failure::wrong("no such command"));
    };
    let on = open_header(device, true)?;
    Ok(foreign::open(Request::of(&info.volume), format, &on, None)?)
}

fn name(format: Format) -> String {
    format.name().to_uppercase()
}
