//! From a secret to the volume key: protector, VMK, seal, FVEK.
//!
//! ```text
//!   password, recovery password --stretch--+
//!   startup key file, clear key -----------+--CCM--> VMK --CCM--> SHA-256 of the metadata: checked
//!                                                     |
//!                                                     +--CCM--> FVEK
//! ```

use std::time::Instant;

use subtle::ConstantTimeEq;
use underseal_cipher::Key;
use underseal_volume::KdfLimits;

use super::block::Block;
use super::entries::{kind, value};
use super::guid::Guid;
use super::method::Method;
use super::protector::{Protector, ProtectorKind};
use super::recovery::Recovery;
use super::{Bitlk, ccm, recovery, startup, stretch};
use crate::{Error, ErrorKind, Result};

/// Stretches of one unlock. Real volumes have a few protectors, and a block has room for 400.
const MOST_STRETCHES: usize = 32;
/// Bytes before the SHA-256 in the sealed value.
const SEAL_HEAD: usize = 12;

/// A secret that unlocks a volume.
#[derive(Debug)]
pub enum Secret<'a> {
    /// No secret: the clear key of a volume whose protection is suspended.
    Clear,
    /// A password, or a recovery password, in UTF-8.
    Passphrase(&'a Key),
    /// The contents of a startup key file (`.BEK`).
    StartupKey(&'a Key),
    /// The volume key in cryptsetup's form or as it is on disk, or the 32 bytes of the VMK.
    VolumeKey(&'a Key),
}

/// The volume key.
#[derive(Debug)]
pub struct Unlocked {
    /// In cryptsetup's form: the cipher's key, then the diffuser's or the tweak's.
    pub key: Key,
    /// The number of the protector that opened, in the order of [`Bitlk::protectors`]; none for a
    /// key that was given.
    pub protector: Option<usize>,
}

pub(super) fn unlock(volume: &Bitlk, secret: &Secret<'_>, limits: &KdfLimits) -> Result<Unlocked> {
    let Bitlk { block, protectors, method, .. } = volume;
    let (number, vmk) = match secret {
        Secret::Clear => clear(protectors)?,
        Secret::Passphrase(passphrase) => passphrase_opens(protectors, passphrase, limits)?,
        Secret::StartupKey(bytes) => startup_key(volume, bytes)?,
        Secret::VolumeKey(key) => return given(block, *method, key),
    };
    check_seal(block, &vmk)?;
    Ok(Unlocked { key: fvek(block, *method, &vmk)?, protector: Some(number) })
}

/// The VMK that a protector's key opens; none when it is another key.
fn vmk(protector: &Protector, key: &Key) -> Result<Option<Key>> {
    if protector.wrapped.is_empty() {
        return Err(protector.damaged("wrapped key"));
    }
    ccm::open(key, &protector.wrapped)?.map(|plain| ccm::key(&plain, "VMK")).transpose()
}

fn of_kind(protectors: &[Protector], kind: ProtectorKind) -> impl Iterator<Item = (usize, &Protector)> {
    protectors.iter().enumerate().filter(move |(_, protector)| protector.kind == kind)
}

fn clear(protectors: &[Protector]) -> Result<(usize, Key)> {
    let mut damaged = None;
    for (number, protector) in of_kind(protectors, ProtectorKind::ClearKey) {
        let key = protector.clear.as_ref().ok_or_else(|| protector.damaged("key"))?;
        if let Some(vmk) = vmk(protector, key)? {
            return Ok((number, vmk));
        }
        damaged = Some(protector.damaged("key that opens it"));
    }
    Err(damaged.unwrap_or_else(|| nothing_fits(protectors, "it has no clear key")))
}

/// Tries a passphrase as a recovery password, where it is one, and as a password. Every protector
/// that it may open is tried before the passphrase is called wrong, and at least one stretch is
/// done.
fn passphrase_opens(protectors: &[Protector], passphrase: &Key, limits: &KdfLimits) -> Result<(usize, Key)> {
    let wrong = |why: String| Error::new(ErrorKind::WrongPassphrase, why);
    let text = std::str::from_utf8(passphrase.as_bytes())
        .map_err(|_| wrong("BitLocker's passwords are text, and the passphrase is not UTF-8".into()))?;
    let form = recovery::parse(text)?;
    let mut initial = Vec::new();
    if let Recovery::Valid(bytes) = &form {
        initial.push((ProtectorKind::RecoveryPassword, stretch::of_recovery(bytes)?));
    }
    initial.push((ProtectorKind::Password, stretch::of_password(text)?));
    let tries: Vec<_> = initial
        .iter()
        .flat_map(|(kind, initial)| of_kind(protectors, *kind).map(move |(nth, p)| (nth, p, initial)))
        .collect();
    if tries.len() > MOST_STRETCHES {
        let context = format!("the volume has {} protectors to try; {MOST_STRETCHES} are tried", tries.len());
        return Err(Error::new(ErrorKind::TooCostly, context));
    }
    if tries.is_empty() {
        // A malformed recovery password takes as long as one whose tag is wrong.
        stretch::stretch(&initial[0].1, [0; 16])?;
    }
    let begun = Instant::now();
    for (number, protector, initial) in &tries {
        if limits.time.is_some_and(|time| begun.elapsed() > time) {
            return Err(Error::new(ErrorKind::TooCostly, "the protectors took longer to try than allowed"));
        }
        let salt = protector.salt.ok_or_else(|| protector.damaged("salt"))?;
        let key = stretch::stretch(initial, salt)?;
        if let Some(vmk) = vmk(protector, &key)? {
            return Ok((*number, vmk));
        }
    }
    let has = |kind| of_kind(protectors, kind).next().is_some();
    Err(match form {
        Recovery::Mistyped(group) if has(ProtectorKind::RecoveryPassword) => {
            wrong(format!("group {group} of the recovery password is mistyped"))
        }
        _ if !tries.is_empty() => wrong("no protector opens with this passphrase".into()),
        _ if has(ProtectorKind::RecoveryPassword) => {
            wrong("the volume opens with a recovery password: eight groups of six digits with dashes".into())
        }
        _ => nothing_fits(protectors, "no protector is a password"),
    })
}

fn startup_key(volume: &Bitlk, bytes: &Key) -> Result<(usize, Key)> {
    let wrong = |why: String| Error::new(ErrorKind::WrongPassphrase, why);
    let file = startup::parse(bytes.as_bytes())?;
    let own = Guid(volume.block.guid);
    if let Some(other) = file.volume.filter(|guid| *guid != own) {
        return Err(wrong(format!("the startup key is of volume {{{other}}}; this is {{{own}}}")));
    }
    let mut keys = of_kind(&volume.protectors, ProtectorKind::StartupKey).peekable();
    if keys.peek().is_none() {
        return Err(nothing_fits(&volume.protectors, "no protector is a startup key"));
    }
    for (number, protector) in keys.filter(|(_, protector)| protector.guid == file.protector) {
        if let Some(vmk) = vmk(protector, &file.key)? {
            return Ok((number, vmk));
        }
    }
    Err(wrong(format!("no protector opens with the startup key {{{}}}", file.protector)))
}

/// A key that was given: the volume key in one of its two forms, which nothing can check, or the
/// VMK, which its tag does.
fn given(block: &Block, method: Method, key: &Key) -> Result<Unlocked> {
    if let Some(key) = method.volume_key(key.as_bytes())? {
        // 32 bytes may also be the VMK, which opens the seal.
        let is_vmk = key.len() == 32 && check_seal(block, &key).is_ok();
        let key = if is_vmk { fvek(block, method, &key)? } else { key };
        return Ok(Unlocked { key, protector: None });
    }
    if key.len() == 32 {
        check_seal(block, key)?;
        return Ok(Unlocked { key: fvek(block, method, key)?, protector: None });
    }
    let context =
        format!("the volume key of {method} has {} bytes, and {} were given", method.key_size(), key.len());
    Err(Error::new(ErrorKind::BadOption, context))
}

/// Compares the SHA-256 that is sealed under the VMK with the block's.
fn check_seal(block: &Block, vmk: &Key) -> Result<()> {
    let forged =
        || Error::new(ErrorKind::BadHeader, "the metadata are forged: their sealed SHA-256 is another");
    let plain = ccm::open(vmk, block.seal()?)?.ok_or_else(forged)?;
    let digest = underseal_volume::Hash::Sha256.digest(&[block.sealed()]);
    let sealed = plain.as_bytes().get(SEAL_HEAD..).unwrap_or(&[]);
    if bool::from(sealed.ct_eq(&digest)) { Ok(()) } else { Err(forged()) }
}

/// The volume key that the VMK opens.
fn fvek(block: &Block, method: Method, vmk: &Key) -> Result<Key> {
    let bad = |why: &str| Error::new(ErrorKind::BadHeader, why);
    let entry = block.entry(kind::FVEK, value::CCM, "volume key")?;
    let entry = entry.ok_or_else(|| bad("the metadata hold no volume key"))?;
    let plain = ccm::open(vmk, entry.data)?.ok_or_else(|| bad("the VMK does not open the volume key"))?;
    let key = ccm::key(&plain, "volume key")?;
    method.stored_key(key.as_bytes())?.ok_or_else(|| bad("the volume key does not fit its method"))
}

/// No protector takes this kind of secret: which ones there are, and why they do not help.
fn nothing_fits(protectors: &[Protector], why: &str) -> Error {
    let mut told: Vec<String> = protectors
        .iter()
        .take(8)
        .map(|protector| match protector.kind.obstacle() {
            Some(obstacle) => format!("{}: {obstacle}", protector.kind),
            None => protector.to_string(),
        })
        .collect();
    if told.is_empty() {
        told.push("none".into());
    }
    Error::new(ErrorKind::NoProtector, format!("{why}; its protectors: {}", told.join("; ")))
}
