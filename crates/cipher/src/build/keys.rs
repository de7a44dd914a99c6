//! The parts of a volume key: a key for each cipher, and the IV generator's part.

use super::authenticated::AuthenticatedMode;
use super::plan::{ChainMode, ModePlan};
use super::{list, refuse};
use crate::{CipherSpec, ErrorKind, Integrity, Result};

/// A volume key, split.
pub(super) struct SplitKey<'a> {
    /// The ciphers' keys; their number is a power of two.
    pub(super) each: Vec<&'a [u8]>,
    /// The IV generator's part, at the end: TCW's seed and whitening, LMK's seed, Elephant's sector
    /// key; or the MAC's key.
    pub(super) extra: &'a [u8],
}

impl<'a> SplitKey<'a> {
    /// Splits a key. Subkey size = (key size - extra) / count. A MAC's key has its digest's size,
    /// or the size of `integrity`.
    ///
    /// Returns `KeySize` in the kernel's words.
    pub(super) fn split(
        spec: &CipherSpec,
        plan: &ModePlan,
        integrity: Option<Integrity>,
        key: &'a [u8],
    ) -> Result<Self> {
        let count = spec.key_count() as usize;
        let bad = |why: String| refuse(ErrorKind::KeySize, "Error decoding and setting key", spec, why);
        let asked = integrity.and_then(|integrity| integrity.key_size);
        let extra = match (plan, spec.iv()) {
            (ModePlan::Authenticated(mode), _) => match (mode.mac_key(), asked) {
                (0, Some(_)) => return Err(bad("integrity_key_size is for the MAC of authenc".into())),
                (usual, asked) => asked.unwrap_or(usual),
            },
            _ if !plan.has_iv() => 0,
            (_, "tcw") => plan.iv_width() + 16,
            // Version 3 has a key more, the seed.
            (_, "lmk") if !key.len().is_multiple_of(count) => key.len() / (count + 1),
            (_, "elephant") => key.len() / 2,
            _ => 0,
        };
        let Some(rest) = key.len().checked_sub(extra) else {
            let of = if spec.is_authenticated() { "the MAC" } else { spec.iv() };
            return Err(bad(format!("{} bytes of key are less than {of}'s own {extra}", key.len())));
        };
        let (size, sizes) = (rest / count, plan.key_sizes());
        let fits = sizes.contains(&size) || matches!(plan, ModePlan::Arc4) && (1..=256).contains(&size);
        if !fits {
            let of = match count {
                1 => String::new(),
                n => format!(" for each of {n} keys"),
            };
            return Err(bad(format!("it takes a key of {} bytes{of}, not {size}", list(sizes))));
        }
        let of = match plan {
            ModePlan::Authenticated(AuthenticatedMode::Authenc { mode, .. }) => mode,
            plan => plan,
        };
        if matches!(of, ModePlan::Block { chain: ChainMode::Xts, .. }) && !size.is_multiple_of(2) {
            return Err(bad(format!("an xts key is two keys, not {size} bytes")));
        }
        // The null cipher has a key without bytes.
        let each = (0..count).map(|nth| &key[nth * size..(nth + 1) * size]).collect();
        Ok(Self { each, extra: &key[key.len() - extra..] })
    }
}
