//! The ciphers of eCryptfs: extents of a file, and single blocks for wrapped keys and for names.

use std::sync::Arc;

use super::ciphers::{BlockCipherBuilder, BlockCipherKind};
use super::list;
use crate::block::{AnyCipher, BlockCipher};
use crate::iv::ExtentIv;
use crate::kernel::AesKey;
use crate::mode::{AesCbc, Cbc, ChainedSectors, SectorSplit};
use crate::wipe::wipe_stack;
use crate::{CpuPath, Error, ErrorKind, Key, Result, SectorCipher, SectorSize};

/// Makes the cipher of a file's extents: CBC over 4096 bytes with eCryptfs's IVs, which number
/// extents and not sectors. A run's first sector is eight times its first extent.
///
/// # Errors
/// `Unsupported` for a cipher that is not in this build, or a path that this processor cannot run;
/// `KeySize`; `Memory`.
pub fn build_extents(cipher: &str, key: &Key, cpu: Option<CpuPath>) -> Result<Arc<dyn SectorCipher>> {
    let path = cpu.map_or_else(CpuPath::chosen, Ok)?;
    let (kind, key) = (find(cipher, key.as_bytes())?, key.as_bytes());
    let layout = SectorSplit { size: SectorSize::S4096, large: true };
    let iv = ExtentIv::new(key)?;
    let built: Arc<dyn SectorCipher> = match kind.make {
        BlockCipherBuilder::Of8(make) => {
            Arc::new(ChainedSectors { mode: Cbc { data: make(key)? }, iv, layout })
        }
        BlockCipherBuilder::Of16(make) => {
            let aes = if kind.name == "aes" { AesKey::new(path, key)? } else { None };
            match aes {
                Some(data) if cpu.is_none() && !CpuPath::is_forced() => {
                    let data = data.for_cbc(layout.size);
                    Arc::new(ChainedSectors { mode: AesCbc { data }, iv, layout })
                }
                Some(data) => Arc::new(ChainedSectors { mode: AesCbc { data }, iv, layout }),
                None => Arc::new(ChainedSectors { mode: Cbc { data: make(key, path)? }, iv, layout }),
            }
        }
    };
    wipe_stack::<{ 64 << 10 }>();
    Ok(built)
}

/// A block cipher over independent blocks (ECB): for wrapped keys and short records, never for
/// data.
pub struct EcbCipher(EcbDispatch);

enum EcbDispatch {
    Eight(AnyCipher<8>),
    Sixteen(AnyCipher<16>),
}

impl EcbCipher {
    /// Keys a block cipher.
    ///
    /// # Errors
    /// `Unsupported` for a cipher that is not in this build; `KeySize`; `Memory`.
    pub fn new(cipher: &str, key: &[u8]) -> Result<Self> {
        let made = match find(cipher, key)?.make {
            BlockCipherBuilder::Of8(make) => EcbDispatch::Eight(make(key)?),
            BlockCipherBuilder::Of16(make) => EcbDispatch::Sixteen(make(key, CpuPath::chosen()?)?),
        };
        wipe_stack::<{ 16 << 10 }>();
        Ok(Self(made))
    }

    /// The block size in bytes.
    pub fn size(&self) -> usize {
        match self.0 {
            EcbDispatch::Eight(_) => 8,
            EcbDispatch::Sixteen(_) => 16,
        }
    }

    /// Encrypts in place.
    ///
    /// # Panics
    /// When the data is not a whole number of blocks.
    pub fn encrypt(&self, data: &mut [u8]) {
        match &self.0 {
            EcbDispatch::Eight(cipher) => cipher.encrypt(whole(data)),
            EcbDispatch::Sixteen(cipher) => cipher.encrypt(whole(data)),
        }
    }

    /// Decrypts in place.
    ///
    /// # Panics
    /// When the data is not a whole number of blocks.
    pub fn decrypt(&self, data: &mut [u8]) {
        match &self.0 {
            EcbDispatch::Eight(cipher) => cipher.decrypt(whole(data)),
            EcbDispatch::Sixteen(cipher) => cipher.decrypt(whole(data)),
        }
    }
}

impl std::fmt::Debug for EcbCipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[redacted]")
    }
}

fn whole<const B: usize>(data: &mut [u8]) -> &mut [[u8; B]] {
    let bytes = data.len();
    let (blocks, rest) = data.as_chunks_mut();
    assert!(rest.is_empty(), "{bytes} bytes are no blocks of {B}");
    blocks
}

fn find(cipher: &str, key: &[u8]) -> Result<&'static BlockCipherKind> {
    let kind = BlockCipherKind::named(cipher).map_err(|why| Error::new(ErrorKind::Unsupported, why))?;
    if kind.keys.contains(&key.len()) {
        return Ok(kind);
    }
    let why = format!("{cipher} takes a key of {} bytes, not {}", list(kind.keys), key.len());
    Err(Error::new(ErrorKind::KeySize, why))
}
