//! `underseal table volume`: the dm-crypt table of a volume of another system.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;

use clap::Args;
use underseal_formats::OpenedFormat;
use underseal_volume::SegmentKind;
use underseal_volume::table::Table;
use zeroize::Zeroizing;

use super::{EXAMPLES, device_word, refused};
use crate::cli::VolumeArgs;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::foreign::{self, Request};
use crate::lower::open_header;
use crate::part;

/// Prints the table that a volume of another system comes to, with its key: TrueCrypt and VeraCrypt
/// of one cipher, BitLocker, FileVault 2, loop-AES
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TableVolumeArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
}

pub(super) fn volume(args: &TableVolumeArgs) -> Result<()> {
    let volume = &args.volume;
    let image = open_header(&volume.image, true)?;
    let range = part::range(volume.part, &*image)?;
    let on = part::window(&image, range.as_ref());
    let Some(format) = foreign::format(volume.kind, &on)? else {
        let what = format!("{}: no volume of another system", volume.image.display());
        return Err(
            Error::usage(what).with_remedy("--type tcrypt, or `underseal table plain` for a plain volume")
        );
    };
    let others = foreign::others(&volume.other_device, volume.part)?;
    let opened = foreign::open(Request::of(volume), format, (image, range), &others)?;
    let devices =
        [volume.image.as_os_str()].into_iter().chain(volume.other_device.iter().map(OsString::as_os_str));
    let devices = devices.map(|path| device_word(Path::new(path)));
    let text = lines(&opened, &devices.collect::<Result<Vec<_>>>()?)?;
    let table = Table::parse(&text).map_err(refused)?;
    super::print_table(&table, true)
}

/// Makes a line for each segment. Fails with `Unsupported` for ciphers that dm-crypt lacks: for a
/// chain it stacks devices.
fn lines(opened: &OpenedFormat, devices: &[String]) -> Result<Zeroizing<String>> {
    let mut key = Zeroizing::new(String::new());
    for byte in opened.volume_key.as_bytes() {
        // Writing to a string cannot fail.
        let _ = write!(key, "{byte:02x}");
    }
    let mut text = Zeroizing::new(String::new());
    for segment in opened.volume.segments() {
        let (start, len) = (segment.start >> 9, segment.len >> 9);
        let device = |number: usize| devices.get(number).map_or("", String::as_str);
        let _ = match &segment.kind {
            SegmentKind::Zero => writeln!(text, "{start} {len} zero"),
            SegmentKind::Error => writeln!(text, "{start} {len} error"),
            SegmentKind::Stored(stored) if stored.cipher.is_null() => {
                writeln!(text, "{start} {len} linear {} {}", device(stored.device), stored.lower >> 9)
            }
            SegmentKind::Stored(stored) => {
                let cipher_parameters =
                    stored.cipher_parameters.as_ref().filter(|of| of.key_size == opened.volume_key.len());
                let Some(cipher_parameters) = cipher_parameters else {
                    let what = "its cipher is a chain, or one that dm-crypt does not have: no table says it";
                    return Err(Error::new(Exit::Unsupported, what).with_remedy("`underseal open` serves it"));
                };
                let size = cipher_parameters.sector_size.bytes();
                let words = [
                    (size != 512).then(|| format!("sector_size:{size}")),
                    cipher_parameters.iv_large_sectors.then(|| "iv_large_sectors".to_owned()),
                ];
                let words: Vec<String> = words.into_iter().flatten().collect();
                let more = if words.is_empty() {
                    String::new()
                } else {
                    format!(" {} {}", words.len(), words.join(" "))
                };
                let (iv, lower, device) = (stored.iv_offset, stored.lower >> 9, device(stored.device));
                writeln!(
                    text,
                    "{start} {len} crypt {} {} {iv} {device} {lower}{more}",
                    cipher_parameters.cipher, *key
                )
            }
        };
    }
    Ok(text)
}
