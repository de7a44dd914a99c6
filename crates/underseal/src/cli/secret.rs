//! The sources of passphrases: of the present one, and of a new one.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::size;

/// Passphrases and keys are never arguments and never in the environment: both can be read by
/// others.
#[derive(Debug, Args)]
#[command(next_help_heading = "Passphrase (asked on the terminal unless one of these is given)")]
pub(crate) struct SecretArgs {
    /// The first line of this file, without its newline
    #[arg(long, value_name = "FILE", group = "secret")]
    passphrase_file: Option<PathBuf>,
    /// The first line from this open descriptor (0 is stdin); nothing after its newline is read
    #[arg(long, value_name = "N", group = "secret")]
    passphrase_fd: Option<u32>,
    /// All bytes of this file, newlines too ("-" is stdin). TrueCrypt and VeraCrypt: a key file or
    /// a folder of them, beside the passphrase; may be repeated. BitLocker: a startup key.
    /// loop-AES: its keys
    #[arg(long, value_name = "FILE", conflicts_with = "passphrase_command")]
    key_file: Vec<PathBuf>,
    /// Skip BYTES bytes of the key file
    #[arg(long, value_name = "BYTES", value_parser = size::parse, requires = "key_file")]
    keyfile_offset: Option<u64>,
    /// Use BYTES bytes of the key file
    #[arg(long, value_name = "BYTES", value_parser = size::parse, requires = "key_file")]
    keyfile_size: Option<u64>,
    /// The output of this program, without one newline at its end. It is run without a shell;
    /// arguments are separated by spaces
    #[arg(long, value_name = "PROGRAM ARGS", group = "secret")]
    passphrase_command: Option<String>,
}

/// The sources of a new passphrase. If both come from one descriptor, the new one is the line after
/// the present one.
#[derive(Debug, Args)]
#[command(next_help_heading = "New passphrase (asked on the terminal, twice, unless one of these is given)")]
pub(crate) struct NewSecretArgs {
    /// The first line of this file, without its newline
    #[arg(long, value_name = "FILE", group = "new_secret")]
    new_passphrase_file: Option<PathBuf>,
    /// The first line from this open descriptor (0 is stdin); nothing after its newline is read
    #[arg(long, value_name = "N", group = "new_secret")]
    new_passphrase_fd: Option<u32>,
    /// All bytes of this file, newlines too ("-" is stdin). VeraCrypt: a key file or a folder of
    /// them, beside the passphrase; may be repeated
    #[arg(long, value_name = "FILE")]
    new_key_file: Vec<PathBuf>,
    /// Skip BYTES bytes of the new key file
    #[arg(long, value_name = "BYTES", value_parser = size::parse, requires = "new_key_file")]
    new_keyfile_offset: Option<u64>,
    /// Use BYTES bytes of the new key file
    #[arg(long, value_name = "BYTES", value_parser = size::parse, requires = "new_key_file")]
    new_keyfile_size: Option<u64>,
}

/// The source of one secret.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SecretSource<'a> {
    /// The first line of a file.
    File(&'a Path),
    /// The first line from a descriptor.
    Descriptor(u32),
    /// The bytes of a file: how many are skipped, and how many are used.
    KeyFile(&'a Path, u64, Option<u64>),
    /// The output of a program.
    Command(&'a str),
    /// More than one source where only one is possible.
    TooMany,
    /// The terminal.
    Asked,
}

impl SecretArgs {
    pub(crate) fn source(&self) -> SecretSource<'_> {
        if let Some(command) = &self.passphrase_command {
            return SecretSource::Command(command);
        }
        let Self { passphrase_file: file, passphrase_fd: fd, key_file, keyfile_offset, keyfile_size, .. } =
            self;
        let one = if file.is_some() || fd.is_some() { 0 } else { 1 };
        if key_file.len() > one {
            return SecretSource::TooMany;
        }
        let key_file = key_file.first().map(PathBuf::as_path);
        source(file.as_deref(), *fd, key_file, *keyfile_offset, *keyfile_size)
    }

    /// Returns the source of the passphrase, which may be combined with key files.
    pub(crate) fn passphrase(&self) -> SecretSource<'_> {
        match &self.passphrase_command {
            Some(command) => SecretSource::Command(command),
            None => source(self.passphrase_file.as_deref(), self.passphrase_fd, None, None, None),
        }
    }

    /// Returns the key files, in their order.
    pub(crate) fn key_files(&self) -> &[PathBuf] {
        &self.key_file
    }

    /// Returns the paths of the files with secrets.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        self.passphrase_file.iter().chain(&self.key_file).map(PathBuf::as_path)
    }
}

impl NewSecretArgs {
    pub(crate) fn source(&self) -> SecretSource<'_> {
        let Self { new_passphrase_file: file, new_passphrase_fd: fd, new_key_file: key_file, .. } = self;
        let one = if file.is_some() || fd.is_some() { 0 } else { 1 };
        if key_file.len() > one {
            return SecretSource::TooMany;
        }
        let key_file = key_file.first().map(PathBuf::as_path);
        source(file.as_deref(), *fd, key_file, self.new_keyfile_offset, self.new_keyfile_size)
    }

    /// Returns the source of the passphrase, which may be combined with key files.
    pub(crate) fn passphrase(&self) -> SecretSource<'_> {
        source(self.new_passphrase_file.as_deref(), self.new_passphrase_fd, None, None, None)
    }

    /// Returns the key files, in their order.
    pub(crate) fn key_files(&self) -> &[PathBuf] {
        &self.new_key_file
    }
}

/// Chooses the source; clap ensures that at most one is given.
fn source<'a>(
    file: Option<&'a Path>,
    descriptor: Option<u32>,
    key_file: Option<&'a Path>,
    offset: Option<u64>,
    size: Option<u64>,
) -> SecretSource<'a> {
    match (file, descriptor, key_file) {
        (Some(file), ..) => SecretSource::File(file),
        (_, Some(number), _) => SecretSource::Descriptor(number),
        (.., Some(key_file)) => SecretSource::KeyFile(key_file, offset.unwrap_or(0), size),
        _ => SecretSource::Asked,
    }
}
