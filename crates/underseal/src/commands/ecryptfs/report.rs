//! Reports of long work on a tree: a bar, a line for each entry that failed, and the result.

use std::io::{Write, stderr};
use std::path::Path;

use serde::Serialize;
use underseal_ecryptfs as ecryptfs;
use underseal_ecryptfs::tools::{ProgressWatch, Summary};

use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::print_json;
use crate::progress::Progress;
use crate::size;

/// The report of progress and failures.
pub(super) struct TreeReport {
    progress: Progress,
    shows: bool,
    /// The first failure, for the exit status.
    first: Option<Exit>,
    /// True when all failures are of one kind.
    alike: bool,
    failures: u64,
}

impl TreeReport {
    pub(super) fn new(verb: &'static str, quiet: bool) -> Self {
        let progress = Progress::new(verb, None, quiet);
        Self { progress, shows: true, first: None, alike: true, failures: 0 }
    }

    /// A report that prints nothing.
    pub(super) fn silent() -> Self {
        Self { shows: false, ..Self::new("", true) }
    }

    /// Prints the result. Fails with `Partial` when some entries failed; when all failed for one
    /// reason, with that.
    pub(super) fn finish(self, summary: &Summary, json: bool, quiet: bool) -> Result<()> {
        let (failures, first, alike) = (self.failures, self.first, self.alike);
        // The bar must be removed before the result is printed.
        drop(self);
        if json {
            print_json(&Done::of(summary))?;
        } else if !quiet {
            log::info!("{}", Done::of(summary).to_text());
        }
        let Some(first) = first else { return Ok(()) };
        let nothing_done = summary.files + summary.unchanged == 0;
        let exit = if alike && nothing_done { first } else { Exit::Partial };
        let entries =
            if failures == 1 { "one entry failed".into() } else { format!("{failures} entries failed") };
        let remedy = match exit {
            Exit::NoKey => "`underseal ecryptfs info` shows which keys the tree asks for",
            _ => "retry the entries that failed, which the lines above name",
        };
        Err(Error::new(exit, entries).with_remedy(remedy))
    }
}

impl TreeReport {
    fn line(&mut self, text: &str) {
        if self.shows {
            // Text from a lower name must stay on its line.
            let line = text.replace(|c: char| c.is_control(), "?");
            // A closed stderr is ignored.
            self.progress.around(|| drop(writeln!(stderr().lock(), "underseal: {line}")));
        }
    }
}

impl ProgressWatch for TreeReport {
    fn advance(&mut self, bytes: u64) {
        self.progress.advance(bytes);
    }

    fn failed(&mut self, lower: &Path, error: ecryptfs::Error) {
        let named = error.to_string().contains(&*lower.to_string_lossy());
        let error: Error = if named { error.into() } else { error.in_file(lower).into() };
        self.failures += 1;
        let first = *self.first.get_or_insert(error.exit());
        self.alike &= first == error.exit();
        self.line(&error.what());
    }

    fn warned(&mut self, path: &Path, what: &str) {
        self.line(&format!("{}: {what}", path.display()));
    }
}

/// A summary for programs.
#[derive(Serialize)]
struct Done {
    files: u64,
    folders: u64,
    others: u64,
    bytes: u64,
    unchanged: u64,
    failed: u64,
}

impl Done {
    fn of(summary: &Summary) -> Self {
        let Summary { files, folders, others, bytes, unchanged, failed } = *summary;
        Self { files, folders, others, bytes, unchanged, failed }
    }

    fn to_text(&self) -> String {
        let mut text = format!("{} files, {} folders, {} others", self.files, self.folders, self.others);
        if self.bytes > 0 {
            text += &format!(", {}", size::show(self.bytes));
        }
        if self.unchanged > 0 {
            text += &format!("; {} as they should be", self.unchanged);
        }
        text
    }
}
