//! Sealing and unsealing secrets in a TPM, under a policy.

use underseal_cipher::Key;

use super::channel::{Channel, Refused, malformed};
use super::session::{Command, For, Session};
use super::sha256;
use super::wire::{Reader, Writer};
use crate::member::wrong;
use crate::{Error, ErrorKind, Result};

const OWNER: u32 = 0x4000_0001;
/// An empty authorization.
const NO_PASSWORD: [u8; 9] = [0x40, 0, 0, 9, 0, 0, 0, 0, 0];
const NO_SESSIONS: u16 = 0x8001;
const SESSIONS: u16 = 0x8002;
const NULL_ALG: u16 = 0x0010;
const SHA256: u16 = 0x000b;
const ECC: u16 = 0x0023;

/// A bank of PCRs: the TPM's number for its hash.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bank(u16);

impl Bank {
    pub(super) fn of(name: &str) -> Option<Self> {
        let known = [("sha1", 0x0004), ("sha256", SHA256), ("sha384", 0x000c), ("sha512", 0x000d)];
        known.iter().find(|(known, _)| *known == name).map(|(_, number)| Self(*number))
    }
}

/// The conditions under which the TPM releases the secret.
#[derive(Debug, Clone)]
pub(super) struct Policy {
    pub(super) pcrs: Vec<u8>,
    pub(super) bank: Bank,
    pub(super) pin: bool,
    /// The policy's digest, which the sealed secret has.
    pub(super) digest: Vec<u8>,
}

/// The TPM's key above other keys.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Primary {
    Ecc,
    Rsa,
}

impl Primary {
    pub(super) fn of(name: &str) -> Option<Self> {
        [Self::Ecc, Self::Rsa].into_iter().find(|primary| primary.name() == name)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ecc => "ecc",
            Self::Rsa => "rsa",
        }
    }

    /// The template of a primary key: the same each time, so that the TPM makes the same key.
    fn template(self) -> Vec<u8> {
        let (kind, rest) = match self {
            // P-256, no scheme, no KDF; its point is empty.
            Self::Ecc => (ECC, &[0, 0x10, 0, 0x03, 0, 0x10, 0, 0, 0, 0][..]),
            // No scheme, 2048 bits, the usual exponent; its modulus is empty.
            Self::Rsa => (0x0001, &[0, 0x10, 0x08, 0, 0, 0, 0, 0, 0, 0][..]),
        };
        // Fixed to this TPM and its parent, created inside, used with its authorization, restricted
        // to decryption.
        let head = Writer::default().u16(kind).u16(SHA256).u32(0x0003_0072).sized(&[]);
        // The primary key protects its children with AES-128 in CFB.
        head.u16(0x0006).u16(128).u16(0x0043).raw(rest).0
    }
}

/// The parent of a sealed secret.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Parent {
    /// Created again each time.
    Primary(Primary),
    /// Stored in the TPM under a number, with the name that it must have.
    Stored { handle: u32, name: Vec<u8> },
}

impl Parent {
    /// Parses tpm2-tss's serialized handle: its number, its name, and more.
    pub(super) fn stored(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let handle = reader.u32()?;
        let name = reader.sized()?.to_vec();
        // Persistent objects only: another number could belong to another object later.
        (handle >> 24 == 0x81 && name.len() == 34).then_some(Self::Stored { handle, name })
    }
}

/// A secret as the TPM wraps it, which no other TPM can use.
#[derive(Debug, Clone)]
pub(super) struct Sealed {
    private: Vec<u8>,
    public: Vec<u8>,
}

impl Sealed {
    pub(super) fn parse(blob: &[u8]) -> Option<Self> {
        let mut reader = Reader(blob);
        let sealed = Self { private: reader.sized()?.to_vec(), public: reader.sized()?.to_vec() };
        // Later versions append fields only for keys from elsewhere.
        reader.0.is_empty().then_some(sealed)
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        Writer::default().sized(&self.private).sized(&self.public).0
    }
}

/// A key in the TPM that is ready for use.
struct StorageKey {
    handle: u32,
    name: Vec<u8>,
    /// The key's point, if the key is of P-256.
    point: Option<[u8; 64]>,
}

impl StorageKey {
    fn salted(&self) -> Option<(u32, &[u8; 64])> {
        self.point.as_ref().map(|point| (self.handle, point))
    }
}

pub(super) fn unseal(
    channel: &mut Channel,
    sealed: &Sealed,
    policy: &Policy,
    auth: Option<&Key>,
    parent: &Parent,
) -> Result<Key> {
    let parent = self::parent(channel, parent)?;
    let body = Writer::default().u32(parent.handle).u32(9).raw(&NO_PASSWORD);
    let body = body.sized(&sealed.private).sized(&sealed.public).0;
    let loaded = channel.send(SESSIONS, 0x157, &body)?.map_err(|r| refused("loading the secret", &r))?;
    let handle = Reader(loaded.as_bytes()).u32().ok_or_else(malformed)?;
    channel.loaded(handle);
    let session = Session::start(channel, For::Policy, parent.salted())?;
    let session = session.map_err(|r| refused("a session", &r))?;
    let digest = apply(channel, policy, session.handle)?;
    if digest != policy.digest {
        let what = "the PCRs are not what they were when the token was made (other firmware, boot loader or settings)";
        return Err(Error::unusable(what));
    }
    let name = [&SHA256.to_be_bytes()[..], &sha256(&[&sealed.public])].concat();
    let command = Command {
        code: 0x15e,
        handle,
        name: &name,
        parameters: &[],
        auth: auth.filter(|_| policy.pin).map_or(&[], Key::as_bytes),
    };
    let answer = session.authorize(channel, &command, false, true)?;
    let answer = answer.map_err(|r| refused("unsealing", &r))?;
    let secret = Reader(answer.as_bytes()).sized().ok_or_else(malformed)?;
    Ok(Key::new(secret)?)
}

pub(super) fn seal(
    channel: &mut Channel,
    secret: &Key,
    policy: &Policy,
    auth: Option<&Key>,
) -> Result<(Sealed, Policy, Primary)> {
    let (parent, primary) = match primary(channel, Primary::Ecc)? {
        Ok(made) => (made, Primary::Ecc),
        // A TPM without elliptic curves.
        Err(_) => {
            let made = primary(channel, Primary::Rsa)?;
            (made.map_err(|r| refused("making its primary key", &r))?, Primary::Rsa)
        }
    };
    let trial = Session::start(channel, For::Trial, None)?.map_err(|r| refused("a session", &r))?;
    let policy = Policy { digest: apply(channel, policy, trial.handle)?, ..policy.clone() };
    let session = Session::start(channel, For::Hmac, parent.salted())?;
    let session = session.map_err(|r| refused("a session", &r))?;
    // A sealed secret: fixed to this TPM and its parent, returned under its policy only.
    let public = Writer::default().u16(0x0008).u16(SHA256).u32(0x12).sized(&policy.digest);
    let public = public.u16(NULL_ALG).sized(&[]).0;
    let auth = auth.map_or(&[][..], Key::as_bytes);
    let mut sensitive = Key::zeroed(6 + auth.len() + secret.len())?;
    let lens =
        [4 + auth.len() + secret.len(), auth.len(), secret.len()].map(|len| u16::try_from(len).unwrap_or(0));
    let parts: [&[u8]; 5] =
        [&lens[0].to_be_bytes(), &lens[1].to_be_bytes(), auth, &lens[2].to_be_bytes(), secret.as_bytes()];
    let mut at = 0;
    for part in parts {
        sensitive.as_mut_bytes()[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    // No outside data, no PCRs to be recorded.
    let rest = Writer::default().sized(&public).sized(&[]).u32(0).0;
    let mut parameters = Key::zeroed(sensitive.len() + rest.len())?;
    parameters.as_mut_bytes()[..sensitive.len()].copy_from_slice(sensitive.as_bytes());
    parameters.as_mut_bytes()[sensitive.len()..].copy_from_slice(&rest);
    let command = Command {
        code: 0x153,
        handle: parent.handle,
        name: &parent.name,
        parameters: parameters.as_bytes(),
        auth: &[],
    };
    let answer = session.authorize(channel, &command, true, false)?;
    let answer = answer.map_err(|r| refused("sealing", &r))?;
    let mut reader = Reader(answer.as_bytes());
    let private = reader.sized().ok_or_else(malformed)?.to_vec();
    let public = reader.sized().ok_or_else(malformed)?.to_vec();
    channel.flush(parent.handle);
    Ok((Sealed { private, public }, policy, primary))
}

/// Applies a policy. Returns its digest.
fn apply(channel: &mut Channel, policy: &Policy, session: u32) -> Result<Vec<u8>> {
    if !policy.pcrs.is_empty() {
        let mut bits = [0_u8; 3];
        for &pcr in &policy.pcrs {
            bits[usize::from(pcr / 8)] |= 1 << (pcr % 8);
        }
        let body = Writer::default().u32(session).sized(&[]).u32(1).u16(policy.bank.0).u8(3).raw(&bits).0;
        channel.send(NO_SESSIONS, 0x17f, &body)?.map_err(|r| refused("its policy of PCRs", &r))?;
    }
    if policy.pin {
        let body = Writer::default().u32(session).0;
        channel.send(NO_SESSIONS, 0x16b, &body)?.map_err(|r| refused("its policy of a PIN", &r))?;
    }
    let body = Writer::default().u32(session).0;
    let answer = channel.send(NO_SESSIONS, 0x189, &body)?.map_err(|r| refused("its policy", &r))?;
    Ok(Reader(answer.as_bytes()).sized().ok_or_else(malformed)?.to_vec())
}

fn parent(channel: &mut Channel, parent: &Parent) -> Result<StorageKey> {
    match parent {
        Parent::Primary(kind) => primary(channel, *kind)?.map_err(|r| refused("making its primary key", &r)),
        Parent::Stored { handle, name } => {
            let answer = channel.send(NO_SESSIONS, 0x173, &handle.to_be_bytes())?;
            let answer = answer.map_err(|r| refused("finding the storage root key", &r))?;
            let public = Reader(answer.as_bytes()).sized().ok_or_else(malformed)?;
            let found = key(*handle, public);
            if found.name != *name {
                return Err(wrong(
                    "tpm2_srk",
                    "is another key than this TPM has: it was made with another TPM",
                ));
            }
            Ok(found)
        }
    }
}

fn primary(channel: &mut Channel, kind: Primary) -> Result<std::result::Result<StorageKey, Refused>> {
    let body = Writer::default().u32(OWNER).u32(9).raw(&NO_PASSWORD);
    // No authorization and no data of the key; nothing from outside, no PCRs to be noted.
    let body = body.u16(4).u32(0).sized(&kind.template()).sized(&[]).u32(0).0;
    let answer = match channel.send(SESSIONS, 0x131, &body)? {
        Ok(answer) => answer,
        Err(refused) => return Ok(Err(refused)),
    };
    let mut reader = Reader(answer.as_bytes());
    let handle = reader.u32().ok_or_else(malformed)?;
    channel.loaded(handle);
    reader.u32().ok_or_else(malformed)?;
    let public = reader.sized().ok_or_else(malformed)?;
    Ok(Ok(key(handle, public)))
}

/// Returns a key from its public area.
fn key(handle: u32, public: &[u8]) -> StorageKey {
    let name = [&SHA256.to_be_bytes()[..], &sha256(&[public])].concat();
    StorageKey { handle, name, point: point(public) }
}

/// Returns the point of a storage key on P-256 with AES, as in the templates here and systemd's, or
/// `None` for other keys.
fn point(public: &[u8]) -> Option<[u8; 64]> {
    let mut reader = Reader(public);
    let (kind, hash, _) = (reader.u16()?, reader.u16()?, reader.u32()?);
    reader.sized()?;
    let symmetric = (reader.u16()?, reader.u16()?, reader.u16()?);
    let (scheme, curve, kdf) = (reader.u16()?, reader.u16()?, reader.u16()?);
    let plain = kind == ECC && hash == SHA256 && symmetric.0 == 6 && scheme == NULL_ALG && kdf == NULL_ALG;
    if !plain || curve != 3 {
        return None;
    }
    let mut point = [0; 64];
    for half in point.chunks_exact_mut(32) {
        let coordinate = reader.sized()?;
        // Some TPMs leave out leading zeros.
        half.get_mut(32_usize.checked_sub(coordinate.len())?..)?.copy_from_slice(coordinate);
    }
    Some(point)
}

/// The error for a TPM's response code. Errors of format 1 also carry the number of the session or
/// parameter.
fn refused(doing: &str, Refused(code): &Refused) -> Error {
    let plain = if code & 0x80 != 0 { code & 0xbf } else { *code };
    let (kind, why) = match plain {
        0x8e | 0xa2 => (ErrorKind::WrongPin, "the PIN is wrong"),
        0x921 => {
            (ErrorKind::NotUsable, "the TPM is locked after too many wrong PINs: it takes one again later")
        }
        0x9d | 0x126 => (ErrorKind::NotUsable, "its policy does not hold now"),
        0x128 => (ErrorKind::NotUsable, "the PCRs changed meanwhile"),
        0x9f => {
            (ErrorKind::NotUsable, "the secret was sealed by another TPM, or its owner was cleared since")
        }
        0x8b => (ErrorKind::NotUsable, "the TPM has no such key"),
        _ => (ErrorKind::Failed, "the TPM refuses"),
    };
    Error::new(kind, format!("{why} ({doing}: TPM error {code:#x})"))
}
