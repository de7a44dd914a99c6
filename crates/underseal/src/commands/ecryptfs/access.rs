//! The keys and options of commands that work without a mount.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use underseal_cipher::Key;
use underseal_ecryptfs::options::{EcryptfsOptions, PassphraseSource, passphrase_in_line};
use underseal_ecryptfs::tools::{Survey, TreeKeys};
use underseal_ecryptfs::{AuthToken, Cipher, ErrorKind, NameCipher, Signature, kernel_keyring, wrapped};

use super::report::TreeReport;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::passphrase::{ask_hidden, first_line_of_descriptor, first_line_of_file};

/// The keys of a tree.
#[derive(Debug, Args)]
#[command(next_help_heading = KEYS)]
pub(crate) struct TreeKeyArgs {
    /// Mount options by the kernel's names, separated by commas; what headers tell may be left out
    #[arg(short, long, value_name = "OPTIONS")]
    pub(crate) options: Vec<String>,
    /// A passphrase is the first line of this file; may be repeated, for several keys
    #[arg(long, value_name = "FILE")]
    pub(crate) passphrase_file: Vec<PathBuf>,
    /// A passphrase is the first line from this open descriptor (0 is stdin); may be repeated
    #[arg(long, value_name = "N")]
    pub(crate) passphrase_fd: Vec<u32>,
    /// The passphrase opens this file, as ecryptfs-utils keeps it in ~/.ecryptfs/wrapped-passphrase
    #[arg(long, value_name = "FILE")]
    pub(crate) wrapped: Option<PathBuf>,
    /// Take the keys that the options name, or all that headers name, from the kernel's keyring
    #[arg(long)]
    pub(crate) keyring: bool,
    /// Names and symlink targets are plain: those that look like encrypted ones are taken as they
    /// are, as a mount without encrypted names does
    #[arg(long)]
    pub(crate) plain_names: bool,
}

impl TreeKeyArgs {
    /// Refuses `--plain-names` where it has no meaning.
    ///
    /// Fails with `Usage`.
    pub(super) fn must_decode_names(&self) -> Result<()> {
        if !self.plain_names {
            return Ok(());
        }
        Err(Error::usage("names that are plain and encrypted at the same time")
            .with_remedy("without --plain-names"))
    }
}

/// A new passphrase.
#[derive(Debug, Args)]
#[command(next_help_heading = "New passphrase (asked on the terminal unless one of these is given)")]
pub(crate) struct NewPassphraseArgs {
    /// The first line of this file
    #[arg(long, value_name = "FILE", group = "new")]
    pub(crate) new_passphrase_file: Option<PathBuf>,
    /// The first line from this open descriptor
    #[arg(long, value_name = "N", group = "new")]
    pub(crate) new_passphrase_fd: Option<u32>,
}

impl NewPassphraseArgs {
    /// Returns true when the new passphrase is not asked for.
    pub(crate) fn is_given(&self) -> bool {
        self.new_passphrase_file.is_some() || self.new_passphrase_fd.is_some()
    }
}

/// The handling of missing extents.
#[derive(Debug, Args)]
pub(crate) struct HolesArgs {
    /// Give zeros for extents that are missing (holes, or what a power cut left unwritten) instead
    /// of an error
    #[arg(long)]
    pub(crate) no_strict: bool,
}

/// The keys for a tree, and the options.
pub(super) struct Access {
    pub(super) keys: TreeKeys,
    pub(super) options: EcryptfsOptions,
    /// The keys of contents, in the order of the passphrases.
    contents: Vec<Arc<AuthToken>>,
}

impl Access {
    /// Parses the options and takes the keys. Fails with `Usage` for malformed options; with
    /// `NoKey` when a key that they name is missing.
    pub(super) fn new(args: &TreeKeyArgs, lower: &Path) -> Result<Self> {
        let options = EcryptfsOptions::parse(&args.options.join(","))?;
        let salt = options.passphrase.as_ref().map_or(AuthToken::DEFAULT_SALT, |option| option.salt);
        let mut access = Self {
            keys: TreeKeys::new(options.name_cipher_or(Cipher::DEFAULT)?),
            contents: Vec::new(),
            options,
        };
        if args.plain_names {
            if access.options.encrypts_names() {
                args.must_decode_names()?;
            }
            access.keys.set_plain_names();
        }
        if args.keyring {
            access.take_from_kernel(lower)?;
        }
        for passphrase in passphrases(args, &access.options, lower)? {
            let [contents, _names] = access.keys.add_passphrase(passphrase, salt)?;
            access.contents.push(contents);
        }
        for &signature in access.options.signatures.iter().chain(&access.options.name_signature) {
            access.find(signature)?;
        }
        Ok(access)
    }

    /// Takes the keys that the options name from the kernel's keyring; without a name, those of the
    /// tree.
    fn take_from_kernel(&mut self, lower: &Path) -> Result<()> {
        let mut wanted: Vec<Signature> = self.options.signatures.clone();
        wanted.extend(self.options.name_signature);
        if wanted.is_empty() {
            let survey = Survey::of(lower, &mut TreeReport::silent())?;
            wanted.extend(survey.signatures.keys().chain(survey.name_signatures.keys()));
        }
        for signature in wanted {
            match kernel_keyring::find(signature) {
                Ok(token) => self.keys.add(token),
                Err(e) if e.kind() == ErrorKind::NoKey => log::info!("{e}"),
                Err(e) => return Err(e.into()),
            }
        }
        if self.keys.ring().is_empty() {
            return Err(Error::new(Exit::NoKey, "the kernel's keyring has none of the keys")
                .with_remedy("see `keyctl show @u`, or give a passphrase instead of --keyring"));
        }
        Ok(())
    }

    fn find(&self, signature: Signature) -> Result<Arc<AuthToken>> {
        self.keys.ring().find(signature).cloned().ok_or_else(|| {
            let have: Vec<_> = self.keys.ring().iter().map(|token| token.signature().to_string()).collect();
            let what = format!("no key at hand is {signature}, but {}", have.join(", "));
            Error::new(Exit::NoKey, what)
                .with_remedy("the passphrase again; another salt with -o key=passphrase:passphrase_salt=HEX")
        })
    }

    /// Returns the keys of new files. Fails with `Usage` without any.
    pub(super) fn new_files(&self) -> Result<Vec<Arc<AuthToken>>> {
        if !self.options.signatures.is_empty() {
            return self.options.signatures.iter().map(|&signature| self.find(signature)).collect();
        }
        if self.contents.is_empty() {
            return Err(
                Error::usage("which key is to open the files?").with_remedy("-o ecryptfs_sig=SIGNATURE")
            );
        }
        Ok(self.contents.clone())
    }

    /// Returns the cipher of new names; `None` where they stay plain. Without a signature it uses
    /// the key of contents, as the mount helper does.
    pub(super) fn new_names(&self) -> Result<Option<NameCipher>> {
        if !self.options.encrypts_names() {
            return Ok(None);
        }
        let token = match self.options.name_signature {
            Some(signature) => Some(self.find(signature)?),
            None => self.new_files()?.into_iter().next(),
        };
        let cipher = self.options.name_cipher_or(Cipher::DEFAULT)?;
        Ok(token.map(|token| NameCipher::new(token, cipher)).transpose()?)
    }
}

/// Returns the passphrases of the options; asks for one if none was given.
fn passphrases(args: &TreeKeyArgs, options: &EcryptfsOptions, lower: &Path) -> Result<Vec<Key>> {
    let mut all = Vec::new();
    for path in &args.passphrase_file {
        all.push(first_line_of_file(path)?);
    }
    for &number in &args.passphrase_fd {
        all.push(first_line_of_descriptor(number)?);
    }
    let line = match options.passphrase.as_ref().and_then(|option| option.source.as_ref()) {
        Some(PassphraseSource::File(path)) => Some(first_line_of_file(path)?),
        Some(PassphraseSource::Descriptor(number)) => Some(first_line_of_descriptor(*number)?),
        None => None,
    };
    if let Some(line) = line {
        all.push(Key::new(passphrase_in_line(line.as_bytes()))?);
    }
    if all.is_empty() && !args.keyring {
        let of = args.wrapped.as_deref().unwrap_or(lower);
        all.push(ask_hidden(&format!("Passphrase for {}: ", of.display()))?);
    }
    let Some(file) = &args.wrapped else { return Ok(all) };
    let sealed = super::wrap::read(file)?;
    let unwrap = |key: &Key| wrapped::unwrap(&sealed, key.as_bytes()).map_err(|e| e.in_file(file).into());
    all.iter().map(unwrap).collect()
}

/// Reads a new passphrase from the source in the arguments, or has it typed twice. Fails with
/// `Usage` when the two differ.
pub(super) fn new_passphrase(args: &NewPassphraseArgs, question: &str) -> Result<Key> {
    if let Some(path) = &args.new_passphrase_file {
        return first_line_of_file(path);
    }
    if let Some(number) = args.new_passphrase_fd {
        return first_line_of_descriptor(number);
    }
    let typed = ask_hidden(question)?;
    if typed != ask_hidden("The same again: ")? {
        return Err(Error::usage("the two passphrases differ").with_remedy("retype both slowly"));
    }
    Ok(typed)
}

const KEYS: &str = "Keys (a passphrase is asked for on the terminal unless something is given)";
