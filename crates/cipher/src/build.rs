//! From a specification and a key to a working cipher: the one list of what this crate can do.

use std::sync::Arc;

use aes::{Aes128, Aes192, Aes256};
use cipher::KeyInit;
use sha2::{Digest, Sha256};
use zeroize::Zeroize;

use crate::block::BlockCipher;
use crate::iv::{Essiv, Plain64};
use crate::mode::{Cbc, Null, Xts};
use crate::{CipherSpec, Error, ErrorKind, Key, Locked, Result, SectorCipher, SectorSize};

/// Makes the cipher that `spec` names.
///
/// # Errors
/// `Unsupported` for a cipher, mode or IV generator that is not in this build; `KeySize` when the key's length
/// does not fit; `Memory` when its round keys cannot be placed on locked pages.
pub fn build(spec: &CipherSpec, key: &Key, sector_size: SectorSize) -> Result<Arc<dyn SectorCipher>> {
    let sizes = key_sizes(spec)?;
    if !sizes.contains(&key.len()) {
        return Err(Error::new(
            ErrorKind::KeySize,
            format!("{spec} takes a key of {} bytes, not {}", list(sizes), key.len()),
        ));
    }
    let (key, half) = (key.as_bytes(), key.len() / 2);
    match (spec.cipher(), spec.chain(), spec.iv(), key.len()) {
        ("cipher_null", ..) => Ok(Arc::new(Null { sector_size })),
        ("aes", "xts", "plain64", 32) => xts::<Aes128>(key.split_at(half), sector_size),
        ("aes", "xts", "plain64", 48) => xts::<Aes192>(key.split_at(half), sector_size),
        ("aes", "xts", "plain64", 64) => xts::<Aes256>(key.split_at(half), sector_size),
        ("aes", "cbc", "essiv", 16) => cbc_essiv::<Aes128>(key, sector_size),
        ("aes", "cbc", "essiv", 24) => cbc_essiv::<Aes192>(key, sector_size),
        ("aes", "cbc", "essiv", 32) => cbc_essiv::<Aes256>(key, sector_size),
        _ => Err(unsupported(spec)),
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

fn xts<C: BlockCipher + KeyInit>(
    (data, tweak): (&[u8], &[u8]),
    sector_size: SectorSize,
) -> Result<Arc<dyn SectorCipher>> {
    let mode = Xts { data: keyed::<C>(data)?, tweak: keyed::<C>(tweak)?, iv: Plain64, sector_size };
    Ok(Arc::new(OnLockedPages(Locked::new(mode)?)))
}

fn cbc_essiv<C: BlockCipher + KeyInit>(key: &[u8], sector_size: SectorSize) -> Result<Arc<dyn SectorCipher>> {
    let mut salt = Sha256::digest(key);
    let iv = Essiv { salted: keyed::<Aes256>(&salt)? };
    salt.zeroize();
    let mode = Cbc { data: keyed::<C>(key)?, iv, sector_size };
    Ok(Arc::new(OnLockedPages(Locked::new(mode)?)))
}

fn keyed<C: KeyInit>(key: &[u8]) -> Result<C> {
    C::new_from_slice(key)
        .map_err(|e| Error::new(ErrorKind::KeySize, format!("{} bytes of key", key.len())).with_source(e))
}

/// Round keys are as secret as the key they come from.
struct OnLockedPages<T>(Locked<T>);

impl<T: SectorCipher> SectorCipher for OnLockedPages<T> {
    fn sector_size(&self) -> SectorSize {
        self.0.sector_size()
    }

    fn encrypt(&self, first: u64, data: crate::InOutBuf<'_, '_, u8>) {
        self.0.encrypt(first, data);
    }

    fn decrypt(&self, first: u64, data: crate::InOutBuf<'_, '_, u8>) {
        self.0.decrypt(first, data);
    }

    fn is_null(&self) -> bool {
        self.0.is_null()
    }
}
