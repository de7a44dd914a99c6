//! Encryption of the journal: `ctr(aes)` and other streams mask it, `cbc(aes)` encrypts each
//! section as one message.

use std::fmt;
use std::sync::Arc;

use cipher::array::Array;
use cipher::{
    BlockCipherDecrypt, BlockCipherEncrypt, BlockModeDecrypt, BlockModeEncrypt, BlockSizeUser, InnerIvInit,
    KeyInit, KeyIvInit, StreamCipher, StreamCipherError, StreamCipherSeek, consts::U16,
};
use underseal_cipher::Key;
use zeroize::Zeroizing;

use super::ids::CommitIds;
use crate::hash::printable;
use crate::{Error, ErrorKind, Result};

/// The unit to which the kernel rounds the journal's mask: its pages.
const PAGE: u64 = 4096;

/// A cipher of the journal with its key.
#[derive(Clone)]
pub struct JournalCrypt {
    name: String,
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    Stream(Arc<dyn Stream>),
    Sections(Arc<dyn Sections>),
}

type StreamMask = std::result::Result<(), StreamCipherError>;

/// A mask over the whole journal.
trait Stream: Send + Sync {
    /// Applies the mask from `position` on to `bytes`.
    fn apply(&self, position: u64, bytes: &mut [u8]) -> StreamMask;
}

/// Encryption of each section as a message, with an IV from its number.
trait Sections: Send + Sync {
    fn encrypt(&self, index: u32, section: &mut [u8]);
    fn decrypt(&self, index: u32, section: &mut [u8]);
}

impl JournalCrypt {
    /// Finds the cipher of this name: `ctr(aes)`, `cbc(aes)`; also `ctr-aes` and `cbc-aes`, in
    /// cryptsetup's form.
    ///
    /// # Errors
    /// `Unsupported` for other names, `BadKey` for a key of a wrong length.
    pub fn new(name: &str, key: &Key) -> Result<Self> {
        let name = match name.split_once('-').filter(|(mode, _)| ["cbc", "ctr"].contains(mode)) {
            Some((mode, cipher)) => format!("{mode}({cipher})"),
            None => name.to_string(),
        };
        let inner = |mode: &str| name.strip_prefix(mode).and_then(|rest| rest.strip_suffix(')'));
        let key = key.as_bytes();
        let kind = if name == "chacha20" {
            let fixed = <[u8; 32]>::try_from(key).map_err(|_| bad_key(&name, key.len()))?;
            Some(Kind::Stream(Arc::new(ChaCha20(Zeroizing::new(fixed)))))
        } else if let Some(cipher) = inner("ctr(") {
            block_cipher(cipher, key, true)?
        } else if let Some(cipher) = inner("cbc(") {
            block_cipher(cipher, key, false)?
        } else {
            None
        };
        let kind = kind.ok_or_else(|| {
            let context = format!(
                "the journal cipher {} is not supported; ctr(aes) and cbc(aes) are",
                printable(&name)
            );
            Error::new(ErrorKind::Unsupported, context)
        })?;
        Ok(Self { name, kind })
    }

    /// The name in the kernel.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The commit ids of a journal of this size.
    pub(super) fn commit_ids(&self, journal_bytes: u64) -> Result<CommitIds> {
        let Kind::Stream(stream) = &self.kind else { return Ok(CommitIds::PLAIN) };
        let mut bytes = CommitIds::PLAIN.to_bytes();
        stream.apply(journal_bytes.next_multiple_of(PAGE), &mut bytes).map_err(too_long)?;
        let id = |i: usize| u64::from_le_bytes(std::array::from_fn(|k| bytes[8 * i + k]));
        Ok(CommitIds::from_stream(std::array::from_fn(id)))
    }

    pub(super) fn encrypt(&self, index: u32, section: &mut [u8]) -> Result<()> {
        match &self.kind {
            Kind::Stream(stream) => stream.apply(position(index, section), section).map_err(too_long)?,
            Kind::Sections(sections) => sections.encrypt(index, section),
        }
        Ok(())
    }

    pub(super) fn decrypt(&self, index: u32, section: &mut [u8]) -> Result<()> {
        match &self.kind {
            Kind::Stream(stream) => stream.apply(position(index, section), section).map_err(too_long)?,
            Kind::Sections(sections) => sections.decrypt(index, section),
        }
        Ok(())
    }
}

impl fmt::Debug for JournalCrypt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JournalCrypt").field("name", &self.name).finish_non_exhaustive()
    }
}

fn position(index: u32, section: &[u8]) -> u64 {
    u64::from(index) * section.len() as u64
}

fn too_long(e: StreamCipherError) -> Error {
    Error::new(ErrorKind::Unsupported, "the journal is longer than its cipher's stream").with_source(e)
}

fn bad_key(name: &str, len: usize) -> Error {
    Error::new(ErrorKind::BadKey, format!("{name} takes no key of {len} bytes"))
}

/// CTR or CBC of the block cipher of this name; `None` for an unknown name.
fn block_cipher(name: &str, key: &[u8], ctr: bool) -> Result<Option<Kind>> {
    macro_rules! with {
        ($cipher:ty) => {
            <$cipher as KeyInit>::new_from_slice(key).ok().map(|cipher| match ctr {
                true => Kind::Stream(Arc::new(Ctr(cipher))),
                false => Kind::Sections(Arc::new(Cbc(cipher))),
            })
        };
    }
    let kind = match (name, key.len()) {
        ("aes", 16) => with!(aes::Aes128),
        ("aes", 24) => with!(aes::Aes192),
        ("aes", 32) => with!(aes::Aes256),
        ("camellia", 16) => with!(camellia::Camellia128),
        ("camellia", 24) => with!(camellia::Camellia192),
        ("camellia", 32) => with!(camellia::Camellia256),
        ("serpent", _) => with!(serpent::Serpent),
        ("twofish", _) => with!(twofish::Twofish),
        ("aes" | "camellia", _) => None,
        _ => return Ok(None),
    };
    kind.map(Some).ok_or_else(|| bad_key(name, key.len()))
}

struct Ctr<C>(C);

impl<C: BlockCipherEncrypt + BlockSizeUser<BlockSize = U16> + Clone + Send + Sync> Stream for Ctr<C> {
    fn apply(&self, position: u64, bytes: &mut [u8]) -> StreamMask {
        let core = ctr::CtrCore::inner_iv_init(self.0.clone(), &Array::default());
        let mut stream = ctr::Ctr128BE::<C>::from_core(core);
        stream.try_seek(position)?;
        stream.try_apply_keystream(bytes)
    }
}

struct ChaCha20(Zeroizing<[u8; 32]>);

impl Stream for ChaCha20 {
    fn apply(&self, position: u64, bytes: &mut [u8]) -> StreamMask {
        let mut stream = chacha20::ChaCha20::new((&*self.0).into(), &Array::default());
        stream.try_seek(position)?;
        stream.try_apply_keystream(bytes)
    }
}

struct Cbc<C>(C);

impl<C: BlockCipherEncrypt + BlockSizeUser<BlockSize = U16>> Cbc<C> {
    /// The section's number, encrypted as the first block of a message with a zero IV.
    fn iv(&self, index: u32) -> Array<u8, U16> {
        let mut iv = Array::default();
        iv[..4].copy_from_slice(&index.to_le_bytes());
        self.0.encrypt_block(&mut iv);
        iv
    }
}

impl<C> Sections for Cbc<C>
where
    C: BlockCipherEncrypt + BlockCipherDecrypt + BlockSizeUser<BlockSize = U16> + Clone + Send + Sync,
{
    fn encrypt(&self, index: u32, section: &mut [u8]) {
        let mut mode = cbc::Encryptor::<C>::inner_iv_init(self.0.clone(), &self.iv(index));
        mode.encrypt_blocks(Array::slice_as_chunks_mut(section).0);
    }

    fn decrypt(&self, index: u32, section: &mut [u8]) {
        let mut mode = cbc::Decryptor::<C>::inner_iv_init(self.0.clone(), &self.iv(index));
        mode.decrypt_blocks(Array::slice_as_chunks_mut(section).0);
    }
}
