//! The end of every failure: the failure, its remedy, an exit status.

use std::error::Error;
use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use underseal_error::with_causes;
use underseal_lab::ErrorKind;

/// The result of functions whose failure ends the program.
pub(crate) type Result<T> = std::result::Result<T, ProgramFailure>;

/// The exit status after a refused argument.
const USAGE: u8 = 2;

/// The reason why the program ends early.
#[derive(Debug)]
pub(crate) struct ProgramFailure {
    what: String,
    remedy: Option<&'static str>,
    status: u8,
}

impl ProgramFailure {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: None, status: 1 }
    }

    /// Returns the failure of a measurement that a signal ended. The exit status is a shell's for
    /// the signal.
    pub(crate) fn interrupted(signal: usize) -> Self {
        let status = u8::try_from(128 + signal).unwrap_or(u8::MAX);
        Self { status, ..Self::new("interrupted: the rows that were finished are shown") }
    }

    /// Returns the failure of a system call on a file.
    pub(crate) fn io(path: &Path, doing: &str, cause: &io::Error) -> Self {
        Self::new(format!("{}: {doing}", path.display())).because(cause)
    }

    /// Adds a cause and all of its causes.
    pub(crate) fn because(mut self, cause: &dyn Error) -> Self {
        self.what += &format!(": {}", with_causes(cause));
        self
    }

    pub(crate) fn with_remedy(mut self, remedy: &'static str) -> Self {
        self.remedy = Some(remedy);
        self
    }

    /// Adds the place in front.
    pub(crate) fn within(mut self, place: impl Display) -> Self {
        self.what = format!("{place}: {}", self.what);
        self
    }

    /// Prints the failure and returns the exit status.
    pub(crate) fn report(&self) -> ExitCode {
        let remedy = self.remedy.map_or_else(String::new, |remedy| format!("\ntry: {remedy}"));
        // A closed stderr leaves no place for the message.
        let _ = writeln!(io::stderr().lock(), "underseal-lab: {}{remedy}", self.what);
        ExitCode::from(self.status)
    }
}

/// The failure of an experiment, with a remedy for known kinds.
pub(crate) fn of_experiment(error: underseal_lab::Error) -> ProgramFailure {
    let kind = error.kind();
    let this = ProgramFailure::from(error);
    match kind {
        ErrorKind::Unknown => ProgramFailure { status: USAGE, ..this.with_remedy("`underseal-lab list`") },
        ErrorKind::BadResult => this.with_remedy("`underseal-lab run` measures it again"),
        _ => this,
    }
}

impl<E: Error> From<E> for ProgramFailure {
    fn from(error: E) -> Self {
        Self::new(with_causes(&error).to_string())
    }
}
