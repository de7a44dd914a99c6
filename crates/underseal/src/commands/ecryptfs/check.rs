//! `underseal ecryptfs check`.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use underseal_ecryptfs::tools::{CheckFinding, check as verify};

use super::access::{Access, TreeKeyArgs};
use super::report::TreeReport;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::print_json;

/// Verifies names, headers, lengths and that every extent is there and can be read
///
/// eCryptfs has no checksum of contents: an extent that was changed is noise, and no check can
/// tell.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal ecryptfs check ~/.Private --passphrase-file secret")]
pub(crate) struct TreeCheckArgs {
    /// The lower folder or file
    pub(crate) lower: PathBuf,
    /// Write the present size into the header of a file that was cut after a whole extent, as a
    /// power cut may leave one. The end of this file is lost. The folder must not be mounted
    /// meanwhile
    #[arg(long)]
    pub(crate) repair: bool,
    /// For programs: one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) keys: TreeKeyArgs,
}

pub(super) fn run(args: &TreeCheckArgs, quiet: bool) -> Result<()> {
    #[derive(Serialize)]
    struct Checked {
        files: u64,
        bytes: u64,
        plain_or_empty: u64,
        failed: u64,
        findings: Vec<Found>,
    }
    #[derive(Serialize)]
    struct Found {
        path: String,
        finding: String,
    }
    let mut access = Access::new(&args.keys, &args.lower)?;
    let mut told = TreeReport::new("checking", quiet);
    let mut findings = Vec::new();
    let mut count = 0u64;
    let mut tell = |path: &Path, finding: CheckFinding| {
        let words = match finding {
            CheckFinding::Plain => "it is not encrypted".into(),
            CheckFinding::Zeros => "it is nothing but zeros: an empty file".into(),
            CheckFinding::Longer { bytes } => format!("{bytes} bytes more than its header says"),
            CheckFinding::Tail => "behind its end there is something else than zeros: it is damaged".into(),
            CheckFinding::Repaired { size: (before, after) } => {
                format!("repaired: it was cut, and has {after} bytes now instead of {before}")
            }
            CheckFinding::LeftOver => {
                "it holds the name of nothing: it is left over, and may be removed".into()
            }
            CheckFinding::Cipher(cipher) => format!("its cipher is another than the first file's: {cipher}"),
        };
        count += u64::from(finding == CheckFinding::Tail);
        let path = path.to_string_lossy().replace(|c: char| c.is_control(), "?");
        match args.json {
            // This number is enough to see the fault; the count reports the rest.
            true if findings.len() < 100_000 => findings.push(Found { path, finding: words }),
            true => {}
            false => log::warn!("{path}: {words}"),
        }
    };
    let summary = verify(&args.lower, &mut access.keys, args.repair, &mut told, &mut tell)?;
    if args.json {
        print_json(&Checked {
            files: summary.files,
            bytes: summary.bytes,
            plain_or_empty: summary.unchanged,
            failed: summary.failed,
            findings,
        })?;
    }
    told.finish(&summary, false, quiet)?;
    match count {
        0 => Ok(()),
        _ => {
            Err(Error::new(Exit::Partial, "some files are damaged").with_remedy("restore them from a backup"))
        }
    }
}
