//! `underseal integrity check`.

use clap::Args;
use serde::Serialize;
use underseal_integrity::{VolumeReader, WriteMode, look, open};

use super::place::{IntegrityPlaceArgs, Volume};
use super::{EXAMPLES, IntegrityHashArgs, options};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::{print, print_json};
use crate::progress::Progress;
use crate::size;

/// The bytes of one read.
const RUN: usize = 1 << 20;

/// Reads all blocks and lists those whose checksums are wrong; nothing is changed
///
/// What is still in the journal is read from there.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct IntegrityCheckArgs {
    #[command(flatten)]
    pub(crate) place: IntegrityPlaceArgs,
    #[command(flatten)]
    pub(crate) hashes: IntegrityHashArgs,
    /// Accept blocks that were discarded
    #[arg(long)]
    pub(crate) allow_discards: bool,
    /// For programs: everything as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

pub(super) fn run(args: &IntegrityCheckArgs, quiet: bool) -> Result<()> {
    let mut options = options(WriteMode::Journal, &args.place, &args.hashes)?;
    options.allow_discards = args.allow_discards;
    // Nothing is recalculated here: blocks without checksums are left out.
    options.legacy_recalculate = true;
    if options.hash.is_none() {
        return Err(
            Error::usage("without a hash there is nothing to compare").with_remedy("--integrity HASH")
        );
    }
    let volume = Volume::open(&args.place, true)?;
    look(&volume.disks(), &options).map_err(|e| volume.said(e))?.keep_bitmap(&mut options);
    // The volume is read as after a replay of the journal, without replaying it.
    let over = volume.over();
    let opened = open(&over.disks(), &options).map_err(|e| volume.said(e))?;
    let sectors = opened.geometry.provided();
    let mut progress = Progress::new("checking", Some(sectors * 512), quiet);
    let found = volume.each(sectors, &mut progress, |range| {
        let reader = VolumeReader::new(over.disks(), &opened, &options);
        let (mut at, mut bad, mut bytes) = (range.start, Vec::new(), vec![0; RUN]);
        while at < range.end {
            let run = usize::try_from((range.end - at) * 512).unwrap_or(RUN).min(RUN);
            reader.read(at, &mut bytes[..run], &mut bad)?;
            at += run as u64 / 512;
        }
        Ok(bad)
    })?;
    drop(progress);
    let block = opened.geometry.block_sectors();
    let report = Report {
        sectors,
        bad: runs(found.into_iter().flatten(), block),
        not_recalculated: opened.recalculation().map(|from| (sectors - from) * 512),
    };
    if args.json {
        print_json(&report)?;
    } else {
        print(&report.text())?;
    }
    if report.bad.is_empty() {
        return Ok(());
    }
    let blocks: u64 = report.bad.iter().map(|run| run.sectors / block).sum();
    let what = format!("{}: {blocks} blocks cannot be read", args.place.image.display());
    Err(Error::new(Exit::BadHeader, what)
        .with_remedy("the hash and key that it was made with; else a backup of these blocks"))
}

#[derive(Serialize)]
struct Report {
    sectors: u64,
    bad: Vec<Run>,
    /// Bytes at the end that have no checksums yet.
    not_recalculated: Option<u64>,
}

/// A run of sectors.
#[derive(Serialize)]
struct Run {
    sector: u64,
    sectors: u64,
}

fn runs(bad: impl Iterator<Item = u64>, block: u64) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for sector in bad {
        match runs.last_mut().filter(|run| run.sector + run.sectors == sector) {
            Some(run) => run.sectors += block,
            None => runs.push(Run { sector, sectors: block }),
        }
    }
    runs
}

impl Report {
    fn text(&self) -> String {
        let mut text: String = self
            .bad
            .iter()
            .map(|run| {
                format!("sectors {} to {}: wrong checksum\n", run.sector, run.sector + run.sectors - 1)
            })
            .collect();
        if let Some(bytes) = self.not_recalculated {
            text += &format!(
                "{} are not recalculated yet, and were not compared where that is due\n",
                size::show(bytes)
            );
        }
        if self.bad.is_empty() {
            text += "All checksums are right.\n";
        }
        text
    }
}
