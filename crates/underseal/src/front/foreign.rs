//! `bitlkDump`, `fvault2Dump`, and `open --test-passphrase` for these formats.

use std::path::Path;

use underseal_cipher::Key;
use underseal_formats::Format;
use underseal_formats::bitlk::{Bitlk, Guid, ProtectorKind};
use underseal_formats::fvault2::Fvault2;
use underseal_volume::Target;

use super::Words;
use super::args::Args;
use super::call::Call;
use super::failure::{Failure, Result};
use super::header::sure;
use super::key::{ROW, rows};
use super::open::{must_exist, volume};
use crate::cli::Command;
use crate::commands::{new_file, write_secret};
use crate::error::Error;
use crate::exit::Exit;
use crate::foreign::{self, Request};
use crate::local_time::local_time;
use crate::lower::open_header;
use crate::output::{print, printable};

/// Prints the facts of a header that needs no secret, or the volume key that a secret opens. Fails
/// with `Wrong` for a device without this kind of header; with `NoPermission` when the secret opens
/// none.
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
        // --volume-key-file names the destination of the key.
        let call = Call::new(&["info"]).word(device).option("type", Some(format.name())).secret(args);
        let key = volume_key(call, device, format)?;
        print(&before_key(&*open_header(device, true)?, format, &shown, key.len() * 8)?)?;
        if let Some(file) = &args.volume_key_file {
            new_file(file, key.as_bytes())?;
            return Ok(print(&format!("Key stored to file {}.\n", printable(&file.to_string_lossy())))?);
        }
        return match format {
            Format::Bitlk => {
                print("MK dump:\t")?;
                Ok(write_secret(rows(&key, ROW)?.as_bytes())?)
            }
            _ => {
                print("Volume key:       \t")?;
                Ok(write_secret(rows(&key, key.len())?.as_bytes())?)
            }
        };
    }
    let on = open_header(device, true)?;
    let text = match format {
        Format::Bitlk => bitlk(&Bitlk::read(&*on).map_err(Error::from)?, &shown),
        Format::Fvault2 => {
            Fvault2::read(&[&*on], None).map_err(Error::from).and_then(|of| fvault2(&of, &shown))
        }
        Format::Tcrypt | Format::Loopaes => return Err(Failure::wrong("no such type")),
    };
    Ok(print(&text.map_err(|e| e.within(&shown))?)?)
}

/// Returns the lines before a volume key.
fn before_key(on: &dyn Target, format: Format, shown: &str, bits: usize) -> Result<String> {
    let text = match format {
        Format::Bitlk => {
            let of = Bitlk::read(on).map_err(Error::from)?;
            let (mode, uuid) = (of.method().mode(), of.guid().to_string().to_ascii_lowercase());
            format!(
                "BITLK header information for {shown}\nCipher name:   \taes\nCipher mode:   \t{mode}\n\
                 UUID:          \t{uuid}\nMK bits:       \t{bits}\n"
            )
        }
        _ => fvault2(&Fvault2::read(&[on], None).map_err(Error::from)?, shown)?,
    };
    Ok(text)
}

/// Formats the metadata of BitLocker as cryptsetup does.
fn bitlk(of: &Bitlk, shown: &str) -> crate::error::Result<String> {
    let lower = |guid: Guid| guid.to_string().to_ascii_lowercase();
    let (mode, bits) = (of.method().mode(), of.method().key_size() * 8);
    let to_go = if of.is_to_go() { " To Go" } else { "" };
    let mut text = format!(
        "Info for BITLK{to_go} device {shown}.\nVersion:      \t2\nGUID:         \t{}\nSector size:  \t{} [bytes]\n\
         Volume size:  \t{} [bytes]\nCreated:      \t{}\nDescription:  \t{}\nCipher name:  \taes\n\
         Cipher mode:  \t{mode}\nCipher key:   \t{bits} bits\n\nKeyslots:\n",
        lower(of.guid()),
        of.sector_size().bytes(),
        of.encrypted_bytes(),
        local_time(of.created().unix_seconds()),
        printable(of.description()),
    );
    for (number, protector) in of.protectors().iter().enumerate() {
        text += &format!(" {number}: VMK\n");
        if !protector.name.is_empty() {
            text += &format!("\tName:       \t{}\n", printable(&protector.name));
        }
        let salt: String =
            protector.salt.unwrap_or_default().iter().map(|byte| format!("{byte:02x}")).collect();
        text += &format!(
            "\tGUID:       \t{}\n\tProtection: \t{}\n\tSalt:       \t{salt}\n\tKey data size:\t{} [bytes]\n",
            lower(protector.guid),
            protection(protector.kind),
            protector.wrapped_len(),
        );
    }
    let (number, len) = (of.protectors().len(), of.wrapped_key_len().map_err(Error::from)?);
    text += &format!(" {number}: FVEK\n\tKey data size:\t{len} [bytes]\n\nMetadata segments:\n");
    for (number, at) in of.metadata().into_iter().enumerate() {
        text +=
            &format!(" {number}: FVE metadata area\n\tOffset: \t{at} [bytes]\n\tSize:   \t65536 [bytes]\n");
    }
    let (at, len) = of.moved_header();
    text += &format!(
        " 3: Volume header\n\tOffset: \t{at} [bytes]\n\tSize:   \t{len} [bytes]\n\tCipher: \taes-{mode}\n"
    );
    Ok(text)
}

fn protection(kind: ProtectorKind) -> &'static str {
    match kind {
        ProtectorKind::ClearKey => "VMK protected with clear key",
        ProtectorKind::Tpm => "VMK protected with TPM",
        ProtectorKind::StartupKey => "VMK protected with startup key",
        ProtectorKind::TpmPin => "VMK protected with TPM and PIN",
        ProtectorKind::Password => "VMK protected with passphrase",
        ProtectorKind::RecoveryPassword => "VMK protected with recovery passphrase",
        ProtectorKind::SmartCard => "VMK protected with smart card",
        ProtectorKind::TpmStartupKey | ProtectorKind::TpmPinStartupKey | ProtectorKind::Unknown(_) => {
            "VMK with unknown protection"
        }
    }
}

/// Formats the metadata of FileVault 2 as cryptsetup does.
fn fvault2(of: &Fvault2, shown: &str) -> crate::error::Result<String> {
    let Some((iterations, salt)) = of.pbkdf2() else {
        let what = "the metadata hold no keys, as on a system volume";
        return Err(Error::new(Exit::BadHeader, what));
    };
    let salt: String = salt.iter().map(|byte| format!("{byte:02x} ")).collect();
    Ok(format!(
        "Header information for FVAULT2 device {shown}.\nPhysical volume UUID: \t{}\nFamily UUID:          \t{}\n\
         Logical volume offset:\t{} [bytes]\nLogical volume size:  \t{} [bytes]\nCipher:               \taes\n\
         Cipher mode:          \txts-plain64\nPBKDF2 iterations:    \t{iterations}\nPBKDF2 salt:          \t{salt}\n",
        of.physical_uuid().to_ascii_lowercase(),
        of.family_uuid().to_ascii_lowercase(),
        of.offset(),
        of.size(),
    ))
}

/// Tests a secret, for `open --test-passphrase`.
pub(super) fn test(args: &Args, device: &Path) -> Result<()> {
    let call = volume(Call::new(&["info"]).word(device), args)?;
    volume_key(call, device, kind(args, device)?).map(drop)
}

fn kind(args: &Args, device: &Path) -> Result<Format> {
    must_exist(device)?;
    let asked = args.kind.as_deref().and_then(|kind| kind.parse::<Format>().ok());
    let format = asked.ok_or_else(|| Failure::wrong("no such type"))?;
    let on = open_header(device, true)?;
    if Format::detect(&*on).map_err(Error::from)? != Some(format) {
        let shown = printable(&device.to_string_lossy());
        return Err(Failure::wrong(&format!("Device {shown} is not a valid {} device.", name(format))));
    }
    Ok(format)
}

/// Returns the volume key; as in cryptsetup, also of a volume whose state prevents an open.
fn volume_key(call: Call, device: &Path, format: Format) -> Result<Key> {
    let Command::Info(info) = call.parsed()?.command else {
        return Err(Failure::wrong("no such command"));
    };
    let on = open_header(device, true)?;
    Ok(foreign::volume_key(Request::of(&info.volume), format, &on)?)
}

fn name(format: Format) -> String {
    format.name().to_uppercase()
}
