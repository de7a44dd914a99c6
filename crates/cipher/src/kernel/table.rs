//! The function table of each CPU path, for processors that have the path.

use super::schedule::RoundKey;

/// Blocks on their own: keys, source, destination, count of blocks.
pub(super) type EcbFn = unsafe fn(*const RoundKey, *const u8, *mut u8, usize);
/// Numbers: keys, the first, the logarithm of their distance, destination, count of blocks.
pub(super) type NumbersFn = unsafe fn(*const RoundKey, u64, u32, *mut u8, usize);
/// Sectors: keys, IVs or encrypted tweaks, count of sectors, bytes in each, source, destination.
pub(super) type SectorsFn = unsafe fn(*const RoundKey, *const u8, usize, usize, *const u8, *mut u8);

/// AES-GCM over a sector: keys, and the sector's memory.
pub(super) type GcmFn = unsafe fn(*const RoundKey, &super::gcm::GcmSector);
/// Powers of GCM's H: H, and where to.
pub(super) type PowersFn = unsafe fn(*const u8, *mut u8);
/// Expands HCTR2's hash key from hbar.
pub(super) type Hctr2ExpandFn = unsafe fn(&[u8; 16], &mut super::hctr2::PolyvalKey);
/// HCTR2's hash of a sector: key, tweak, sector, its bytes, the tweak's part, the hash.
pub(super) type Hctr2HashFn =
    unsafe fn(&super::hctr2::PolyvalKey, &[u8; 32], *const u8, usize, &mut [u8; 16], &mut [u8; 16]);
/// HCTR2's stream over a sector, and the hash of the result.
pub(super) type Hctr2StreamFn =
    unsafe fn(*const RoundKey, &super::hctr2::PolyvalKey, &super::hctr2::Hctr2Sector<'_>, &mut [u8; 16]);
/// AEGIS-128 over a run of sectors.
pub(super) type AegisFn = unsafe fn(&super::aegis::AegisSectors);

/// The functions of one CPU path for one number of rounds.
pub(crate) struct Functions {
    /// Whether they may leave round keys on the stack.
    pub(super) spills: bool,
    pub(super) ecb_encrypt: EcbFn,
    pub(super) ecb_decrypt: EcbFn,
    pub(super) encrypt_numbers: NumbersFn,
    pub(super) xts_encrypt: SectorsFn,
    pub(super) xts_decrypt: SectorsFn,
    /// The functions for requests of at least this many bytes, which use more stack.
    pub(super) xts_long: Option<(usize, [SectorsFn; 2])>,
    pub(super) cbc_encrypt: SectorsFn,
    pub(super) cbc_decrypt: SectorsFn,
    pub(super) gcm_powers: PowersFn,
    pub(super) gcm_encrypt: GcmFn,
    pub(super) gcm_decrypt: GcmFn,
    pub(super) hctr2_expand: Hctr2ExpandFn,
    pub(super) hctr2_hash: Hctr2HashFn,
    pub(super) hctr2_stream: Hctr2StreamFn,
}

impl Functions {
    /// XTS for calls of `len` bytes, encryption first, and whether it reaches further down the
    /// stack.
    pub(super) fn xts(&self, len: usize) -> ([SectorsFn; 2], bool) {
        match self.xts_long {
            Some((from, both)) if len >= from => (both, true),
            _ => ([self.xts_encrypt, self.xts_decrypt], false),
        }
    }
}

/// The functions for 10, 12 and 14 rounds.
pub(super) type FunctionTable = [Functions; 3];

/// Compiles the algorithms for one vector, with the features that its instructions need.
macro_rules! entry_points {
    ($vector:ty, $features:literal) => {
        pub(super) static TABLE: super::table::FunctionTable =
            [entry::functions::<10>(), entry::functions::<12>(), entry::functions::<14>()];

        /// Encryption and decryption.
        pub(super) static AEGIS: [super::table::AegisFn; 2] = [entry::aegis::<true>, entry::aegis::<false>];

        /// Each function's contract is that of the algorithm it compiles; the features are its own.
        mod entry {
            use super::super::schedule::RoundKey;
            use super::super::table::Functions;
            use super::super::{aegis, cbc, ecb, gcm, hctr2, xts};
            type V = $vector;

            pub(super) const fn functions<const R: usize>() -> Functions {
                Functions {
                    spills: <V as super::super::vector::Vector>::SPILLS,
                    ecb_encrypt: ecb_encrypt::<R>,
                    ecb_decrypt: ecb_decrypt::<R>,
                    encrypt_numbers: encrypt_numbers::<R>,
                    xts_encrypt: xts_encrypt::<R, false>,
                    xts_decrypt: xts_decrypt::<R, false>,
                    xts_long: match xts::makes_tweaks_ahead_from::<V, R>() {
                        0 | usize::MAX => None,
                        from => Some((from, [xts_encrypt::<R, true>, xts_decrypt::<R, true>])),
                    },
                    cbc_encrypt: cbc_encrypt::<R>,
                    cbc_decrypt: cbc_decrypt::<R>,
                    gcm_powers,
                    gcm_encrypt: gcm::<R, true>,
                    gcm_decrypt: gcm::<R, false>,
                    hctr2_expand,
                    hctr2_hash,
                    hctr2_stream: hctr2_stream::<R>,
                }
            }

            #[target_feature(enable = $features)]
            pub(super) unsafe fn aegis<const ENCRYPT: bool>(raw: &aegis::AegisSectors) {
                // SAFETY: passed on.
                unsafe { aegis::aegis::<V, ENCRYPT>(raw) }
            }

            #[target_feature(enable = $features)]
            unsafe fn gcm_powers(h: *const u8, powers: *mut u8) {
                // SAFETY: passed on.
                unsafe { gcm::powers::<V>(h, powers) }
            }

            #[target_feature(enable = $features)]
            unsafe fn gcm<const R: usize, const ENCRYPT: bool>(keys: *const RoundKey, raw: &gcm::GcmSector) {
                // SAFETY: passed on.
                unsafe { gcm::gcm::<V, R, ENCRYPT>(keys, raw) }
            }

            #[target_feature(enable = $features)]
            unsafe fn hctr2_expand(hbar: &[u8; 16], key: &mut hctr2::PolyvalKey) {
                // SAFETY: passed on.
                unsafe { hctr2::expand::<V>(hbar, key) }
            }

            #[target_feature(enable = $features)]
            unsafe fn hctr2_hash(
                key: &hctr2::PolyvalKey,
                tweak: &[u8; 32],
                src: *const u8,
                bytes: usize,
                head: &mut [u8; 16],
                sum: &mut [u8; 16],
            ) {
                // SAFETY: passed on.
                unsafe { hctr2::hash::<V>(key, tweak, src, bytes, head, sum) }
            }

            #[target_feature(enable = $features)]
            unsafe fn hctr2_stream<const R: usize>(
                keys: *const RoundKey,
                key: &hctr2::PolyvalKey,
                raw: &hctr2::Hctr2Sector<'_>,
                sum: &mut [u8; 16],
            ) {
                // SAFETY: passed on.
                unsafe { hctr2::stream::<V, R>(keys, key, raw, sum) }
            }

            #[target_feature(enable = $features)]
            unsafe fn encrypt_numbers<const R: usize>(
                k: *const RoundKey,
                first: u64,
                shift: u32,
                dst: *mut u8,
                blocks: usize,
            ) {
                // SAFETY: passed on.
                unsafe { ecb::numbers::<V, R>(k, first, shift, dst, blocks) }
            }

            super::super::table::entry_points!(@ecb $features, ecb_encrypt, true);
            super::super::table::entry_points!(@ecb $features, ecb_decrypt, false);
            super::super::table::entry_points!(@xts $features, xts_encrypt, true);
            super::super::table::entry_points!(@xts $features, xts_decrypt, false);
            super::super::table::entry_points!(@cbc $features, cbc_encrypt);
            super::super::table::entry_points!(@cbc $features, cbc_decrypt);
        }
    };
    (@ecb $features:literal, $name:ident, $encrypt:literal) => {
        #[target_feature(enable = $features)]
        unsafe fn $name<const R: usize>(k: *const RoundKey, src: *const u8, dst: *mut u8, blocks: usize) {
            // SAFETY: passed on.
            unsafe { ecb::ecb::<V, R, $encrypt>(k, src, dst, blocks) }
        }
    };
    (@xts $features:literal, $name:ident, $encrypt:literal) => {
        #[target_feature(enable = $features)]
        unsafe fn $name<const R: usize, const LONG: bool>(
            k: *const RoundKey,
            t: *const u8,
            n: usize,
            bytes: usize,
            src: *const u8,
            dst: *mut u8,
        ) {
            // SAFETY: passed on.
            unsafe { xts::xts::<V, R, $encrypt, LONG>(k, t, n, bytes, src, dst) }
        }
    };
    (@cbc $features:literal, $name:ident) => {
        #[target_feature(enable = $features)]
        unsafe fn $name<const R: usize>(
            k: *const RoundKey,
            ivs: *const u8,
            n: usize,
            bytes: usize,
            src: *const u8,
            dst: *mut u8,
        ) {
            // SAFETY: passed on.
            unsafe { cbc::$name::<V, R>(k, ivs, n, bytes, src, dst) }
        }
    };
}
pub(super) use entry_points;
