//! The report about a volume that was made, or would be made.

use std::ops::Range;
use std::path::Path;

use serde::Serialize;
use underseal_formats::tcrypt::Chain;
use underseal_volume::Header;

use super::args::{FormatArgs, NewType};
use super::plain_size::Needed;
use crate::error::Result;
use crate::output::{print, print_json};
use crate::size;

/// The contents of `--json`. Fields are added, never changed.
#[derive(Serialize)]
struct FormatReport<'a> {
    image: &'a Path,
    #[serde(rename = "type")]
    kind: &'a str,
    /// False for a dry run.
    made: bool,
    /// The bytes of the image.
    image_size: u64,
    /// The start of the data on the image.
    data_offset: u64,
    /// The bytes of the volume.
    plain_size: u64,
    header: Option<&'a Path>,
    cipher: String,
    integrity: Option<&'a str>,
    /// `None` in a dry run, and without a header.
    sector_size: Option<usize>,
    uuid: Option<&'a str>,
}

impl<'a> FormatReport<'a> {
    fn new(args: &'a FormatArgs, image_size: u64, plain_size: u64) -> Self {
        let kind = match args.kind {
            NewType::Luks2 => "luks2",
            NewType::Luks1 => "luks1",
            NewType::Plain => "plain",
            NewType::Veracrypt => "veracrypt",
        };
        Self {
            image: &args.image,
            kind,
            made: true,
            image_size,
            data_offset: 0,
            plain_size,
            header: args.header.as_deref(),
            cipher: args.cipher.to_string(),
            integrity: args.integrity.as_deref(),
            sector_size: None,
            uuid: None,
        }
    }
}

/// Reports how large an image has to be.
pub(super) fn needed(args: &FormatArgs, needed: Needed) -> Result<()> {
    if args.json {
        let told = FormatReport::new(args, needed.image, needed.plain);
        return print_json(&FormatReport { made: false, data_offset: needed.data_offset, ..told });
    }
    print(&format!("{}\n", needed.image))
}

/// Reports a volume with a header, whose data have `data` bytes.
pub(super) fn made(args: &FormatArgs, quiet: bool, made: &Header, image_size: u64, data: u64) -> Result<()> {
    let info = made.info();
    let sector_size = info.segments.first().and_then(|segment| segment.sector_size).unwrap_or(512);
    if args.json {
        let uuid = info.uuid.to_string();
        return print_json(&FormatReport {
            data_offset: made.data_offset(),
            sector_size: Some(sector_size),
            uuid: Some(&uuid),
            ..FormatReport::new(args, image_size, data)
        });
    }
    let with_header = args.header.as_ref().map(|path| format!(" --header {}", shown(path)));
    let beside = args.integrity.as_ref().map(|kind| format!(" with integrity {kind}"));
    say(
        quiet,
        &format!(
            "{}: {} volume of {}, {}{} in {sector_size}-byte sectors, UUID {}\ntry: underseal open {}{} --nbd unix:disk.sock\n",
            args.image.display(),
            info.format.to_uppercase(),
            size::show(data),
            args.cipher,
            beside.unwrap_or_default(),
            info.uuid,
            shown(&args.image),
            with_header.unwrap_or_default(),
        ),
    )
}

/// Reports the file of a volume without a header.
pub(super) fn file(args: &FormatArgs, quiet: bool, image_size: u64) -> Result<()> {
    if args.json {
        let data_offset = args.data_offset.unwrap_or(0);
        let plain_size = image_size.saturating_sub(data_offset);
        return print_json(&FormatReport { data_offset, ..FormatReport::new(args, image_size, plain_size) });
    }
    say(
        quiet,
        &format!(
            "{}: {} for a plain volume; it has no header, so its parameters are given each time\n\
             try: underseal open {} --type plain --cipher {} --nbd unix:disk.sock\n",
            args.image.display(),
            size::show(image_size),
            shown(&args.image),
            args.cipher
        ),
    )
}

/// Reports a VeraCrypt volume whose data are in the range `data` of the image.
pub(super) fn veracrypt(
    args: &FormatArgs,
    quiet: bool,
    chain: Chain,
    image_size: u64,
    data: &Range<u64>,
) -> Result<()> {
    let plain_size = data.end - data.start;
    if args.json {
        let cipher = chain.to_string();
        return print_json(&FormatReport {
            data_offset: data.start,
            sector_size: Some(args.sector_size.unwrap_or(512) as usize),
            cipher,
            ..FormatReport::new(args, image_size, plain_size)
        });
    }
    let (kind, option) = match args.veracrypt.hidden_size {
        Some(_) => ("hidden VeraCrypt volume", " --hidden"),
        None => ("VeraCrypt volume", ""),
    };
    let pim = args.veracrypt.pim.and_then(|pim| pim.get()).map(|pim| format!(" --pim {pim}"));
    say(
        quiet,
        &format!(
            "{}: {kind} of {}, {}\ntry: underseal open {} --type tcrypt{option}{} --nbd unix:disk.sock\n",
            args.image.display(),
            size::show(plain_size),
            chain.veracrypt_name(),
            shown(&args.image),
            pim.unwrap_or_default(),
        ),
    )
}

fn say(quiet: bool, text: &str) -> Result<()> {
    if quiet { Ok(()) } else { print(text) }
}

/// Quotes a path for a shell.
fn shown(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}
