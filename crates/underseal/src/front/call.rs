//! A command of underseal's own, word by word.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::Path;

use clap::Parser;

use super::args::Args;
use super::failure::{Failure, Result};
use crate::cli::{Cli, SecretSource};
use crate::commands;

/// The words of a command.
pub(super) struct Call(Vec<OsString>);

impl Call {
    /// A command that says nothing by itself.
    pub(super) fn new(words: &[&str]) -> Self {
        Self(["underseal", "--quiet"].iter().chain(words).map(OsString::from).collect())
    }

    /// An argument; it may begin with a dash.
    pub(super) fn word(mut self, word: impl Into<OsString>) -> Self {
        let word = word.into();
        // What looks like an option is a file in this folder.
        let dashed = word.to_string_lossy().starts_with('-');
        self.0.push(if dashed { OsString::from_iter(["./".into(), word]) } else { word });
        self
    }

    /// An option that has a value, if there is one.
    pub(super) fn option(mut self, name: &str, value: Option<impl Into<OsString>>) -> Self {
        if let Some(value) = value {
            self.0.push(OsString::from_iter([OsString::from(format!("--{name}=")), value.into()]));
        }
        self
    }

    /// An option that has a number.
    pub(super) fn number(self, name: &str, value: Option<impl ToString>) -> Self {
        self.option(name, value.map(|value| value.to_string()))
    }

    /// An option that is there or not.
    pub(super) fn flag(mut self, name: &str, is_set: bool) -> Self {
        if is_set {
            self.0.push(format!("--{name}").into());
        }
        self
    }

    /// Where the passphrase that exists comes from: the key file; else a line of stdin; else
    /// somebody at a terminal.
    pub(super) fn secret(self, args: &Args) -> Self {
        match args.key_file.first() {
            Some(path) => self.key_file(path, args),
            None => self.number("passphrase-fd", from_stdin()),
        }
    }

    /// A key file, and which of its bytes.
    pub(super) fn key_file(self, path: &Path, args: &Args) -> Self {
        self.option("key-file", Some(path))
            .number("keyfile-offset", args.keyfile_offset)
            .number("keyfile-size", args.keyfile_size)
    }

    /// Which tokens are asked.
    pub(super) fn tokens(self, args: &Args) -> Self {
        self.number("token-id", args.token_id)
            .option("token-type", args.token_type.as_ref())
            .flag("token-only", args.token_only)
            .flag("tokens-first", args.asks_tokens())
    }

    /// How a passphrase becomes a key.
    pub(super) fn cost(self, args: &Args) -> Self {
        self.option("pbkdf", args.pbkdf.as_ref())
            .number("iter-time", args.iter_time.filter(|_| args.pbkdf_force_iterations.is_none()))
            .number("pbkdf-force-iterations", args.pbkdf_force_iterations)
            .number("pbkdf-memory", args.pbkdf_memory)
            .number("pbkdf-parallel", args.pbkdf_parallel)
            .option("hash", args.hash.as_ref())
    }

    /// Runs it.
    pub(super) fn run(self) -> Result<()> {
        Ok(commands::run(self.parsed()?)?)
    }

    /// What it asks for.
    pub(super) fn parsed(self) -> Result<Cli> {
        Cli::try_parse_from(self.0).map_err(|e| Failure::wrong(&complaint(&e)))
    }
}

/// The first line of an error of arguments, with the arguments that clap names in the indented
/// lines below it.
fn complaint(error: &clap::Error) -> String {
    let text = error.to_string();
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default().trim_start_matches("error: ");
    let named = lines.map_while(|line| line.strip_prefix("  ")).map(str::trim);
    [first].into_iter().chain(named).collect::<Vec<_>>().join(" ")
}

impl Args {
    /// Whether tokens are asked before a line of stdin is taken: only a key file keeps them out.
    pub(super) fn asks_tokens(&self) -> bool {
        self.key_file.is_empty() && self.volume_key_file.is_none() && !self.disable_external_tokens
    }
}

/// The same for what is done without a command.
pub(super) fn source(args: &Args) -> SecretSource<'_> {
    match args.key_file.first() {
        Some(file) => SecretSource::KeyFile(file, args.keyfile_offset.unwrap_or(0), args.keyfile_size),
        None => from_stdin().map_or(SecretSource::Asked, SecretSource::Descriptor),
    }
}

/// Descriptor 0, where nobody sits at a terminal: passphrases are its lines.
pub(super) fn from_stdin() -> Option<u32> {
    if std::io::stdin().is_terminal() { None } else { Some(0) }
}
