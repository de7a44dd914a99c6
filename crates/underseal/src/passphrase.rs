//! Passphrases and keys, from wherever the user keeps them straight into locked memory.

mod source;
mod terminal;

use std::path::Path;
use std::time::Duration;

use underseal_cipher::Key;

use crate::cli::SecretArgs;
use crate::error::{Error, Result};
use crate::exit::Exit;

pub(crate) use source::{first_line_of_descriptor, first_line_of_file, key_file as secret_file};
pub(crate) use terminal::{ask as ask_hidden, confirm, tell};

/// How long a program may take to find a passphrase: somebody may have to answer it.
const COMMAND_LIMIT: Duration = Duration::from_secs(600);

/// Where a passphrase comes from.
#[derive(Debug)]
pub(crate) struct Secret<'a> {
    args: &'a SecretArgs,
    /// The volume it is for, in questions and errors.
    image: &'a Path,
}

impl<'a> Secret<'a> {
    pub(crate) fn new(args: &'a SecretArgs, image: &'a Path) -> Self {
        Self { args, image }
    }

    /// Whether somebody at a terminal is asked, and can try again.
    pub(crate) fn is_asked(&self) -> bool {
        let SecretArgs { passphrase_file, passphrase_fd, key_file, passphrase_command, .. } = self.args;
        passphrase_file.is_none()
            && passphrase_fd.is_none()
            && key_file.is_none()
            && passphrase_command.is_none()
    }

    /// Whether it is a key file's bytes, which plain volumes use as they are. cryptsetup hashes those of stdin.
    pub(crate) fn is_raw_key(&self) -> bool {
        self.args.key_file.as_ref().is_some_and(|path| path.as_os_str() != "-")
    }

    /// The passphrase of a volume that exists.
    ///
    /// # Errors
    /// `NoKey` when nothing is typed; `Usage` when there is no terminal, or a file is empty or too large; `Failed`.
    pub(crate) fn get(&self) -> Result<Key> {
        let args = self.args;
        if let Some(path) = &args.passphrase_file {
            return source::first_line_of_file(path);
        }
        if let Some(number) = args.passphrase_fd {
            return source::first_line_of_descriptor(number);
        }
        if let Some(path) = &args.key_file {
            return source::key_file(path, args.keyfile_offset.unwrap_or(0), args.keyfile_size);
        }
        if let Some(command) = &args.passphrase_command {
            return Ok(underseal_tokens::passphrase_of_command(command, COMMAND_LIMIT)?);
        }
        terminal::ask(&format!("Passphrase for {}: ", self.image.display()))
    }

    /// A new volume's passphrase: typed twice, and not empty.
    ///
    /// # Errors
    /// As [`Secret::get`]; `Usage` when the two differ.
    pub(crate) fn get_new(&self) -> Result<Key> {
        let secret = self.get()?;
        if secret.is_empty() {
            return Err(Error::usage(format!(
                "{}: an empty passphrase protects nothing",
                self.image.display()
            ))
            .with_remedy("a few random words"));
        }
        if self.is_asked() && secret != terminal::ask("The same again: ")? {
            return Err(Error::usage("the two passphrases differ").with_remedy("again, typing slowly"));
        }
        Ok(secret)
    }

    /// Runs `open` with the passphrase; somebody who typed a wrong one may try three times.
    ///
    /// # Errors
    /// Those of getting it, and of `open`.
    pub(crate) fn try_with<T>(&self, open: impl Fn(&Key) -> Result<T>) -> Result<T> {
        let mut tries = if self.is_asked() { 3 } else { 1 };
        loop {
            tries -= 1;
            match open(&self.get()?) {
                Err(error) if error.exit() == Exit::NoKey && tries > 0 => {
                    terminal::tell("No keyslot opens with this passphrase.");
                }
                opened => return opened,
            }
        }
    }
}
