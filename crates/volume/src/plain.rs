//! Plain volumes: without a header, so every parameter comes from the caller, and a wrong parameter
//! gives noise, not an error.

use underseal_cipher::{CipherSpec, Key, SectorSize};

use crate::format::bad;
use crate::{CipherParameters, Error, ErrorKind, Hash, Result, Segment, Volume, kdf, unlock, volume};

/// The layout of a plain volume on its device. The key is separate: [`key_from_passphrase`], or a
/// key file's bytes.
#[derive(Debug, Clone)]
pub struct PlainOptions {
    /// The cipher of the data.
    pub cipher: CipherSpec,
    /// The size of the sectors.
    pub sector_size: SectorSize,
    /// IVs count sectors of that size instead of 512 bytes: cryptsetup's `--iv-large-sectors`.
    pub iv_large_sectors: bool,
    /// The first byte of the data on its device: a multiple of 512.
    pub offset: u64,
    /// The number added to the sector number in IVs, in 512-byte units: cryptsetup's `--skip`.
    pub iv_offset: u64,
    /// The length in bytes. `None` stands for the whole device.
    pub size: Option<u64>,
    /// Passes discards down.
    pub allow_discards: bool,
    /// Accepts `cipher_null`, which encrypts nothing.
    pub allow_null: bool,
}

impl Default for PlainOptions {
    /// Returns the options of cryptsetup 2.7 and later: aes-xts-plain64 in 512-byte sectors over
    /// the whole device (with a key of 32 bytes). Older versions used aes-cbc-essiv:sha256.
    fn default() -> Self {
        Self {
            cipher: "aes-xts-plain64".parse().expect("a constant that parses"),
            sector_size: SectorSize::S512,
            iv_large_sectors: false,
            offset: 0,
            iv_offset: 0,
            size: None,
            allow_discards: false,
            allow_null: false,
        }
    }
}

/// The way from a passphrase to a plain volume's key: cryptsetup's `--hash NAME[:BYTES]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassphraseHash {
    /// The hash. `None` is cryptsetup's `plain`: the passphrase's own bytes.
    pub hash: Option<Hash>,
    /// The number of bytes used, followed by zeros. `None` uses the key's size.
    pub len: Option<usize>,
}

impl Default for PassphraseHash {
    /// Returns the default of cryptsetup 2.7 and later: SHA-256. Older versions used ripemd160.
    fn default() -> Self {
        Self { hash: Some(Hash::Sha256), len: None }
    }
}

/// The form that is parsed.
impl std::fmt::Display for PassphraseHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.hash.map_or("plain", Hash::name))?;
        self.len.map_or(Ok(()), |len| write!(f, ":{len}"))
    }
}

impl std::str::FromStr for PassphraseHash {
    type Err = Error;

    /// Fails with `Unsupported` for an unknown hash, and with `BadOption` for a length that is no
    /// number.
    fn from_str(text: &str) -> Result<Self> {
        let (name, len) = match text.split_once(':') {
            Some((name, len)) => {
                let parsed = len.parse().ok().filter(|&len: &usize| len > 0);
                let len = parsed.ok_or_else(|| bad(format!("hash length {}", crate::printable(len))))?;
                (name, Some(len))
            }
            None => (text, None),
        };
        Ok(Self { hash: if name == "plain" { None } else { Some(name.parse()?) }, len })
    }
}

/// Returns the key of `key_size` bytes that cryptsetup's plain mode derives from a passphrase.
///
/// The derivation has no salt and one round only, so a weak passphrase can be guessed. Keys longer
/// than the digest come from further rounds over the byte `A`, once in the second round, twice in
/// the third, and the passphrase.
///
/// # Errors
/// `BadOption` when the requested length exceeds the key's, or without a hash the passphrase's;
/// `Memory`.
pub fn key_from_passphrase(passphrase: &Key, hash: &PassphraseHash, key_size: usize) -> Result<Key> {
    let chosen = hash.len;
    let used = chosen.unwrap_or(key_size);
    if used > key_size {
        return Err(bad(format!("a hash of {used} bytes is longer than the key of {key_size}")));
    }
    let mut key = kdf::new_key(key_size)?;
    let out = &mut key.as_mut_bytes()[..used];
    let Some(hash) = hash.hash else {
        let len = passphrase.len().min(used);
        if len < used && chosen.is_some() {
            return Err(bad(format!("the passphrase is shorter than the {used} bytes asked for")));
        }
        out[..len].copy_from_slice(&passphrase.as_bytes()[..len]);
        return Ok(key);
    };
    let mut digest = kdf::new_key(hash.output_len())?;
    for (round, chunk) in out.chunks_mut(hash.output_len()).enumerate() {
        let mut state = hash.start();
        state.update(&vec![b'A'; round]);
        state.update(passphrase.as_bytes());
        // The buffer has the digest's length, so this cannot fail.
        state.finalize_into_reset(digest.as_mut_bytes()).expect("a buffer of the digest's length");
        chunk.copy_from_slice(&digest.as_bytes()[..chunk.len()]);
    }
    Ok(key)
}

/// Returns the volume over a device of `data_size` bytes.
///
/// # Errors
/// `TooSmall` when the device is too small; `BadOption` for offsets that are no whole sectors, and
/// for a key that does not fit the cipher; `Unsupported` for an unsupported cipher; `NullCipher`
/// unless allowed; `BadLayout` when sectors do not fit.
pub fn activate(key: &Key, data_size: u64, options: &PlainOptions) -> Result<Volume> {
    unlock::allow_null(&options.cipher, options.allow_null)?;
    if !options.offset.is_multiple_of(512) {
        return Err(bad(format!("offset {} is no multiple of 512", options.offset)));
    }
    let unit = options.sector_size;
    if !options.iv_offset.is_multiple_of(unit.units()) {
        return Err(bad(format!("IV offset {} is no multiple of {}", options.iv_offset, unit.units())));
    }
    if let Some(size) = options.size
        && (size == 0 || !size.is_multiple_of(unit.bytes() as u64))
    {
        return Err(bad(format!("{size} bytes are no whole number of {}-byte sectors", unit.bytes())));
    }
    let len = volume::data_length(data_size, options.offset, options.size, unit)?;
    let iv_large_sectors = options.iv_large_sectors;
    let cipher_parameters =
        CipherParameters { iv_large_sectors, ..CipherParameters::new(&options.cipher, unit, key.len()) };
    let cipher = cipher_parameters.build(key).map_err(|e| match e.kind() {
        ErrorKind::BadHeader => bad("the key or sector size does not fit the cipher").with_source(e),
        _ => e,
    })?;
    let segment =
        Segment::stored(0, len, options.offset, options.iv_offset, cipher).with_recipe(cipher_parameters);
    Ok(Volume::new(vec![segment])?.with_discards(options.allow_discards))
}
