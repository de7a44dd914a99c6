//! The shared parts of unlocking all formats.

use underseal_cipher::{CipherSpec, Key};

use crate::kdf::Budget;
use crate::{Error, ErrorKind, KdfLimits, Result, recovery};

/// The way a passphrase is tried.
#[derive(Debug, Clone, Default)]
pub struct UnlockOptions {
    /// Only this keyslot; otherwise all, by priority and number.
    pub slot: Option<u32>,
    /// Any keyslot but this one.
    pub except: Option<u32>,
    /// LUKS2: try also keyslots that hold another key than the data's, if no keyslot is named. Such
    /// a key opens no volume.
    pub unbound: bool,
    /// The limits on this machine's work for all keyslots and digests together.
    pub limits: KdfLimits,
    /// Accepts keyslots that are not encrypted (`cipher_null`).
    pub allow_null: bool,
}

/// How a volume is activated.
#[derive(Debug, Clone, Default)]
pub struct ActivateOptions {
    /// The header is detached.
    pub detached: bool,
    /// Passes discards down even if the header does not allow them.
    pub allow_discards: bool,
    /// Accepts data that is not encrypted (`cipher_null`).
    pub allow_null: bool,
    /// The data device is the device of the header's [integrity
    /// layer](crate::Header::integrity_layer), and so is its size.
    pub over_integrity: bool,
}

/// A volume key that its header's digest has confirmed. A volume in the middle of a reencryption
/// has two keys, and needs both.
#[derive(Debug)]
pub struct VolumeKey {
    pub(crate) key: Key,
    /// The number of the digest in LUKS2; 0 in LUKS1.
    pub(crate) digest: u32,
    /// The second key, with its digest, of a volume in the middle of a reencryption.
    pub(crate) other: Option<(u32, Key)>,
}

impl VolumeKey {
    pub(crate) fn new(key: Key, digest: u32) -> Self {
        Self { key, digest, other: None }
    }

    /// Adds another key of the same header: the old key of a volume in the middle of a reencryption
    /// to the new key, when no passphrase opens both. If both keys are the same, one of them is
    /// kept.
    #[must_use]
    pub fn with(mut self, other: Self) -> Self {
        let more = [Some((other.digest, other.key)), other.other];
        if let Some(new) = more.into_iter().flatten().find(|(digest, _)| *digest != self.digest) {
            self.other = Some(new);
        }
        self
    }

    /// Returns the key without one whose digest the header no longer has.
    pub(crate) fn known_to(self, has_digest: impl Fn(u32) -> bool) -> Self {
        match self.other {
            Some((digest, key)) if !has_digest(self.digest) => Self::new(key, digest),
            other => Self { other: other.filter(|(digest, _)| has_digest(*digest)), ..self },
        }
    }

    /// Returns the key of a digest, if it is present.
    pub(crate) fn of(&self, digest: u32) -> Option<&Key> {
        let other = self.other.as_ref().filter(|(number, _)| *number == digest).map(|(_, key)| key);
        if self.digest == digest { Some(&self.key) } else { other }
    }

    /// Returns the key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the second key of a volume in the middle of a reencryption.
    pub fn other(&self) -> Option<&Key> {
        self.other.as_ref().map(|(_, key)| key)
    }

    /// Returns the key and gives up this value.
    pub fn into_key(self) -> Key {
        self.key
    }
}

/// The result of a passphrase.
#[derive(Debug)]
pub struct Unlocked {
    /// The keyslot.
    pub slot: u32,
    /// The keyslot's key.
    pub key: VolumeKey,
}

/// Tries a passphrase as it was typed, and then a recovery key in its printed form. Both tries
/// together stay within the limits of one unlock.
pub(crate) fn within_limits(
    passphrase: &Key,
    options: &UnlockOptions,
    try_slots: impl Fn(&Key, &Budget) -> Result<Unlocked>,
) -> Result<Unlocked> {
    let budget = Budget::new(options.limits);
    match (try_slots(passphrase, &budget), recovery::as_printed(passphrase)?) {
        (Err(e), Some(printed)) if e.kind() == ErrorKind::WrongPassphrase => try_slots(&printed, &budget),
        (typed, _) => typed,
    }
}

/// Returns the first slot that opens.
///
/// A slot that cannot be tried (too costly, an unknown cipher) does not prevent the others. Its
/// error is reported when no slot opens.
pub(crate) fn first_that_opens(
    slots: impl Iterator<Item = u32>,
    open: impl Fn(u32) -> Result<Unlocked>,
) -> Result<Unlocked> {
    let (mut tried, mut untried) = (0, None);
    for slot in slots {
        match open(slot) {
            Err(e) if e.kind() == ErrorKind::WrongPassphrase => tried += 1,
            Err(e) if matches!(e.kind(), ErrorKind::Io | ErrorKind::Memory) => return Err(e),
            Err(e) => untried = untried.or(Some(e.within(format_args!("keyslot {slot}")))),
            opened => return opened,
        }
    }
    match untried {
        Some(e) if tried == 0 => Err(e),
        Some(e) => Err(wrong_passphrase().with_source(e)),
        None => Err(wrong_passphrase()),
    }
}

pub(crate) fn wrong_passphrase() -> Error {
    Error::new(ErrorKind::WrongPassphrase, "no keyslot opens with this passphrase")
}

/// Headers are not authenticated, so an attacker who can write a header can replace the cipher by
/// none (CVE-2025-59054).
pub(crate) fn allow_null(spec: &CipherSpec, allowed: bool) -> Result<()> {
    if spec.is_null() && !allowed {
        let context =
            format!("the header says {spec}, which encrypts nothing; refused unless allowed by name");
        return Err(Error::new(ErrorKind::NullCipher, context));
    }
    Ok(())
}
