//! `underseal check`.

use std::ops::Range;
use std::sync::Arc;

use underseal_cipher::IntegrityKind;
use underseal_datapath::Mapping;
use underseal_volume::{Segment, Stored};

use crate::cli::CheckArgs;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::print;
use crate::progress::Progress;
use crate::transfer;
use crate::volume::{self, Access, Opened};

/// Reads all of a volume, and lists what is not as it was written.
pub(super) fn run(args: &CheckArgs, quiet: bool) -> Result<()> {
    let access = Access { read_only: true, allow_discards: false };
    let Opened { mapping, .. } = volume::open(&args.volume, access)?;
    let mapping = Arc::new(mapping);
    let image = args.volume.image.display();
    if !is_authenticated(&mapping) {
        let context = format!("{image}: its sectors are not authenticated: whatever is there reads as data");
        return Err(Error::new(Exit::Unsupported, context));
    }
    let size = mapping.size();
    let mut progress = Progress::new("checking", Some(size), quiet);
    let mut lost = Lost::new(|run| print(&format!("bytes {} to {}: not as written\n", run.start, run.end)));
    let read = transfer::salvage(&mapping, 0..size, &mut std::io::sink(), &mut progress, &mut |range| {
        lost.add(range)
    });
    drop(progress);
    let bytes = lost.end()?;
    read?;
    match bytes {
        0 if quiet => Ok(()),
        0 => print(&format!("{image}: every sector is as it was written\n")),
        bytes => {
            let context = format!("{image}: {bytes} bytes of {size} are not as they were written");
            Err(Error::new(Exit::Failed, context)
                .with_remedy("a backup; what is written anew can be read again"))
        }
    }
}

/// Whether every sector that is stored has a tag. Stored IVs alone are none.
fn is_authenticated(mapping: &Mapping) -> bool {
    let aead = |stored: &Stored| {
        let integrity = stored.recipe.as_ref().and_then(|recipe| recipe.integrity);
        integrity.is_some_and(|integrity| integrity.kind == IntegrityKind::Aead)
    };
    mapping.volume().is_some_and(|volume| volume.segments().iter().filter_map(Segment::as_stored).all(aead))
}

/// What could not be read, in order: runs are told as they end.
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

    /// One more, behind those before.
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

    /// Tells the last run. How many bytes are lost.
    ///
    /// # Errors
    /// That of telling.
    pub(super) fn end(mut self) -> Result<u64> {
        let last = self.run.take();
        self.tell(last);
        self.told.map(|()| self.bytes)
    }
}
