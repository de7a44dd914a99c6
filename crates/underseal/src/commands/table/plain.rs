//! `underseal table plain`: the dm-crypt table of a plain volume.

use std::path::PathBuf;

use clap::Args;
use underseal_volume::plain;
use underseal_volume::table::Table;
use zeroize::Zeroizing;

use super::{EXAMPLES, device_word, refused};
use crate::cli::{PlainArgs, SecretArgs};
use crate::error::{Error, Result};
use crate::lower::open_header;
use crate::passphrase::Secret;
use crate::reencryption;
use crate::volume::{plain_key, plain_options};

/// Prints the table of a plain volume, with its key, for what takes tables: `reencrypt --state`,
/// `table open`
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TablePlainArgs {
    /// The image or block device
    pub(crate) image: PathBuf,
    #[command(flatten)]
    pub(crate) plain: PlainArgs,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
}

/// Prints a plain volume as a table: its options and its passphrase contain the same facts.
pub(super) fn run(args: &TablePlainArgs) -> Result<()> {
    let (image, of) = (&args.image, &args.plain);
    let options = plain_options(of)?;
    let size = reencryption::size(&open_header(image, true)?)?;
    let key = plain_key(&Secret::new(args.secret.source(), image), &of.hash(), of.key_size / 8)?;
    let volume = plain::activate(&key, size, &options).map_err(|e| Error::from(e).within(image.display()))?;
    let device = device_word(image)?;
    let words = [
        (of.sector_size != 512).then(|| format!("sector_size:{}", of.sector_size)),
        of.iv_large_sectors.then(|| "iv_large_sectors".into()),
    ];
    let words: Vec<String> = words.into_iter().flatten().collect();
    let more = if words.is_empty() { String::new() } else { format!(" {} {}", words.len(), words.join(" ")) };
    let digits: String = key.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let line = Zeroizing::new(format!(
        "0 {} crypt {} {} {} {} {}{more}",
        volume.size() >> 9,
        options.cipher,
        *Zeroizing::new(digits),
        options.iv_offset,
        device,
        of.data_offset >> 9
    ));
    let table = Table::parse(&line).map_err(refused)?;
    super::print_table(&table, true)
}
