//! A command of the persona `underseal`, built word by word.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::Path;

use super::args::Args;
use super::failure::{Failure, Result};
use crate::cli::{Cli, SecretSource};
use crate::commands;

/// The words of a command.
pub(super) struct Call(Vec<OsString>);

impl Call {
    /// A command without messages of its own.
    pub(super) fn new(words: &[&str]) -> Self {
        Self(["underseal", "--quiet"].iter().chain(words).map(OsString::from).collect())
    }

    /// Adds an argument, which may begin with a dash.
    pub(super) fn word(mut self, word: impl Into<OsString>) -> Self {
        let word = word.into();
        // A word that begins with a dash is a file in this folder.
        let dashed = word.to_string_lossy().starts_with('-');
        self.0.push(if dashed { OsString::from_iter(["./".into(), word]) } else { word });
        self
    }

    /// Adds an option with a value, if the value is given.
    pub(super) fn option(mut self, name: &str, value: Option<impl Into<OsString>>) -> Self {
        if let Some(value) = value {
            self.0.push(OsString::from_iter([OsString::from(format!("--{name}=")), value.into()]));
        }
        self
    }

    /// Adds an option with a number.
    pub(super) fn number(self, name: &str, value: Option<impl ToString>) -> Self {
        self.option(name, value.map(|value| value.to_string()))
    }

    /// Adds an option without a value, if it is set.
    pub(super) fn flag(mut self, name: &str, is_set: bool) -> Self {
        if is_set {
            self.0.push(format!("--{name}").into());
        }
        self
    }

    /// Adds the source of the present passphrase: the key file; else a line of stdin; else the
    /// terminal.
    pub(super) fn secret(self, args: &Args) -> Self {
        match args.key_file.first() {
            Some(path) => self.key_file(path, args),
            None => self.number("passphrase-fd", from_stdin()),
        }
    }

    /// Adds a key file, and which of its bytes are used.
    pub(super) fn key_file(self, path: &Path, args: &Args) -> Self {
        self.option("key-file", Some(path))
            .number("keyfile-offset", args.keyfile_offset)
            .number("keyfile-size", args.keyfile_size)
    }

    /// Adds the options for tokens.
    pub(super) fn tokens(self, args: &Args) -> Self {
        self.number("token-id", args.token_id)
            .option("token-type", args.token_type.as_ref())
            .flag("token-only", args.token_only)
            .flag("tokens-first", args.asks_tokens())
    }

    /// Adds the options for the key derivation.
    pub(super) fn cost(self, args: &Args) -> Self {
        self.option("pbkdf", args.pbkdf.as_ref())
            .number("iter-time", args.iter_time.filter(|_| args.pbkdf_force_iterations.is_none()))
            .number("pbkdf-force-iterations", args.pbkdf_force_iterations)
            .number("pbkdf-memory", args.pbkdf_memory)
            .number("pbkdf-parallel", args.pbkdf_parallel)
            .option("hash", args.hash.as_ref())
    }

    /// Runs the command.
    pub(super) fn run(self) -> Result<()> {
        Ok(commands::run(self.parsed()?)?)
    }

    /// Parses the command.
    pub(super) fn parsed(self) -> Result<Cli> {
        Cli::of_words(self.0).map_err(|e| Failure::wrong(&complaint(&e)))
    }
}

/// Returns the first line of an argument error, with the arguments that clap names in the indented
/// lines below it.
fn complaint(error: &clap::Error) -> String {
    let text = error.to_string();
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default().trim_start_matches("error: ");
    let named = lines.map_while(|line| line.strip_prefix("  ")).map(str::trim);
    [first].into_iter().chain(named).collect::<Vec<_>>().join(" ")
}

impl Args {
    /// Returns true when tokens are tried before a line of stdin is read: without a key file.
    pub(super) fn asks_tokens(&self) -> bool {
        self.key_file.is_empty() && self.volume_key_file.is_none() && !self.disable_external_tokens
    }
}

/// Returns the source of the passphrase, for actions without a command.
pub(super) fn source(args: &Args) -> SecretSource<'_> {
    match args.key_file.first() {
        Some(file) => SecretSource::KeyFile(file, args.keyfile_offset.unwrap_or(0), args.keyfile_size),
        None => from_stdin().map_or(SecretSource::Asked, SecretSource::Descriptor),
    }
}

/// Returns descriptor 0 if stdin is no terminal: passphrases are its lines.
pub(super) fn from_stdin() -> Option<u32> {
    if std::io::stdin().is_terminal() { None } else { Some(0) }
}
