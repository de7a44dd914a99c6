//! From a specification and a key to a working cipher: the one list of what this crate can do.
//!
//! ```text
//!   CipherSpec --plan--> Plan: which mode, which cipher      "Error allocating crypto tfm"
//!        key   --split-> a key for each cipher, the rest     "Error decoding and setting key"
//!        IV    --ivs---> IV generator or treatment           "Invalid IV mode", "Error creating IV"
//!                  assemble -> Arc<dyn SectorCipher>
//! ```
//! Errors begin with the kernel's words for the same table and add the reason, which it swallows.

mod assemble;
mod ciphers;
mod extents;
mod hashes;
mod keys;
mod plan;

use std::sync::Arc;

pub use extents::{Blocks, build_extents};
use keys::Keys;
use plan::Plan;

use crate::mode::ManyKeys;
use crate::wipe::wipe_stack;
use crate::{
    Authentication, CipherSpec, CpuPath, Error, ErrorKind, Integrity, Key, Result, SectorCipher, SectorSize,
};

/// What a cipher is made from.
#[derive(Debug, Clone, Copy)]
pub struct BuildOptions<'a> {
    /// Cipher, chain mode and IV generator.
    pub spec: &'a CipherSpec,
    /// The volume key.
    pub key: &'a Key,
    /// The size of the sectors.
    pub sector_size: SectorSize,
    /// dm-crypt's `iv_large_sectors`: IVs are made of the number of the sector in units of its own size.
    pub iv_large_sectors: bool,
    /// What is kept beside each sector; nothing, for most ciphers.
    pub integrity: Option<Integrity>,
    /// The code to run; the processor's best, or what `UNDERSEAL_CPU` says, when none is named.
    pub cpu: Option<CpuPath>,
}

/// Makes the cipher that `spec` names, with IVs made of 512-byte sector numbers.
///
/// The null cipher takes the key that a LUKS header has for it; otherwise this is [`build_with`].
///
/// # Errors
/// As [`build_with`].
pub fn build(spec: &CipherSpec, key: &Key, sector_size: SectorSize) -> Result<Arc<dyn SectorCipher>> {
    let none;
    let key = if spec.is_null() && key_sizes(spec)?.contains(&key.len()) {
        none = Key::zeroed(0)?;
        &none
    } else {
        key
    };
    build_with(&BuildOptions { spec, key, sector_size, iv_large_sectors: false, integrity: None, cpu: None })
}

/// Makes the cipher that the options name, as dm-crypt would take them.
///
/// # Errors
/// `Unsupported` for a cipher, mode or IV generator that is not in this build or does not go with the rest, or a path
/// that this processor cannot run; `KeySize` when the key's length does not fit; `SectorSize` when the IV generator
/// does not take it; `Memory` when round keys cannot be placed on locked pages.
pub fn build_with(options: &BuildOptions<'_>) -> Result<Arc<dyn SectorCipher>> {
    if options.integrity.is_some() {
        let why = "nothing can be kept beside sectors yet";
        return Err(refuse(ErrorKind::Unsupported, "Integrity profile not supported", options.spec, why));
    }
    let plan = Plan::new(options.spec)?;
    let path = options.cpu.map_or_else(CpuPath::chosen, Ok)?;
    let keys = Keys::split(options.spec, &plan, options.key.as_bytes())?;
    let built = assemble_all(options, &plan, &keys, path);
    // Libraries expand keys on the stack and move them to where they stay.
    wipe_stack::<{ 64 << 10 }>();
    built
}

fn assemble_all(
    options: &BuildOptions<'_>,
    plan: &Plan,
    keys: &Keys<'_>,
    path: CpuPath,
) -> Result<Arc<dyn SectorCipher>> {
    if let [key] = keys.each[..] {
        return assemble::assemble(options, plan, path, key, keys);
    }
    let ciphers = keys.each.iter().map(|key| assemble::assemble(options, plan, path, key, keys));
    Ok(Arc::new(ManyKeys { ciphers: ciphers.collect::<Result<_>>()?, size: options.sector_size }))
}

/// The sizes in bytes that one key of the specification may have, the preferred one last.
///
/// # Errors
/// `Unsupported` for a cipher that is not in this build.
pub fn key_sizes(spec: &CipherSpec) -> Result<&'static [usize]> {
    if spec.is_null() {
        return Ok(&[0, 16, 24, 32, 48, 64]);
    }
    Ok(Plan::new(spec)?.key_sizes())
}

/// What the specification keeps beside each sector, at its best.
///
/// # Errors
/// `Unsupported` for a cipher that is not in this build.
pub fn authentication(spec: &CipherSpec) -> Result<Authentication> {
    Plan::new(spec)?;
    Ok(Authentication { tag: 0, stored_iv: 0, mac_key: 0 })
}

/// What is weak about a key, in words for a warning.
pub fn weak_key(spec: &CipherSpec, key: &Key) -> Option<&'static str> {
    let (first, second) = key.as_bytes().split_at(key.len() / 2);
    (spec.chain() == "xts" && spec.key_count() == 1 && first == second)
        .then_some("the two halves of the xts key are equal, which weakens it")
}

/// An error in the kernel's words, with the reason.
fn refuse(kind: ErrorKind, kernel: &str, spec: &CipherSpec, why: impl std::fmt::Display) -> Error {
    Error::new(kind, format!("{kernel}: cipher {}: {why}", spec.as_written()))
}

fn list(sizes: &[usize]) -> String {
    let mut sizes = sizes.to_vec();
    sizes.sort_unstable();
    sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}
