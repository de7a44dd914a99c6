//! The block ciphers of this build: names, block sizes, key sizes, and implementations.

use aes::{Aes128, Aes192, Aes256};
use aria::{Aria128, Aria192, Aria256};
use blowfish::{Blowfish, BlowfishLE};
use camellia::{Camellia128, Camellia192, Camellia256};
use cast5::Cast5;
use cast6::Cast6;
use des::{Des, TdesEde3};
use serpent::Serpent;
use xtea::Xtea;

use crate::block::{AnyCipher, WideFirst, library};
use crate::kernel::{AesKey, Aria, Camellia, Cast6Key, Kuznyechik, SerpentKey, Sliced, Sm4, TwofishKey};
use crate::{CpuPath, Result};

/// A block cipher by name.
pub(super) struct BlockCipherKind {
    pub(super) name: &'static str,
    /// The key sizes in bytes, the preferred one last.
    pub(super) keys: &'static [usize],
    /// The sizes of two keys in one, for `xts`.
    pub(super) double: &'static [usize],
    /// The sizes with the 16 bytes of `lrw`.
    pub(super) lrw: &'static [usize],
    pub(super) make: BlockCipherBuilder,
}

/// The function that keys the cipher, with a key of one of its sizes.
pub(super) enum BlockCipherBuilder {
    Of8(fn(&[u8]) -> Result<AnyCipher<8>>),
    Of16(fn(&[u8], CpuPath) -> Result<AnyCipher<16>>),
}

/// Key sizes: alone, for `xts`, for `lrw`.
type KeySizes = (&'static [usize], &'static [usize], &'static [usize]);

const AES_LIKE: KeySizes = (&[16, 24, 32], &[32, 48, 64], &[32, 40, 48]);
const BLOWFISH: &[usize] = &[
    4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
    33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 32,
];
const CAST6: KeySizes = (&[16, 20, 24, 28, 32], &[32, 40, 48, 56, 64], &[32, 36, 40, 44, 48]);

static KINDS: [BlockCipherKind; 14] = [
    of16("aes", AES_LIKE, aes),
    of16("serpent", AES_LIKE, |key, path| match SerpentKey::new(path, key)? {
        Some(key) => Ok(Box::new(key)),
        None => library::<Serpent, 16>(key),
    }),
    of16("twofish", AES_LIKE, |key, path| Ok(Box::new(TwofishKey::new(path, key)?))),
    of16("camellia", AES_LIKE, |key, path| match (Sliced::<Camellia>::new(path, key)?, key.len()) {
        (Some(key), _) => Ok(Box::new(key)),
        (None, 16) => library::<Camellia128, 16>(key),
        (None, 24) => library::<Camellia192, 16>(key),
        (None, _) => library::<Camellia256, 16>(key),
    }),
    of16("aria", AES_LIKE, |key, path| match (Sliced::<Aria>::new(path, key)?, key.len()) {
        (Some(key), _) => Ok(Box::new(key)),
        (None, 16) => library::<Aria128, 16>(key),
        (None, 24) => library::<Aria192, 16>(key),
        (None, _) => library::<Aria256, 16>(key),
    }),
    of16("sm4", (&[16], &[32], &[32]), |key, path| match Sliced::<Sm4>::new(path, key)? {
        Some(key) => Ok(Box::new(key)),
        None => library::<sm4::Sm4, 16>(key),
    }),
    of16("cast6", CAST6, |key, path| match path {
        CpuPath::Portable => library::<Cast6, 16>(key),
        _ => Ok(Box::new(Cast6Key::new(key)?)),
    }),
    of16("kuznyechik", (&[32], &[64], &[48]), |key, path| {
        let narrow = library::<kuznyechik::Kuznyechik, 16>(key)?;
        Ok(match Sliced::<Kuznyechik>::widest(path, key)? {
            Some(wide) => Box::new(WideFirst { wide, narrow }),
            None => narrow,
        })
    }),
    of8("cast5", &[5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16], library::<Cast5, 8>),
    of8("blowfish", BLOWFISH, library::<Blowfish, 8>),
    // TrueCrypt's Blowfish reads the two words of a block in little-endian order. The kernel does
    // not have this variant.
    of8("blowfish_le", &[56], library::<BlowfishLE, 8>),
    of8("des", &[8], library::<Des, 8>),
    of8("des3_ede", &[24], library::<TdesEde3, 8>),
    of8("xtea", &[16], library::<Xtea, 8>),
];

/// Ciphers of dm-crypt that no maintained library has.
const OBSOLETE: [&str; 5] = ["anubis", "khazad", "seed", "tea", "xeta"];

const fn of16(
    name: &'static str,
    (keys, double, lrw): KeySizes,
    make: fn(&[u8], CpuPath) -> Result<AnyCipher<16>>,
) -> BlockCipherKind {
    BlockCipherKind { name, keys, double, lrw, make: BlockCipherBuilder::Of16(make) }
}

const fn of8(
    name: &'static str,
    keys: &'static [usize],
    make: fn(&[u8]) -> Result<AnyCipher<8>>,
) -> BlockCipherKind {
    BlockCipherKind { name, keys, double: &[], lrw: &[], make: BlockCipherBuilder::Of8(make) }
}

impl BlockCipherKind {
    /// Finds the cipher of this name, or returns the reason for its absence.
    pub(super) fn named(name: &str) -> std::result::Result<&'static Self, String> {
        KINDS.iter().find(|kind| kind.name == name).ok_or_else(|| {
            if OBSOLETE.contains(&name) {
                format!("{name} is obsolete, and no maintained library has it")
            } else {
                format!("there is no block cipher \"{name}\"")
            }
        })
    }

    /// The block size in bytes.
    pub(super) fn block(&self) -> usize {
        match self.make {
            BlockCipherBuilder::Of8(_) => 8,
            BlockCipherBuilder::Of16(_) => 16,
        }
    }

    /// The shortest and the longest key, between which ESSIV's digest must lie.
    pub(super) fn key_range(&self) -> (usize, usize) {
        self.keys.iter().fold((usize::MAX, 0), |(low, high), &n| (low.min(n), high.max(n)))
    }
}

/// AES on the path's vector code, else of the library.
pub(super) fn aes(key: &[u8], path: CpuPath) -> Result<AnyCipher<16>> {
    if let Some(key) = AesKey::new(path, key)? {
        return Ok(Box::new(key));
    }
    match key.len() {
        16 => library::<Aes128, 16>(key),
        24 => library::<Aes192, 16>(key),
        _ => library::<Aes256, 16>(key),
    }
}
