//! From a specification and a key to a working cipher: the one list of what this crate can do.

use std::sync::Arc;

use aes::{Aes128, Aes192, Aes256};
use sha2::{Digest, Sha256};
use zeroize::Zeroize;

use crate::block::{AnyCipher, library};
use crate::iv::{Encrypted, EncryptedNumbers, IvGenerator, Plain64};
use crate::kernel::AesKey;
use crate::mode::{AesCbc, AesXts, Cbc, Mode, Null, Sectors, Xts};
use crate::{CipherSpec, CpuPath, Error, ErrorKind, Key, Result, SectorCipher, SectorSize};

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
    /// The code to run; the processor's best, or what `UNDERSEAL_CPU` says, when none is named.
    pub cpu: Option<CpuPath>,
}

/// Makes the cipher that `spec` names, with IVs made of 512-byte sector numbers.
///
/// # Errors
/// As [`build_with`].
pub fn build(spec: &CipherSpec, key: &Key, sector_size: SectorSize) -> Result<Arc<dyn SectorCipher>> {
    build_with(&BuildOptions { spec, key, sector_size, iv_large_sectors: false, cpu: None })
}

/// Makes the cipher that the options name.
///
/// # Errors
/// `Unsupported` for a cipher, mode or IV generator that is not in this build, or a path that this processor cannot
/// run; `KeySize` when the key's length does not fit; `Memory` when its round keys cannot be placed on locked pages.
pub fn build_with(options: &BuildOptions<'_>) -> Result<Arc<dyn SectorCipher>> {
    let (spec, key) = (options.spec, options.key);
    let sizes = key_sizes(spec)?;
    if !sizes.contains(&key.len()) {
        return Err(Error::new(
            ErrorKind::KeySize,
            format!("{spec} takes a key of {} bytes, not {}", list(sizes), key.len()),
        ));
    }
    let path = options.cpu.map_or_else(CpuPath::chosen, Ok)?;
    let (key, half) = (key.as_bytes(), key.len() / 2);
    match (spec.cipher(), spec.chain(), spec.iv()) {
        ("cipher_null", ..) => Ok(Arc::new(Null { sector_size: options.sector_size })),
        ("aes", "xts", "plain64") => {
            let (data, tweak) = key.split_at(half);
            match (AesKey::new(path, data)?, AesKey::new(path, tweak)?) {
                (Some(data), Some(by)) => Ok(join(options, AesXts { data }, EncryptedNumbers { by })),
                _ => Ok(join(options, Xts { data: aes(data)? }, Encrypted { iv: Plain64, by: aes(tweak)? })),
            }
        }
        ("aes", "cbc", "essiv") => {
            let mut salt = Sha256::digest(key);
            let keys = (AesKey::new(path, key)?, AesKey::new(path, &salt)?);
            let cipher = match keys {
                (Some(data), Some(by)) => join(options, AesCbc { data }, EncryptedNumbers { by }),
                _ => join(options, Cbc { data: aes(key)? }, Encrypted { iv: Plain64, by: aes(&salt)? }),
            };
            salt.zeroize();
            Ok(cipher)
        }
        _ => Err(unsupported(spec)),
    }
}

fn join<const W: usize>(
    options: &BuildOptions<'_>,
    mode: impl Mode<W> + 'static,
    iv: impl IvGenerator<W> + 'static,
) -> Arc<dyn SectorCipher> {
    Arc::new(Sectors { mode, iv, size: options.sector_size, large: options.iv_large_sectors })
}

fn aes(key: &[u8]) -> Result<AnyCipher<16>> {
    match key.len() {
        16 => library::<Aes128, 16>(key),
        24 => library::<Aes192, 16>(key),
        _ => library::<Aes256, 16>(key),
    }
}

/// The key sizes that a cipher takes, in bytes, the preferred one last.
///
/// # Errors
/// `Unsupported` for a cipher that is not in this build.
pub fn key_sizes(spec: &CipherSpec) -> Result<&'static [usize]> {
    match (spec.cipher(), spec.chain(), spec.iv(), spec.iv_option()) {
        ("cipher_null", ..) => Ok(&[0, 16, 24, 32, 48, 64]),
        ("aes", "xts", "plain64", None) => Ok(&[32, 48, 64]),
        ("aes", "cbc", "essiv", Some("sha256")) => Ok(&[16, 24, 32]),
        _ => Err(unsupported(spec)),
    }
}

fn unsupported(spec: &CipherSpec) -> Error {
    Error::new(ErrorKind::Unsupported, format!("cipher {spec} is not supported by this build"))
}

fn list(sizes: &[usize]) -> String {
    sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}
