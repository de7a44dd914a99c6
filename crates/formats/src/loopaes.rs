//! loop-AES: volumes without a header, under the keys of a key file.
//!
//! | keys | version | cipher in the kernel's words |
//! | --- | --- | --- |
//! | 1 | 1 | `aes-cbc-plain64` |
//! | 64 | 2 | `aes:64-cbc-lmk`: sector s under key s mod 64, the IV made of the plaintext |
//! | 65 | 3 | the same, IVs seeded with the 65th key |
//!
//! A sector has 512 bytes. Its number counts from `skip` at the volume's first sector, and `skip`
//! is the offset where it is not given, unlike in plain volumes: so `losetup`'s `@` has it. Source:
//! loop-AES, aespipe, cryptsetup's `loopaesOpen`.

mod key_file;

use underseal_cipher::{CipherSpec, SectorSize};
use underseal_volume::{CipherParameters, Hash, Segment, Volume};

use crate::{Error, ErrorKind, Facts, Format, OpenedFormat, Result};

pub use key_file::{KeyFile, is_pgp};

/// How a volume is to be read: a volume of loop-AES says nothing of it.
#[derive(Debug, Clone)]
pub struct Options {
    /// The base cipher: `aes`.
    pub cipher: String,
    /// The size of one key in bits: 128, 192 or 256.
    pub key_bits: u32,
    /// The hash of the key file's lines; SHA-256, 384 or 512 by the key's size where
    /// none is named.
    pub hash: Option<Hash>,
    /// Where the data begin, in sectors of 512 bytes.
    pub offset: u64,
    /// The number of the first sector; the offset where it is not given.
    pub skip: Option<u64>,
}

/// As cryptsetup has it: AES with keys of 256 bits.
impl Default for Options {
    fn default() -> Self {
        Self { cipher: "aes".into(), key_bits: 256, hash: None, offset: 0, skip: None }
    }
}

/// Puts the volume together over a device of `size` bytes.
///
/// No key is checked, because there is nothing to check it with: a wrong one shows as noise.
///
/// # Errors
/// `BadOption` for a size of keys that the cipher or the hash does not have, `TooSmall` when there
/// are no data behind the offset, `Unsupported` for a cipher that is not in this build, `Memory`.
pub fn open(key_file: &KeyFile, size: u64, options: &Options) -> Result<OpenedFormat> {
    let bad = |why: String| Error::new(ErrorKind::BadOption, why);
    let Options { cipher, key_bits, offset, .. } = options;
    let key_size = match key_bits {
        128 => 16,
        192 => 24,
        256 => 32,
        other => return Err(bad(format!("loop-AES has keys of 128, 192 or 256 bits, not {other}"))),
    };
    let hash = options.hash.unwrap_or(match key_size {
        16 => Hash::Sha256,
        24 => Hash::Sha384,
        _ => Hash::Sha512,
    });
    let key = key_file.keys(hash, key_size)?;
    let start =
        offset.checked_mul(512).ok_or_else(|| bad(format!("offset {offset} is beyond any device")))?;
    let len = size.saturating_sub(start) & !511;
    if len == 0 {
        let context = format!("the data begin at byte {start} of a device of {size} bytes");
        return Err(Error::new(ErrorKind::TooSmall, context));
    }
    if cipher.contains([':', '-']) {
        return Err(bad("the base cipher's name alone is asked for, as in aes".into()));
    }
    let spec: CipherSpec = match key_file.version() {
        1 => format!("{cipher}-cbc-plain64"),
        _ => format!("{cipher}:64-cbc-lmk"),
    }
    .parse()?;
    let cipher_parameters = CipherParameters::new(&spec, SectorSize::S512, key.len());
    let built = cipher_parameters.build(&key)?;
    let skip = options.skip.unwrap_or(*offset);
    let mut facts = Facts::new(Format::Loopaes);
    facts.add("key file", format_args!("version {}, {} keys", key_file.version(), key_file.count()));
    facts.add("cipher", &cipher_parameters.cipher);
    facts.add("key size", format_args!("{key_bits} bits"));
    facts.add("hash", hash);
    facts.add("offset", format_args!("{offset} sectors"));
    facts.add("first sector", skip);
    let segment = Segment::stored(0, len, start, skip, built).with_recipe(cipher_parameters);
    let volume = Volume::new(vec![segment])?;
    Ok(OpenedFormat {
        format: Format::Loopaes,
        volume,
        read_only: None,
        guards: Vec::new(),
        volume_key: key,
        facts,
    })
}
