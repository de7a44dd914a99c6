//! `underseal read`, `underseal write` and `underseal check`.

use std::path::PathBuf;

use clap::Args;

use super::{OnError, VolumeArgs};
use crate::size;

/// Copies a volume's plain bytes out, without a server.
#[derive(Debug, Args)]
#[command(after_help = READ_EXAMPLES)]
pub(crate) struct ReadArgs {
    /// Where to begin in the volume
    #[arg(long, value_name = "BYTES", value_parser = size::parse, default_value = "0")]
    pub(crate) offset: u64,
    /// How much to read; to the volume's end by default
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub(crate) length: Option<u64>,
    /// The file to write, created for you alone; stdout by default, "-" for stdout even on a
    /// terminal
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Authenticated volumes: at sectors whose tags do not match, stop, or give zeros and list them
    /// on stderr
    #[arg(long, value_name = "WAY", value_enum, default_value_t = OnError::Stop)]
    pub(crate) on_error: OnError,
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
}

/// Copies plain bytes into a volume, without a server, and flushes it.
#[derive(Debug, Args)]
#[command(after_help = WRITE_EXAMPLES)]
pub(crate) struct WriteArgs {
    /// Where to begin in the volume
    #[arg(long, value_name = "BYTES", value_parser = size::parse, default_value = "0")]
    pub(crate) offset: u64,
    /// The file to read; stdin by default or for "-"
    #[arg(short, long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
}

/// Reads all of an authenticated volume, and lists what is not as it was written.
///
/// IMAGE is an image, or, where no file is called so, the name of a volume that is open
/// (`underseal list`): its server reads that, beside what its users do, and no passphrase is
/// needed. What waits in the journal of an open volume is compared as the server has it in memory.
/// Ctrl-C ends it.
#[derive(Debug, Args)]
#[command(after_help = CHECK_EXAMPLES)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
}

const CHECK_EXAMPLES: &str = "\
Examples:
  underseal check disk.img
  underseal check work                      a volume that is open, by its name
  underseal check disk.img --passphrase-file pass.txt > damaged.txt";

const READ_EXAMPLES: &str = "\
Examples:
  underseal read disk.img -o plain.img
  underseal read disk.img --length 1M --passphrase-file pass.txt | file -
  underseal read old.img --type plain --key-file old.key -o plain.img";

const WRITE_EXAMPLES: &str = "\
Examples:
  underseal write disk.img -i filesystem.ext4
  tar c photos | underseal write disk.img --passphrase-file pass.txt --offset 1G
  cat pass.txt data | underseal write disk.img --passphrase-fd 0";
