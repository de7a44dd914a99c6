//! Hash functions from libraries, by their names in the kernel's crypto API.

use std::marker::PhantomData;
use std::sync::Arc;

use digest::{Digest, KeyInit, Mac};
use underseal_cipher::BlockHmac;

use super::{LARGEST, bad_key};
use crate::{Error, ErrorKind, Result};

/// A hash or MAC that any thread may use.
pub(super) trait Function: Send + Sync {
    fn size(&self) -> usize;

    /// Hashes the parts into `out`, which has the length [`Function::size`].
    fn digest(&self, parts: &[&[u8]], out: &mut [u8]);

    /// Calls `each` with the number of each block of `size` bytes in `data`, and its hash over the
    /// salt, le64(its first sector) and the block.
    fn digest_blocks(
        &self,
        salt: &[u8],
        sector: u64,
        data: &[u8],
        size: usize,
        each: &mut dyn FnMut(usize, &[u8]),
    ) {
        let mut out = [0; LARGEST];
        let out = &mut out[..self.size()];
        let sectors = (sector..).step_by(size / 512);
        for ((nth, block), sector) in data.chunks_exact(size).enumerate().zip(sectors) {
            self.digest(&[salt, &sector.to_le_bytes(), block], out);
            each(nth, out);
        }
    }
}

/// Calls `$with!` with the type of the hash of this name, and with its kind of HMAC.
macro_rules! by_name {
    ($name:expr, $with:ident) => {
        match $name {
            "md5" => $with!(md5::Md5, hmac::Hmac),
            "rmd160" => $with!(ripemd::Ripemd160, hmac::Hmac),
            "sha1" => $with!(sha1::Sha1, hmac::Hmac),
            "sha224" => $with!(sha2::Sha224, hmac::Hmac),
            "sha256" => $with!(sha2::Sha256, hmac::Hmac),
            "sha384" => $with!(sha2::Sha384, hmac::Hmac),
            "sha512" => $with!(sha2::Sha512, hmac::Hmac),
            "sm3" => $with!(sm3::Sm3, hmac::Hmac),
            "sha3-224" => $with!(sha3::Sha3_224, hmac::SimpleHmac),
            "sha3-256" => $with!(sha3::Sha3_256, hmac::SimpleHmac),
            "sha3-384" => $with!(sha3::Sha3_384, hmac::SimpleHmac),
            "sha3-512" => $with!(sha3::Sha3_512, hmac::SimpleHmac),
            "blake2b-256" => $with!(blake2::Blake2b256, hmac::SimpleHmac),
            "blake2b-512" => $with!(blake2::Blake2b512, hmac::SimpleHmac),
            "blake2s-256" => $with!(blake2::Blake2s256, hmac::SimpleHmac),
            _ => None,
        }
    };
}

/// The hash of this name; `None` for an unknown name.
pub(super) fn hash(name: &str, key: Option<&[u8]>) -> Result<Option<Arc<dyn Function>>> {
    macro_rules! plain {
        ($hash:ty, $hmac:path) => {
            Some(Arc::new(Plain::<$hash>(PhantomData)) as Arc<dyn Function>)
        };
    }
    // Only BLAKE2 takes a key itself.
    let keyed: Option<Result<Arc<dyn Function>>> = match (name, key) {
        (_, None) => None,
        ("blake2b-256", Some(key)) => Some(keyed::<blake2::Blake2bMac<digest::consts::U32>>(name, key)),
        ("blake2b-512", Some(key)) => Some(keyed::<blake2::Blake2bMac512>(name, key)),
        ("blake2s-256", Some(key)) => Some(keyed::<blake2::Blake2sMac256>(name, key)),
        (_, Some(_)) => Some(Err(bad_key(name, "takes no key"))),
    };
    if let Some(keyed) = keyed {
        return keyed.map(Some);
    }
    Ok(match name {
        "crc32c" => Some(Arc::new(Crc32c)),
        "crc32" => Some(Arc::new(Crc32)),
        "xxhash64" => Some(Arc::new(Xxhash64)),
        "poly1305" => Some(Arc::new(Poly1305)),
        _ => by_name!(name, plain),
    })
}

/// HMAC over the hash of this name; `None` for an unknown name.
pub(super) fn hmac(name: &str, key: &[u8]) -> Result<Option<Arc<dyn Function>>> {
    macro_rules! hmac {
        ($hash:ty, $hmac:path) => {{
            use $hmac as Over;
            Some(keyed::<Over<$hash>>(name, key))
        }};
    }
    let library = by_name!(name, hmac).transpose()?;
    let Some(library) = library.as_ref().filter(|_| name == "sha256").cloned() else { return Ok(library) };
    let no_memory =
        |e| Error::new(ErrorKind::Memory, "no memory for the states of HMAC-SHA256").with_source(e);
    let blocks = BlockHmac::new(key).map_err(no_memory)?;
    Ok(Some(Arc::new(HmacSha256 { library, blocks })))
}

/// HMAC-SHA256 of many blocks in one call.
struct HmacSha256 {
    library: Arc<dyn Function>,
    blocks: BlockHmac,
}

impl Function for HmacSha256 {
    fn size(&self) -> usize {
        self.library.size()
    }

    fn digest(&self, parts: &[&[u8]], out: &mut [u8]) {
        self.library.digest(parts, out);
    }

    fn digest_blocks(
        &self,
        salt: &[u8],
        sector: u64,
        data: &[u8],
        size: usize,
        each: &mut dyn FnMut(usize, &[u8]),
    ) {
        self.blocks.sums(salt, sector, data, size, |nth, sum| each(nth, sum));
    }
}

fn keyed<M: Mac + KeyInit + Clone + Send + Sync + 'static>(
    name: &str,
    key: &[u8],
) -> Result<Arc<dyn Function>> {
    let mac = <M as KeyInit>::new_from_slice(key)
        .map_err(|_| bad_key(name, &format!("takes no key of {} bytes", key.len())))?;
    Ok(Arc::new(Keyed(mac)))
}

struct Plain<D>(PhantomData<fn() -> D>);

impl<D: Digest> Function for Plain<D> {
    fn size(&self) -> usize {
        <D as Digest>::output_size()
    }

    fn digest(&self, parts: &[&[u8]], out: &mut [u8]) {
        let mut hash = D::new();
        parts.iter().for_each(|part| hash.update(part));
        out.copy_from_slice(&hash.finalize());
    }
}

/// A MAC with its key: each use continues a copy.
struct Keyed<M>(M);

impl<M: Mac + Clone + Send + Sync> Function for Keyed<M> {
    fn size(&self) -> usize {
        M::output_size()
    }

    fn digest(&self, parts: &[&[u8]], out: &mut [u8]) {
        let mut mac = self.0.clone();
        parts.iter().for_each(|part| mac.update(part));
        out.copy_from_slice(&mac.finalize().into_bytes());
    }
}

struct Crc32c;

impl Function for Crc32c {
    fn size(&self) -> usize {
        4
    }

    fn digest(&self, parts: &[&[u8]], out: &mut [u8]) {
        let crc = parts.iter().fold(0, |crc, part| crc32c::crc32c_append(crc, part));
        out.copy_from_slice(&crc.to_le_bytes());
    }
}

/// The kernel's variant begins with zero and inverts nothing.
struct Crc32;

impl Function for Crc32 {
    fn size(&self) -> usize {
        4
    }

    fn digest(&self, parts: &[&[u8]], out: &mut [u8]) {
        // The library inverts the initial and the final value.
        let mut crc = crc32fast::Hasher::new_with_initial(!0);
        parts.iter().for_each(|part| crc.update(part));
        out.copy_from_slice(&(!crc.finalize()).to_le_bytes());
    }
}

struct Xxhash64;

impl Function for Xxhash64 {
    fn size(&self) -> usize {
        8
    }

    fn digest(&self, parts: &[&[u8]], out: &mut [u8]) {
        use std::hash::Hasher;
        let mut hash = twox_hash::XxHash64::with_seed(0);
        parts.iter().for_each(|part| hash.write(part));
        out.copy_from_slice(&hash.finish().to_le_bytes());
    }
}

/// The kernel's variant takes the first 32 bytes of the message as its key.
struct Poly1305;

impl Function for Poly1305 {
    fn size(&self) -> usize {
        16
    }

    fn digest(&self, parts: &[&[u8]], out: &mut [u8]) {
        let mut message = parts.concat();
        message.resize(message.len().max(poly1305::KEY_SIZE), 0);
        let (key, message) = message.split_at(poly1305::KEY_SIZE);
        let key: [u8; poly1305::KEY_SIZE] = std::array::from_fn(|i| key[i]);
        let mac = poly1305::Poly1305::new(&key.into());
        out.copy_from_slice(&mac.compute_unpadded(message));
    }
}
