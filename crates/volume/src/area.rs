//! A keyslot's area on disk: a split key, encrypted in 512-byte sectors whose IVs count from 0.

use underseal_cipher::{CipherSpec, InOutBuf, Key, SectorSize};

use crate::{Error, ErrorKind, Hash, ReadAt, Result, af, storage};

/// How and where a keyslot keeps its key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyArea<'a> {
    pub(crate) spec: &'a CipherSpec,
    pub(crate) offset: u64,
    pub(crate) hash: Hash,
}

impl KeyArea<'_> {
    /// Reads the key of `len` bytes; a wrong `wrapping` key gives a wrong one.
    pub(crate) fn read(&self, from: &(impl ReadAt + ?Sized), wrapping: &Key, len: usize) -> Result<Key> {
        let cipher = build(self.spec, wrapping, SectorSize::S512)?;
        let mut stripes = crate::kdf::new_key(af::split_len(len))?;
        storage::read_into(from, self.offset, stripes.as_mut_bytes())?;
        cipher.decrypt(0, InOutBuf::from(stripes.as_mut_bytes()));
        af::merge(stripes.as_bytes(), len, self.hash)
    }
}

/// An area's bytes: `key`, split and encrypted.
pub(crate) fn seal(spec: &CipherSpec, hash: Hash, wrapping: &Key, key: &Key) -> Result<Key> {
    let cipher = build(spec, wrapping, SectorSize::S512)?;
    let mut stripes = af::split(key, hash)?;
    cipher.encrypt(0, InOutBuf::from(stripes.as_mut_bytes()));
    Ok(stripes)
}

/// [`underseal_cipher::build`], with this crate's error.
pub(crate) fn build(
    spec: &CipherSpec,
    key: &Key,
    sector_size: SectorSize,
) -> Result<std::sync::Arc<dyn underseal_cipher::SectorCipher>> {
    underseal_cipher::build(spec, key, sector_size).map_err(|e| cipher_error(spec, e))
}

/// The cipher that changes nothing.
pub(crate) fn null(sector_size: SectorSize) -> Result<std::sync::Arc<dyn underseal_cipher::SectorCipher>> {
    let spec: CipherSpec = "cipher_null-ecb".parse().expect("a constant that parses");
    let none = Key::zeroed(0).map_err(|e| cipher_error(&spec, e))?;
    build(&spec, &none, sector_size)
}

/// What [`build`] made a cipher from, but for the key.
pub(crate) fn recipe(spec: &CipherSpec, key: &Key, sector_size: SectorSize) -> crate::Recipe {
    crate::Recipe { cipher: spec.clone(), sector_size, iv_large_sectors: false, key_size: key.len() }
}

/// A cipher's refusal, in this crate's error.
pub(crate) fn cipher_error(spec: &CipherSpec, e: underseal_cipher::Error) -> Error {
    use underseal_cipher::ErrorKind as Cipher;
    let kind = match e.kind() {
        Cipher::Unsupported | Cipher::BadSpec => ErrorKind::Unsupported,
        Cipher::Memory => ErrorKind::Memory,
        _ => ErrorKind::BadHeader,
    };
    Error::new(kind, format!("cannot use cipher {spec}")).with_source(e)
}
