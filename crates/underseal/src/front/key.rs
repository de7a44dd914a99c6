//! `luksDump --dump-volume-key`, and `luksDump --unbound`.

use std::path::Path;

use underseal_cipher::Key;
use underseal_volume::UnlockOptions;
use underseal_volume::info::DigestInfo;

use super::args::Args;
use super::call::source;
use super::failure::{Failure, Result};
use super::header::{on, sure};
use super::look::find;
use crate::commands::{new_file, write_secret};
use crate::error::Error;
use crate::lower::open_header;
use crate::output::{print, printable};
use crate::passphrase::Secret;

/// Bytes on a line.
pub(super) const ROW: usize = 16;

/// Writes the volume's key to the named file, else to stdout.
pub(super) fn dump(args: &Args, device: &Path) -> Result<()> {
    let header = find(args, device)?;
    sure(
        args,
        "The header dump with volume key is sensitive information\n\
         that allows access to encrypted partition without a passphrase.",
    )?;
    if args.volume_key_file.is_some() {
        // The file gets this name, as cryptsetup makes it.
        let file = args.volume_key_file.as_deref().map(|file| match file.as_os_str() == "-" {
            true => Path::new("./-"),
            false => file,
        });
        let call = on("dump-key", args, device).option("output", file);
        return call.number("key-slot", args.key_slot).secret(args).run();
    }
    let path = args.header.as_deref().unwrap_or(device);
    let keyslots = open_header(path, true)?;
    let options = UnlockOptions { slot: args.key_slot, ..UnlockOptions::default() };
    let unlocked = Secret::new(source(args), device)
        .try_with(|key| Ok(header.unlock(&*keyslots, key, &options).map_err(|e| e.in_file(path))?))?;
    let info = header.info();
    let segment = info.segments.first().ok_or_else(|| Failure::wrong("There is no data segment."))?;
    let (cipher, mode) = segment.cipher.as_deref().and_then(|c| c.split_once('-')).unwrap_or_default();
    let key = unlocked.key.key();
    print(&format!(
        "LUKS header information for {}\nCipher name:   \t{cipher}\nCipher mode:   \t{mode}\n\
         Payload offset:\t{}\nUUID:          \t{}\nMK bits:       \t{}\nMK dump:\t",
        printable(&device.to_string_lossy()),
        segment.offset / 512,
        printable(&info.uuid),
        key.len() * 8
    ))?;
    Ok(write_secret(rows(key, ROW)?.as_bytes())?)
}

/// Writes the key of an unbound keyslot to the named file, else to stdout.
pub(super) fn dump_unbound(args: &Args, device: &Path, slot: u32) -> Result<()> {
    let header = find(args, device)?;
    let info = header.info();
    let is_unbound = |digest: &DigestInfo| digest.segments.is_empty() && digest.keyslots.contains(&slot);
    if !info.digests.iter().any(is_unbound) {
        return Err(Failure::wrong(&format!("Keyslot {slot} does not contain unbound key.")));
    }
    sure(args, "The header dump with unbound key is sensitive information.")?;
    let path = args.header.as_deref().unwrap_or(device);
    let keyslots = open_header(path, true)?;
    let options = UnlockOptions { slot: Some(slot), ..UnlockOptions::default() };
    let unlocked = Secret::new(source(args), device)
        .try_with(|key| Ok(header.unlock(&*keyslots, key, &options).map_err(|e| e.in_file(path))?))?;
    let key = unlocked.key.key();
    let shown = printable(&device.to_string_lossy());
    print(&format!(
        "LUKS header information for {shown}\nUUID:    \t{}\nKeyslot: \t{slot}\nKey bits:\t{}\n",
        printable(&info.uuid),
        key.len() * 8
    ))?;
    if let Some(file) = &args.volume_key_file {
        new_file(file, key.as_bytes())?;
        return Ok(print(&format!("Key stored to file {}.\n", printable(&file.to_string_lossy())))?);
    }
    print("Unbound Key:\t")?;
    Ok(write_secret(rows(key, ROW)?.as_bytes())?)
}

/// Formats the key in hex, `each` bytes on a line, in locked memory.
pub(super) fn rows(key: &Key, each: usize) -> Result<Key> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    const INDENT: &[u8] = b"\n\t\t";
    let lines = key.len().div_ceil(each).max(1);
    let mut text = Key::zeroed(3 * key.len() + (lines - 1) * INDENT.len() + 1).map_err(Error::from)?;
    let mut rest = text.as_mut_bytes();
    for (number, row) in key.as_bytes().chunks(each).enumerate() {
        if number > 0 {
            rest.split_off_mut(..INDENT.len()).unwrap_or_default().copy_from_slice(INDENT);
        }
        for byte in row {
            let digits = [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)], b' '];
            rest.split_off_mut(..3).unwrap_or_default().copy_from_slice(&digits);
        }
    }
    rest.fill(b'\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stands_in_rows() {
        let key = Key::new(&(0..20).collect::<Vec<u8>>()).unwrap();
        let text = "00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f \n\t\t10 11 12 13 \n";
        assert_eq!(rows(&key, ROW).unwrap().as_bytes(), text.as_bytes());
    }
}
