//! How a volume key is cut: one key for each cipher, and what belongs to the IV generator.

use super::plan::{Chain, Plan};
use super::{list, refuse};
use crate::{CipherSpec, ErrorKind, Result};

/// A volume key, cut.
pub(super) struct Keys<'a> {
    /// The ciphers' keys; a power of two of them.
    pub(super) each: Vec<&'a [u8]>,
    /// The IV generator's part, at the end: TCW's seed and whitening, LMK's seed, Elephant's sector key.
    pub(super) extra: &'a [u8],
}

impl<'a> Keys<'a> {
    /// Subkey size = (key size - extra) / count.
    ///
    /// # Errors
    /// `KeySize`, in the kernel's words.
    pub(super) fn split(spec: &CipherSpec, plan: &Plan, key: &'a [u8]) -> Result<Self> {
        let count = spec.key_count() as usize;
        let bad = |why: String| refuse(ErrorKind::KeySize, "Error decoding and setting key", spec, why);
        let extra = match spec.iv() {
            _ if !plan.has_iv() => 0,
            "tcw" => plan.iv_width() + 16,
            // Version 3 has one key more, the seed.
            "lmk" if !key.len().is_multiple_of(count) => key.len() / (count + 1),
            "elephant" => key.len() / 2,
            _ => 0,
        };
        let Some(rest) = key.len().checked_sub(extra) else {
            return Err(bad(format!("{} bytes of key are less than {}'s own {extra}", key.len(), spec.iv())));
        };
        let (size, sizes) = (rest / count, plan.key_sizes());
        let fits = sizes.contains(&size) || matches!(plan, Plan::Arc4) && (1..=256).contains(&size);
        if !fits {
            let of = match count {
                1 => String::new(),
                n => format!(" for each of {n} keys"),
            };
            return Err(bad(format!("it takes a key of {} bytes{of}, not {size}", list(sizes))));
        }
        if matches!(plan, Plan::Block { chain: Chain::Xts, .. }) && !size.is_multiple_of(2) {
            return Err(bad(format!("an xts key is two keys, not {size} bytes")));
        }
        // The null cipher has a key of no bytes.
        let each = (0..count).map(|nth| &key[nth * size..(nth + 1) * size]).collect();
        Ok(Self { each, extra: &key[key.len() - extra..] })
    }
}
