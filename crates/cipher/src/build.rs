//! Builds a working cipher from a specification and a key: the list of all ciphers of this crate.
//!
//! ```text
//!   CipherSpec --plan--> Plan: which mode, which cipher      "Error allocating crypto tfm"
//!        key   --split-> a key for each cipher, the rest     "Error decoding and setting key"
//!        IV    --ivs---> IV generator, treatment            "Invalid IV mode", "Error creating IV"
//!                  assemble -> Arc<dyn SectorCipher>
//! ```
//! Errors begin with the kernel's words for the same table and add the reason, which it swallows.

mod assemble;
mod authenticated;
mod chain;
mod ciphers;
mod extents;
mod hashes;
mod keys;
mod macs;
mod plan;

use std::sync::Arc;

pub use chain::{build_outer_cbc, build_truecrypt_lrw, chain};
pub use extents::{EcbCipher, build_extents};
use keys::SplitKey;
use plan::ModePlan;

use crate::aead::UnusedTuples;
use crate::mode::ManyKeys;
use crate::wipe::wipe_stack;
use crate::{
    Authentication, CipherSpec, CpuPath, Error, ErrorKind, Integrity, IntegrityKind, Key, Result,
    SectorCipher, SectorSize,
};

/// dm-crypt's limit for the tuple bytes in a table line.
const MOST_BESIDE: usize = 480;
/// The most tuple bytes of a device.
const MOST_TUPLE: usize = 4096;

/// The inputs of a cipher.
#[derive(Debug, Clone, Copy)]
pub struct BuildOptions<'a> {
    /// Cipher, chain mode and IV generator.
    pub spec: &'a CipherSpec,
    /// The volume key.
    pub key: &'a Key,
    /// The size of the sectors.
    pub sector_size: SectorSize,
    /// dm-crypt's `iv_large_sectors`: IVs count sectors of the sector size instead of 512 bytes.
    pub iv_large_sectors: bool,
    /// The tuple of each sector; `None` for most ciphers.
    pub integrity: Option<Integrity>,
    /// The CPU path; `None`: the processor's best, or that of `UNDERSEAL_CPU`.
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
/// `Unsupported` for a cipher, mode or IV generator that is not in this build or does not go with
/// the rest, or a path that this processor cannot run; `KeySize` when the key's length does not
/// fit; `SectorSize` when the IV generator does not take it; `Memory` when round keys cannot be
/// placed on locked pages.
pub fn build_with(options: &BuildOptions<'_>) -> Result<Arc<dyn SectorCipher>> {
    let plan = ModePlan::new(options.spec)?;
    goes_with(options, &plan)?;
    let path = options.cpu.map_or_else(CpuPath::chosen, Ok)?;
    let keys = SplitKey::split(options.spec, &plan, options.integrity, options.key.as_bytes())?;
    let built = assemble_all(options, &plan, &keys, path);
    // Libraries expand keys on the stack before they move them to their memory.
    wipe_stack::<{ 64 << 10 }>();
    let cipher = built?;
    Ok(match options.integrity {
        Some(Integrity { tuple, .. }) if cipher.tag_size() == 0 => Arc::new(UnusedTuples { cipher, tuple }),
        _ => cipher,
    })
}

/// Checks the tuple's options against the mode.
fn goes_with(options: &BuildOptions<'_>, plan: &ModePlan) -> Result<()> {
    let spec = options.spec;
    let refused = |kernel: &str, why: String| Err(refuse(ErrorKind::Unsupported, kernel, spec, why));
    let aead = options.integrity.is_some_and(|integrity| integrity.kind == IntegrityKind::Aead);
    if aead && !spec.is_api_name() {
        return refused("Bad cipher specification", "authenticated modes are written as capi:..".into());
    }
    if aead != matches!(plan, ModePlan::Authenticated(_)) {
        let why = if aead { "the mode authenticates nothing" } else { "it needs integrity:N:aead" };
        return refused("Error allocating crypto tfm", why.into());
    }
    let Some(Integrity { bytes, tuple, .. }) = options.integrity else { return Ok(()) };
    if !(1..=MOST_BESIDE).contains(&bytes) {
        let why = format!("want 1 to {MOST_BESIDE} bytes for each sector, not {bytes}");
        return refused("Invalid integrity arguments", why);
    }
    if !(bytes..=MOST_TUPLE).contains(&tuple) {
        let why = format!("the device has {tuple} bytes for each sector, and {bytes} are asked for");
        return refused("Integrity profile tag size mismatch", why);
    }
    if spec.key_count() > 1 && spec.iv() == "random" {
        return refused("Error creating IV", "one key only goes with stored IVs here".into());
    }
    Ok(())
}

fn assemble_all(
    options: &BuildOptions<'_>,
    plan: &ModePlan,
    keys: &SplitKey<'_>,
    path: CpuPath,
) -> Result<Arc<dyn SectorCipher>> {
    if keys.each.len() == 1 || assemble::has_treatment(options.spec, plan) {
        return assemble::assemble(options, plan, path, keys.each[0], keys);
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
    Ok(ModePlan::new(spec)?.key_sizes())
}

/// The specification's tag and stored IV, at their full lengths.
///
/// # Errors
/// `Unsupported` for a cipher that is not in this build.
pub fn authentication(spec: &CipherSpec) -> Result<Authentication> {
    let plan = ModePlan::new(spec)?;
    let stored_iv = if plan.has_iv() && spec.iv() == "random" { plan.iv_width() } else { 0 };
    let (tag, mac_key) = match &plan {
        ModePlan::Authenticated(mode) => (mode.whole_tag(), mode.mac_key()),
        _ => (0, 0),
    };
    Ok(Authentication { tag, stored_iv, mac_key })
}

/// The weakness of a key, in words for a warning.
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
