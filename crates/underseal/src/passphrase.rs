//! Passphrases and keys, read from the user's source straight into locked memory.

mod source;
mod terminal;

use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use underseal_cipher::Key;

use crate::cli::{NewSecretArgs, SecretSource};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::persona::persona;

pub(crate) use source::{
    first_line_if_any, first_line_of_descriptor, first_line_of_file, key_file as secret_file,
    limited_line_of_descriptor,
};
pub(crate) use terminal::{ask as ask_hidden, confirm, is_there as terminal_is_there, tell};

/// Reads a volume's key from a file: its first `bits` bits, if given; of a device, which never
/// ends, `len` bytes. Fails with `Usage` when it is empty or too large, or the bits are no whole
/// number of bytes; with `Failed`.
pub(crate) fn volume_key_file(path: &Path, bits: Option<usize>, len: usize) -> Result<Key> {
    if bits.is_some_and(|bits| !bits.is_multiple_of(8)) {
        return Err(Error::usage("the key's bits are no whole number of bytes"));
    }
    let endless = std::fs::metadata(path).is_ok_and(|about| about.file_type().is_char_device());
    let len = bits.map(|bits| bits / 8).or(endless.then_some(len));
    secret_file(path, 0, len.map(|len| len as u64))
}

fn too_many() -> Error {
    let what = "a passphrase and key files together, or several key files, are for --type tcrypt";
    Error::usage(what).with_remedy("one of --passphrase-file, --passphrase-fd, --key-file")
}

/// How long a program may take to return a passphrase: a person may have to answer it.
const COMMAND_LIMIT: Duration = Duration::from_secs(600);

/// The source of a passphrase.
#[derive(Debug)]
pub(crate) struct Secret<'a> {
    source: SecretSource<'a>,
    /// The volume that it is for, in questions and errors.
    image: &'a Path,
    /// True for a new passphrase beside or instead of the present one.
    second: bool,
}

impl<'a> Secret<'a> {
    pub(crate) fn new(source: SecretSource<'a>, image: &'a Path) -> Self {
        Self { source, image, second: false }
    }

    /// The new secret of a volume that has one already: to be read after that one.
    pub(crate) fn another(args: &'a NewSecretArgs, image: &'a Path) -> Self {
        Self::another_from(args.source(), image)
    }

    /// The new secret, from this source.
    pub(crate) fn another_from(source: SecretSource<'a>, image: &'a Path) -> Self {
        Self { source, image, second: true }
    }

    /// Returns true when a terminal is asked, which permits another attempt.
    pub(crate) fn is_asked(&self) -> bool {
        matches!(self.source, SecretSource::Asked)
    }

    /// Returns true for a key file's bytes, which plain volumes use unchanged. cryptsetup hashes
    /// those of stdin.
    pub(crate) fn is_raw_key(&self) -> bool {
        matches!(self.source, SecretSource::KeyFile(path, ..) if path.as_os_str() != "-")
    }

    /// Reads the passphrase of an existing volume. Fails with `NoKey` when nothing is typed; with
    /// `Usage` without a terminal, or when a file is empty or too large; with `Failed`.
    pub(crate) fn get(&self) -> Result<Key> {
        match self.source {
            SecretSource::File(path) => source::first_line_of_file(path),
            SecretSource::Descriptor(number) => source::first_line_of_descriptor(number),
            // cryptsetup makes keyslots for the key that an empty file has; new ones are refused.
            SecretSource::KeyFile(path, offset, size) if persona().takes_nothing => {
                source::key_file_or_nothing(path, offset, size)
            }
            SecretSource::KeyFile(path, offset, size) => source::key_file(path, offset, size),
            SecretSource::Command(command) => {
                Ok(underseal_tokens::passphrase_of_command(command, COMMAND_LIMIT)?)
            }
            SecretSource::Asked => self.ask(),
            SecretSource::TooMany => Err(too_many()),
        }
    }

    /// Refuses several secrets where one is expected, before any file is opened. Fails with
    /// `Usage`.
    pub(crate) fn check(&self) -> Result<()> {
        if matches!(self.source, SecretSource::TooMany) { Err(too_many()) } else { Ok(()) }
    }

    fn ask(&self) -> Result<Key> {
        let question =
            if self.second { persona().new_question(self.image) } else { persona().question(self.image) };
        let asked = terminal::ask(&question);
        asked.map_err(|error| match error.exit() {
            Exit::Usage if self.second => {
                error.with_remedy("--new-passphrase-file FILE, --new-passphrase-fd 0 or --new-key-file FILE")
            }
            _ => error,
        })
    }

    /// Reads a new passphrase: typed twice, and not empty. Fails as [`Secret::get`]; with the
    /// persona's status when the two differ.
    pub(crate) fn get_new(&self) -> Result<Key> {
        let secret = self.get()?;
        if secret.is_empty() {
            return Err(Error::usage(format!(
                "{}: an empty passphrase protects nothing",
                self.image.display()
            ))
            .with_remedy("a few random words"));
        }
        if let (true, Some(again)) = (self.is_asked(), persona().again)
            && secret != terminal::ask(again)?
        {
            let error = Error::new(persona().different, "the two passphrases differ");
            return Err(error.with_remedy("retype both slowly"));
        }
        Ok(secret)
    }

    /// Runs `open` with the passphrase; a wrong one can be retyped as often as the persona permits.
    /// Fails with the errors of reading it, and of `open`.
    pub(crate) fn try_with<T>(&self, open: impl Fn(&Key) -> Result<T>) -> Result<T> {
        let mut tries = if self.is_asked() { persona().tries } else { 1 };
        loop {
            tries -= 1;
            match open(&self.get()?) {
                Err(error) if error.exit() == Exit::NoKey && tries > 0 => {
                    terminal::tell(persona().wrong);
                }
                opened => return opened,
            }
        }
    }
}
