//! From a LUKS2 token to the passphrase it stands for, and back: what hardware, a server or the
//! kernel keeps.
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
//!   tool     a child with an environment of its own; secrets go through pipes only
//! ```
//!
//! No library that talks to hardware is loaded into a process that holds keys. A header is not
//! authenticated: what it can make us run are these tools, with its data on their stdin or in
//! bounded, checked arguments.

// `unsafe` is in `tool`, between fork and exec, with its reason.

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

/// What the caller knows about this machine, and the header does not.
#[derive(Debug, Clone)]
pub struct Options {
    /// The TPM as tpm2-tools name it (a TCTI): `device:/dev/tpmrm0`, `swtpm:path=PATH`.
    pub tpm2_device: Option<String>,
    /// The FIDO2 device; else each that is there.
    pub fido2_device: Option<PathBuf>,
    /// The PKCS#11 module; else p11-kit's.
    pub pkcs11_module: Option<PathBuf>,
    /// How long a tool may take. Somebody may have to touch something.
    pub limit: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { tpm2_device: None, fido2_device: None, pkcs11_module: None, limit: Duration::from_secs(60) }
    }
}

/// The types that a passphrase can be had from.
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
    /// By the name that stands in the header; none for others, `systemd-recovery` among them: its
    /// passphrase is typed.
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

/// Whether a token of a type that is known could be opened somewhere; nothing is run or asked for
/// that.
///
/// # Errors
/// `NotUsable` when it could not, for the member that is wrong.
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

/// The passphrase that a token stands for.
///
/// # Errors
/// `Unknown` for a type that none can be had from; `NotUsable`, `NoTool`, `NoHardware`,
/// `PinWanted`, `WrongPin`, `Failed`, `System`.
pub fn open(token: &Token, pin: Option<&Key>, options: &Options) -> Result<Key> {
    let kind = token.get("type").and_then(Value::as_str).and_then(Kind::of);
    match kind {
        Some(Kind::Keyring) => keyring::open(token),
        Some(Kind::Tpm2) => tpm2::open(token, pin, options),
        Some(Kind::Fido2) => fido2::open(token, pin, options),
        Some(Kind::Pkcs11) => pkcs11::open(token, pin, options),
        Some(Kind::Clevis) => clevis::open(token, options),
        None => Err(Error::new(ErrorKind::Unknown, "no passphrase can be had from a token of this type")),
    }
}

/// A new secret in a TPM, under a policy: the passphrase, and the token of no keyslots yet.
///
/// # Errors
/// As [`open`].
pub fn enroll_tpm2(how: &Tpm2Enrollment, pin: Option<&Key>, options: &Options) -> Result<(Key, Token)> {
    tpm2::enroll(how, pin, options)
}

/// A new secret that a FIDO2 device makes each time.
///
/// # Errors
/// As [`open`].
pub fn enroll_fido2(pin: Option<&Key>, options: &Options) -> Result<(Key, Token)> {
    fido2::enroll(pin, options)
}

/// A new secret that clevis's `pin` keeps as its `config` says. `trust` takes a server's keys as
/// they are.
///
/// # Errors
/// As [`open`].
pub fn enroll_clevis(pin: &str, config: &str, trust: bool, options: &Options) -> Result<(Key, Token)> {
    clevis::enroll(pin, config, trust, options)
}

/// The passphrase that is in the keyring under this description, and its token.
///
/// # Errors
/// `NotUsable` when it is not there; `System`.
pub fn enroll_keyring(description: &str) -> Result<(Key, Token)> {
    keyring::enroll(description)
}

/// Decrypts a file that GPG encrypted with a passphrase, by the installed gpg.
///
/// # Errors
/// `NotUsable` for a wrong passphrase and for a file that wants a key of a keyring; `NoTool`
/// without gpg; `Failed`, `System`.
pub fn decrypt_by_gpg(file: &[u8], passphrase: &Key, limit: Duration) -> Result<Key> {
    gpg::decrypt(file, passphrase, limit)
}

/// What a program of the user's prints: a passphrase, without one newline at its end. It is run
/// without a shell: words are what spaces part. Its stdin is empty; its environment, its stderr and
/// its terminal are the user's.
///
/// # Errors
/// `NoTool` when it is not there; `Failed` when it fails, prints nothing, or does not end within
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

/// A new random secret: 32 bytes.
fn random() -> Result<Key> {
    let mut secret = Key::zeroed(32)?;
    getrandom::fill(secret.as_mut_bytes()).map_err(|e| {
        Error::new(ErrorKind::System, "the kernel gave no random bytes").with_source(std::io::Error::other(e))
    })?;
    Ok(secret)
}

/// A secret as base64 text: what stands for binary ones in keyslots.
fn base64(secret: &[u8]) -> Result<Key> {
    let mut text = Key::zeroed(Base64::encoded_len(secret))?;
    Base64::encode(secret, text.as_mut_bytes())
        .map_err(|_| Error::new(ErrorKind::System, "a secret is too long"))?;
    Ok(text)
}

/// The object that a `json!` literal is.
fn object(value: Value) -> Token {
    match value {
        Value::Object(token) => token,
        _ => Token::new(),
    }
}
