//! `underseal check`.

use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use underseal_export::control::{Checked, Name, Reply, Request, Status};

use super::control::{ask, find, refused};
use crate::cli::VolumeArgs;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lower::is_remote;
use crate::output::print;
use crate::progress::Progress;
use crate::transfer;
use crate::volume::{self, Access, Opened};

/// Reads all of an authenticated volume, and lists what is not as it was written.
///
/// IMAGE is an image, or, where no file is called so, the name of a volume that is open
/// (`underseal list`): its server reads that, beside what its users do, and no passphrase is
/// needed. What waits in the journal of an open volume is compared as the server has it in memory.
/// Ctrl-C ends it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
}

/// Checks a volume, and lists sectors whose tags do not match. The server of an open volume reads
/// it.
pub(super) fn run(args: &CheckArgs, quiet: bool) -> Result<()> {
    let image = &args.volume.image;
    match find(image) {
        Ok(Some((name, status))) => open(args, &name, &status, quiet),
        Err(e) if !image.exists() && !is_remote(image) => Err(e),
        Ok(None) | Err(_) => closed(args, quiet),
    }
}

fn closed(args: &CheckArgs, quiet: bool) -> Result<()> {
    let access = Access { read_only: true, allow_discards: false };
    let Opened { mapping, locks: _locks, .. } = volume::open(&args.volume, access)?;
    let mapping = Arc::new(mapping);
    let image = args.volume.image.display();
    if !mapping.is_authenticated() {
        let context = format!("{image}: its sectors are not authenticated: whatever is there reads as data");
        return Err(Error::new(Exit::Unsupported, context));
    }
    let (size, unverified) = (mapping.size(), mapping.unverified());
    let mut progress = Progress::new("checking", Some(size), quiet);
    let mut lost = Lost::new(tell);
    let read = transfer::salvage(&mapping, 0..size, &mut std::io::sink(), &mut progress, &mut |range| {
        lost.add(range)
    });
    drop(progress);
    let bytes = lost.end()?;
    read?;
    verdict(&image, (bytes, size), unverified, quiet)
}

/// How long a server may take for one answer, on a disk that hardly responds.
const STRETCH: Duration = Duration::from_secs(600);

fn open(args: &CheckArgs, name: &Name, status: &Status, quiet: bool) -> Result<()> {
    if args.volume.trust.is_asked() {
        let what = format!("{name}: is open, and its header was looked at then");
        return Err(Error::usage(what).with_remedy("these options with `underseal open`"));
    }
    let mut progress = Progress::new("checking", Some(status.size), quiet);
    let mut lost = Lost::new(tell);
    let (mut at, mut size, mut unverified) = (0, status.size, 0);
    let mut stretch = || loop {
        let Checked { to, size: now, lost: runs, unverified: of_these } =
            match ask(name, &Request::Check { from: at }, None, STRETCH)? {
                Reply::Checked(checked) => checked,
                Reply::Refused(refusal) => return Err(refused(name, refusal)),
                _ => {
                    return Err(Error::new(
                        Exit::Failed,
                        format!("{name}: its server does not say what it read"),
                    ));
                }
            };
        runs.into_iter().filter(|(start, end)| start < end).for_each(|(start, end)| lost.add(start..end));
        progress.advance(to.saturating_sub(at));
        size = now;
        // Tags are made meanwhile: the count at the beginning includes all bytes that were not
        // compared.
        unverified = unverified.max(of_these);
        if to >= now {
            return Ok(());
        }
        if to <= at {
            return Err(Error::new(Exit::Failed, format!("{name}: its server stopped reading at byte {at}")));
        }
        at = to;
    };
    let read = stretch();
    drop(progress);
    let bytes = lost.end()?;
    read?;
    verdict(name, (bytes, size), unverified, quiet)
}

fn tell(run: &Range<u64>) -> Result<()> {
    print(&format!("bytes {} to {}: not as written\n", run.start, run.end))
}

/// Prints the result: `bytes` of `size` cannot be read, and `unverified` could not be compared.
fn verdict(what: &dyn Display, (bytes, size): (u64, u64), unverified: u64, quiet: bool) -> Result<()> {
    let uncompared = format!("{unverified} bytes were not compared: their checksums are still being made");
    match bytes {
        0 if quiet => Ok(()),
        0 if unverified > 0 => print(&format!("{what}: {uncompared}; all others are as they were written\n")),
        0 => print(&format!("{what}: every sector is as it was written\n")),
        bytes => {
            let mut context = format!("{what}: {bytes} bytes of {size} are not as they were written");
            if unverified > 0 {
                context += &format!("; {uncompared}");
            }
            Err(Error::new(Exit::Failed, context)
                .with_remedy("a backup; what is written anew can be read again"))
        }
    }
}

/// The ranges that cannot be read, in order; each is reported when it ends.
pub(super) struct Lost<T> {
    run: Option<Range<u64>>,
    bytes: u64,
    tell: T,
    told: Result<()>,
}

impl<T: FnMut(&Range<u64>) -> Result<()>> Lost<T> {
    pub(super) fn new(tell: T) -> Self {
        Self { run: None, bytes: 0, tell, told: Ok(()) }
    }

    /// Adds a range behind the earlier ones.
    pub(super) fn add(&mut self, range: Range<u64>) {
        self.bytes += range.end - range.start;
        match &mut self.run {
            Some(run) if run.end == range.start => run.end = range.end,
            _ => {
                let before = self.run.replace(range);
                self.tell(before);
            }
        }
    }

    fn tell(&mut self, run: Option<Range<u64>>) {
        if let (Some(run), Ok(())) = (run, &self.told) {
            self.told = (self.tell)(&run);
        }
    }

    /// Reports the last range, and returns the number of lost bytes. Fails when reporting failed.
    pub(super) fn end(mut self) -> Result<u64> {
        let last = self.run.take();
        self.tell(last);
        self.told.map(|()| self.bytes)
    }
}

const EXAMPLES: &str = "\
Examples:
  underseal check disk.img
  underseal check work                      a volume that is open, by its name
  underseal check disk.img --passphrase-file pass.txt > damaged.txt";
