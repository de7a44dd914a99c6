//! LUKS2 tokens, and the passphrases that hardware, a server or Linux's keyring keeps for them.
//!
//! ```text
//!   token (JSON) --open(PIN)--> passphrase          enroll --> passphrase, token
//!        |
//!   luks2-keyring    the kernel's keyring, by system calls
//!   systemd-tpm2     tpm2/      TPM commands, through tpm2_send of tpm2-tools
//!   systemd-fido2    fido2      fido2-assert, fido2-cred of fido2-tools
//!   systemd-pkcs11   pkcs11     pkcs11-tool of OpenSC
//!   clevis           clevis     clevis: tang, sss, tpm2
//!   (no token)       gpg        gpg: key files of loop-AES
//!        |
//!   tool     a child with a separate environment; secrets go through pipes only
//! ```
//!
//! No library that talks to hardware is loaded into a process that holds keys. A header is not
//! authenticated: it can only make underseal run these tools, with its data on their stdin or in
//! bounded, checked arguments.

#![deny(unsafe_code)]

mod clevis;
mod error;
mod fido2;
mod gpg;
mod keyring;
mod member;
mod pkcs11;
mod tool;
mod tpm2;

use std::path::PathBuf;
use std::time::Duration;

use base64ct::{Base64, Encoding};
use serde_json::{Map, Value};
pub use underseal_cipher::Key;

pub use error::{Error, ErrorKind};
pub use keyring::read as read_keyring;
pub use tpm2::Tpm2Enrollment;

/// The result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;

/// A token's JSON.
pub type Token = Map<String, Value>;

/// The caller's facts about this machine, which the header does not know.
#[derive(Debug, Clone)]
pub struct Options {
    /// The TPM in the form of tpm2-tools (a TCTI): `device:/dev/tpmrm0`, `swtpm:path=PATH`.
    pub tpm2_device: Option<String>,
    /// The FIDO2 device. `None` tries each connected device.
    pub fido2_device: Option<PathBuf>,
    /// The PKCS#11 module. `None` stands for p11-kit's.
    pub pkcs11_module: Option<PathBuf>,
    /// The time limit of a tool, which may wait for a user's touch.
    pub limit: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { tpm2_device: None, fido2_device: None, pkcs11_module: None, limit: Duration::from_secs(60) }
    }
}

/// The types of tokens that give a passphrase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `luks2-keyring`.
    Keyring,
    /// `systemd-tpm2`.
    Tpm2,
    /// `systemd-fido2`.
    Fido2,
    /// `systemd-pkcs11`.
    Pkcs11,
    /// `clevis`.
    Clevis,
}

impl Kind {
    /// Returns the kind with this name in the header, or `None` for other types, including
    /// `systemd-recovery`, whose passphrase is typed.
    pub fn of(name: &str) -> Option<Self> {
        Some(match name {
            "luks2-keyring" => Self::Keyring,
            "systemd-tpm2" => Self::Tpm2,
            "systemd-fido2" => Self::Fido2,
            "systemd-pkcs11" => Self::Pkcs11,
            "clevis" => Self::Clevis,
            _ => return None,
        })
    }
}

/// Checks whether a token of a known type could be opened on some machine, without running a tool.
///
/// # Errors
/// `NotUsable` when it could not, with the wrong member.
pub fn check(token: &Token) -> Result<()> {
    match token.get("type").and_then(Value::as_str).and_then(Kind::of) {
        Some(Kind::Keyring) => keyring::check(token),
        Some(Kind::Tpm2) => tpm2::check(token),
        Some(Kind::Fido2) => fido2::check(token),
        Some(Kind::Pkcs11) => pkcs11::check(token),
        Some(Kind::Clevis) => clevis::check(token),
        None => Ok(()),
    }
}

/// Returns the passphrase of a token.
///
/// # Errors
/// `Unknown` for a type that gives no passphrase; `NotUsable`, `NoTool`, `NoHardware`, `PinWanted`,
/// `WrongPin`, `Failed`, `System`.
pub fn open(token: &Token, pin: Option<&Key>, options: &Options) -> Result<Key> {
    let kind = token.get("type").and_then(Value::as_str).and_then(Kind::of);
    match kind {
        Some(Kind::Keyring) => keyring::open(token),
        Some(Kind::Tpm2) => tpm2::open(token, pin, options),
        Some(Kind::Fido2) => fido2::open(token, pin, options),
        Some(Kind::Pkcs11) => pkcs11::open(token, pin, options),
        Some(Kind::Clevis) => clevis::open(token, options),
        None => Err(Error::new(ErrorKind::Unknown, "a token of this type gives no passphrase")),
    }
}

/// Seals a new secret in a TPM, under a policy. Returns the passphrase, and the token without
/// keyslots.
///
/// # Errors
/// The kinds of [`open`].
pub fn enroll_tpm2(how: &Tpm2Enrollment, pin: Option<&Key>, options: &Options) -> Result<(Key, Token)> {
    tpm2::enroll(how, pin, options)
}

/// Creates a new secret that a FIDO2 device derives each time.
///
/// # Errors
/// The kinds of [`open`].
pub fn enroll_fido2(pin: Option<&Key>, options: &Options) -> Result<(Key, Token)> {
    fido2::enroll(pin, options)
}

/// Creates a new secret for clevis's `pin` with this `config`. `trust` accepts a server's keys
/// unchecked.
///
/// # Errors
/// The kinds of [`open`].
pub fn enroll_clevis(pin: &str, config: &str, trust: bool, options: &Options) -> Result<(Key, Token)> {
    clevis::enroll(pin, config, trust, options)
}

/// Returns the passphrase in the keyring under this description, and its token.
///
/// # Errors
/// `NotUsable` when it does not exist; `System`.
pub fn enroll_keyring(description: &str) -> Result<(Key, Token)> {
    keyring::enroll(description)
}

/// Decrypts a file that GPG encrypted with a passphrase, with the installed gpg.
///
/// # Errors
/// `NotUsable` for a wrong passphrase and for a file that needs a key of a keyring; `NoTool`
/// without gpg; `Failed`, `System`.
pub fn decrypt_by_gpg(file: &[u8], passphrase: &Key, limit: Duration) -> Result<Key> {
    gpg::decrypt(file, passphrase, limit)
}

/// The passphrase that a program of the user's prints, without one newline at its end. The program
/// runs without a shell: spaces separate words. Its stdin is empty; its environment, its stderr and
/// its terminal are the user's.
///
/// # Errors
/// `NoTool` when it does not exist; `Failed` when it fails, prints nothing, or does not end within
/// `limit`; `System`.
pub fn passphrase_of_command(line: &str, limit: Duration) -> Result<Key> {
    let mut words = line.split_ascii_whitespace();
    let program = words.next().ok_or_else(|| Error::new(ErrorKind::NoTool, "the command is empty"))?;
    let mut done = tool::Tool::of_user(program, limit).args(words).run(&[])?;
    if !done.status.success() {
        return Err(Error::new(ErrorKind::Failed, format!("{program}: {}", done.status)));
    }
    let len = done.secret.len() - usize::from(done.secret.as_bytes().ends_with(b"\n"));
    done.secret.truncate(len);
    if len == 0 {
        return Err(Error::new(ErrorKind::Failed, format!("{program} prints no passphrase")));
    }
    Ok(done.secret)
}

/// Returns a new random secret of 32 bytes.
fn random() -> Result<Key> {
    let mut secret = Key::zeroed(32)?;
    getrandom::fill(secret.as_mut_bytes()).map_err(|e| {
        Error::new(ErrorKind::System, "the kernel gave no random bytes").with_source(std::io::Error::other(e))
    })?;
    Ok(secret)
}

/// A secret as base64 text, which keyslots take in place of binary secrets.
fn base64(secret: &[u8]) -> Result<Key> {
    let mut text = Key::zeroed(Base64::encoded_len(secret))?;
    Base64::encode(secret, text.as_mut_bytes())
        .map_err(|_| Error::new(ErrorKind::System, "a secret is too long"))?;
    Ok(text)
}

/// Returns the object of a `json!` literal.
fn object(value: Value) -> Token {
    match value {
        Value::Object(token) => token,
        _ => Token::new(),
    }
}
