//! The reader of a measurement: writes text row by row, or a JSON file that is whole at any time.

use std::fmt::Display;
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde::Serialize;
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use underseal_bench::Observer;

use crate::failure::{ProgramFailure, Result};
use crate::{print, versioned};

/// Shows the rows of a measurement as they are finished. Signals end the measurement, not the
/// program.
pub(super) struct RowReader<P> {
    progress: P,
    json: Option<PathBuf>,
    /// The text that was printed.
    printed: String,
    /// The last report, for stdout or for the end of the file.
    report: Option<Value>,
    /// The reason why rows could not be shown.
    failure: Option<ProgramFailure>,
    signal: Arc<AtomicUsize>,
}

/// A report's fields, and whether the rows are complete.
#[derive(Serialize)]
struct Rows<'a> {
    complete: bool,
    #[serde(flatten)]
    report: &'a Value,
}

impl<P: Fn(&str)> RowReader<P> {
    /// Handles SIGINT, SIGTERM and SIGHUP: the first is noted, and the second has its default
    /// effect.
    pub(super) fn new(json: Option<PathBuf>, progress: P) -> Result<Self> {
        let (signal, is_second) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        for number in [SIGINT, SIGTERM, SIGHUP] {
            let value = number.unsigned_abs() as usize;
            // The actions run in this order.
            flag::register_conditional_default(number, is_second.clone())
                .and_then(|_| flag::register(number, is_second.clone()))
                .and_then(|_| flag::register_usize(number, signal.clone(), value))
                .map_err(|e| ProgramFailure::new("signals cannot be handled").because(&e))?;
        }
        Ok(Self { progress, json, printed: String::new(), report: None, failure: None, signal })
    }

    fn is_json_on_stdout(&self) -> bool {
        self.json.as_deref() == Some(Path::new("-"))
    }

    /// Ends the rows, for a finished, failed or interrupted measurement.
    pub(super) fn finish(mut self, measured: Result<()>) -> Result<()> {
        let signal = self.signal.load(Ordering::Relaxed);
        let complete = measured.is_ok() && self.failure.is_none() && signal == 0;
        if let Some(failure) = self.failure.take().or(self.write(complete).err()) {
            return Err(failure);
        }
        if let Some(report) = self.report.as_ref().filter(|_| self.is_json_on_stdout()) {
            print(&versioned(&Rows { complete, report })?)?;
        }
        match signal {
            0 => measured,
            _ => Err(ProgramFailure::interrupted(signal)),
        }
    }

    /// Shows the new part of a report's text.
    fn print(&mut self, text: String) -> Result<()> {
        match text.strip_prefix(&self.printed) {
            Some(new) => print(new)?,
            None => print(&text)?,
        }
        self.printed = text;
        Ok(())
    }

    /// Replaces the file.
    fn write(&self, complete: bool) -> Result<()> {
        let (Some(path), Some(report)) = (&self.json, &self.report) else { return Ok(()) };
        if self.is_json_on_stdout() {
            return Ok(());
        }
        let text = versioned(&Rows { complete, report })?;
        let failed = |e| ProgramFailure::io(path, "cannot write", &e);
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut new = tempfile::Builder::new()
            .prefix(".underseal-")
            .permissions(Permissions::from_mode(0o644))
            .tempfile_in(folder.unwrap_or(Path::new(".")))
            .map_err(failed)?;
        new.write_all(text.as_bytes()).map_err(failed)?;
        new.persist(path).map(drop).map_err(|e| failed(e.error))
    }

    fn show(&mut self, so_far: &(impl Serialize + Display)) -> Result<()> {
        if !self.is_json_on_stdout() {
            self.print(so_far.to_string())?;
        }
        if self.json.is_some() {
            let report = serde_json::to_value(so_far);
            self.report = Some(
                report.map_err(|e| ProgramFailure::new("the report cannot be JSON-encoded").because(&e))?,
            );
        }
        self.write(false)
    }
}

impl<P: Fn(&str)> Observer for RowReader<P> {
    fn progress(&mut self, text: &str) {
        (self.progress)(text);
    }

    fn rows(&mut self, so_far: &(impl Serialize + Display)) {
        if self.failure.is_none() {
            self.failure = self.show(so_far).err();
        }
    }

    fn is_stopped(&self) -> bool {
        self.failure.is_some() || self.signal.load(Ordering::Relaxed) != 0
    }
}
