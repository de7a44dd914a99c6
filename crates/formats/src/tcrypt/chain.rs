//! The chains of ciphers: names, keys, and the ciphers of a header and of the data.

use std::fmt;
use std::sync::Arc;

use underseal_cipher::{
    CipherSpec, InOutBuf, Key, SectorCipher, SectorSize, build, build_outer_cbc, build_truecrypt_lrw,
    chain as in_turn,
};
use underseal_volume::CipherParameters;
use zeroize::Zeroize;

use super::SEALED;
use crate::{Error, ErrorKind, Result};

/// How the ciphers of a chain are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Each cipher in XTS with its own tweak key: TrueCrypt from 5.0 on, VeraCrypt.
    Xts,
    /// Each cipher in LRW, all with one tweak key: TrueCrypt 4.1 to 4.3. Single ciphers of 8-byte
    /// blocks have an LRW of 64 bits.
    Lrw,
    /// A single cipher in CBC with whitening: TrueCrypt before 4.1.
    Cbc,
    /// A single CBC around all ciphers, with one whitening: TrueCrypt before 4.1.
    OuterCbc,
    /// Each cipher in a CBC with its own whitening: TrueCrypt before 4.1.
    InnerCbc,
}

impl Mode {
    /// cryptsetup's name: `xts-plain64`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Xts => "xts-plain64",
            Self::Lrw => "lrw-benbi",
            Self::Cbc => "cbc-tcw",
            Self::OuterCbc => "cbci-tcrypt",
            Self::InnerCbc => "cbc-tcrypt",
        }
    }
}

/// A chain of one to three ciphers in a mode.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Chain {
    mode: Mode,
    /// The ciphers in the order of encryption, with dashes between: cryptsetup's name.
    ciphers: &'static str,
}

/// Chains in XTS, TrueCrypt's first.
const XTS: [&str; 15] = [
    "aes",
    "serpent",
    "twofish",
    "twofish-aes",
    "serpent-twofish-aes",
    "aes-serpent",
    "aes-twofish-serpent",
    "serpent-twofish",
    "camellia",
    "kuznyechik",
    "kuznyechik-camellia",
    "twofish-kuznyechik",
    "serpent-camellia",
    "aes-kuznyechik",
    "camellia-serpent-kuznyechik",
];
const OF_TRUECRYPT: usize = 8;
const CBC: [&str; 6] = ["aes", "serpent", "twofish", "cast5", "des3_ede", "blowfish_le"];
/// The ciphers of 8-byte blocks that TrueCrypt has in LRW, no chain among them.
const SMALL_LRW: [&str; 3] = ["cast5", "des3_ede", "blowfish_le"];
const OUTER: [&str; 5] =
    ["twofish-aes", "serpent-twofish-aes", "aes-serpent", "aes-twofish-serpent", "serpent-twofish"];
const INNER: [&str; 2] = ["blowfish_le-aes", "serpent-blowfish_le-aes"];

impl Chain {
    /// All chains: of VeraCrypt where `veracrypt` is true, else of TrueCrypt in all its modes.
    pub fn all(veracrypt: bool) -> Vec<Self> {
        let of = |mode: Mode, names: &'static [&'static str]| {
            names.iter().map(move |ciphers| Self { mode, ciphers })
        };
        if veracrypt {
            return of(Mode::Xts, &XTS).collect();
        }
        of(Mode::Xts, &XTS[..OF_TRUECRYPT])
            .chain(of(Mode::Lrw, &XTS[..OF_TRUECRYPT]))
            .chain(of(Mode::Lrw, &SMALL_LRW))
            .chain(of(Mode::Cbc, &CBC))
            .chain(of(Mode::OuterCbc, &OUTER))
            .chain(of(Mode::InnerCbc, &INNER))
            .collect()
    }

    /// The chain in XTS that new VeraCrypt volumes have by this name, cryptsetup's or VeraCrypt's.
    ///
    /// # Errors
    /// `BadOption` for any other name.
    pub fn of_veracrypt(name: &str) -> Result<Self> {
        let filter: ChainFilter = name.parse()?;
        let found = Self::all(true).into_iter().find(|chain| filter.is_exactly(*chain));
        found.ok_or_else(|| {
            let context = format!("no chain of VeraCrypt has this name: one of {}", XTS.join(", "));
            Error::new(ErrorKind::BadOption, context)
        })
    }

    /// The mode.
    pub fn mode(self) -> Mode {
        self.mode
    }

    /// cryptsetup's name, in the order of encryption: `serpent-twofish-aes`.
    pub fn name(self) -> &'static str {
        self.ciphers
    }

    /// VeraCrypt's name, in the order of decryption: `AES(Twofish(Serpent))`.
    pub fn veracrypt_name(self) -> String {
        self.ciphers().map(of_veracrypt).fold(String::new(), |inner, name| match inner.is_empty() {
            true => name.to_owned(),
            false => format!("{name}({inner})"),
        })
    }

    /// Whether it is an LRW of 64 bits, which dm-crypt has not got.
    pub(super) fn is_small_lrw(self) -> bool {
        self.mode == Mode::Lrw && block(self.ciphers) == 8
    }

    /// The ciphers in the order of encryption.
    fn ciphers(self) -> impl Iterator<Item = &'static str> + Clone {
        self.ciphers.split('-')
    }

    /// How many bytes of key material it needs, of a derived key or of a header's key area.
    pub(super) fn material(self) -> usize {
        let keys: usize = self.ciphers().map(key_len).sum();
        if self.mode == Mode::Xts { 2 * keys } else { TWEAK + keys }
    }

    /// The bits of the ciphers' keys, with their tweak keys; cryptsetup's `MK bits`.
    pub(super) fn key_bits(self) -> usize {
        let extra = |cipher| match self.mode {
            Mode::Lrw => block(cipher),
            _ => TWEAK,
        };
        match self.mode {
            Mode::Xts => 8 * self.material(),
            _ => self.ciphers().map(|cipher| 8 * (key_len(cipher) + extra(cipher))).sum(),
        }
    }

    /// The cipher of the data, under a header's key area, and the parameters that make the
    /// cipher of another key, if dm-crypt has the cipher.
    ///
    /// Returns `BadHeader` when the material is too short, and `Memory`.
    pub(super) fn data_cipher(
        self,
        material: &[u8],
    ) -> Result<(Arc<dyn SectorCipher>, Option<CipherParameters>)> {
        self.check(material)?;
        if self.mode == Mode::OuterCbc {
            let mut extra = [0; TWEAK];
            extra.copy_from_slice(&material[..TWEAK]);
            let cipher = self.outer(material, &extra);
            extra.zeroize();
            return Ok((cipher?, None));
        }
        if self.is_small_lrw() {
            let (key, mut tweak) = (self.own_key(0, material), [0; 8]);
            tweak.copy_from_slice(&material[..8]);
            let cipher = build_truecrypt_lrw(self.ciphers, key, &tweak);
            tweak.zeroize();
            return Ok((cipher?, None));
        }
        let each = self.ciphers().enumerate().map(|(nth, name)| {
            let spec: CipherSpec = format!("{name}-{}", self.data_mode()).parse()?;
            Ok(build(&spec, &self.key_of(nth, material)?, SectorSize::S512)?)
        });
        let mut each = each.collect::<Result<Vec<_>>>()?;
        match each.len() {
            1 => {
                let cipher: CipherSpec = format!("{}-{}", self.ciphers, self.data_mode()).parse()?;
                let cipher_parameters =
                    CipherParameters::new(&cipher, SectorSize::S512, self.key_of(0, material)?.len());
                // blowfish_le is no cipher of dm-crypt.
                let known = self.ciphers != "blowfish_le";
                Ok((each.swap_remove(0), known.then_some(cipher_parameters)))
            }
            _ => Ok((in_turn(each)?, None)),
        }
    }

    /// The volume key in cryptsetup's form: for each cipher its key, then its tweak key, or its
    /// part of the IV's seed.
    ///
    /// Returns the errors of [`Chain::data_cipher`].
    pub(super) fn volume_key(self, material: &[u8]) -> Result<Key> {
        self.check(material)?;
        let keys = (0..self.ciphers().count()).map(|nth| match self.mode {
            Mode::OuterCbc | Mode::InnerCbc => {
                let mut key = self.key_of(nth, material)?;
                let own = self.ciphers().nth(nth).map_or(0, key_len);
                key.truncate(own);
                Ok((key, &material[..TWEAK]))
            }
            _ => Ok((self.key_of(nth, material)?, &material[..0])),
        });
        let keys = keys.collect::<Result<Vec<_>>>()?;
        let mut whole = Key::zeroed(keys.iter().map(|(key, seed)| key.len() + seed.len()).sum())?;
        let mut rest = whole.as_mut_bytes();
        for part in keys.iter().flat_map(|(key, seed)| [key.as_bytes(), seed]) {
            let (at, after) = rest.split_at_mut(part.len());
            at.copy_from_slice(part);
            rest = after;
        }
        Ok(whole)
    }

    /// Decrypts a header's sealed part under a derived key.
    ///
    /// Returns the errors of [`Chain::data_cipher`].
    pub(super) fn open_header(self, material: &[u8], sealed: &[u8; SEALED]) -> Result<Key> {
        self.crypt_header(material, sealed, false)
    }

    /// Encrypts a header's plain fields under a derived key.
    ///
    /// Returns the errors of [`Chain::data_cipher`].
    pub(super) fn seal_header(self, material: &[u8], plain: &[u8]) -> Result<[u8; SEALED]> {
        let mut sealed = [0; SEALED];
        sealed.copy_from_slice(self.crypt_header(material, plain, true)?.as_bytes());
        Ok(sealed)
    }

    fn crypt_header(self, material: &[u8], bytes: &[u8], encrypt: bool) -> Result<Key> {
        self.check(material)?;
        let mut sector = Key::zeroed(512)?;
        sector.as_mut_bytes()[..SEALED].copy_from_slice(bytes);
        match self.mode {
            Mode::Xts | Mode::Lrw => {
                let (cipher, _) = self.data_cipher(material)?;
                let data = InOutBuf::from(sector.as_mut_bytes());
                if encrypt { cipher.encrypt(0, data) } else { cipher.decrypt(0, data) }
            }
            Mode::OuterCbc => {
                // With no whitening and no seed, sector 0 is plain CBC with an IV of zeros.
                cbc(&*self.outer(material, &[0; TWEAK])?, 16, material, (&mut sector, encrypt));
            }
            Mode::Cbc | Mode::InnerCbc => {
                let mut ciphers: Vec<_> = self.ciphers().enumerate().collect();
                if !encrypt {
                    ciphers.reverse();
                }
                for (nth, name) in ciphers {
                    let spec: CipherSpec = format!("{name}-cbc-null").parse()?;
                    let key = Key::new(self.own_key(nth, material))?;
                    let cipher = build(&spec, &key, SectorSize::S512)?;
                    cbc(&*cipher, block(name), material, (&mut sector, encrypt));
                }
            }
        }
        sector.truncate(SEALED);
        Ok(sector)
    }

    fn outer(self, material: &[u8], extra: &[u8; TWEAK]) -> Result<Arc<dyn SectorCipher>> {
        let keys = self.ciphers().enumerate().map(|(nth, name)| (name, self.own_key(nth, material)));
        Ok(build_outer_cbc(&keys.collect::<Vec<_>>(), extra)?)
    }

    fn data_mode(self) -> &'static str {
        if self.mode == Mode::InnerCbc { Mode::Cbc.name() } else { self.mode.name() }
    }

    /// The key of the chain's cipher `nth` in dm-crypt's form.
    fn key_of(self, nth: usize, material: &[u8]) -> Result<Key> {
        let own = self.own_key(nth, material);
        let more = match self.mode {
            Mode::Xts => {
                let at = self.material() / 2 + 32 * nth;
                &material[at..at + 32]
            }
            Mode::Lrw => &material[..self.ciphers().nth(nth).map_or(16, block)],
            // The IV's seed, as wide as a block; then 16 bytes of whitening.
            _ => &material[..16 + self.ciphers().nth(nth).map_or(16, block)],
        };
        let mut key = Key::zeroed(own.len() + more.len())?;
        let (first, second) = key.as_mut_bytes().split_at_mut(own.len());
        first.copy_from_slice(own);
        second.copy_from_slice(more);
        Ok(key)
    }

    /// The key proper of the chain's cipher `nth`.
    fn own_key(self, nth: usize, material: &[u8]) -> &[u8] {
        let before: usize = self.ciphers().take(nth).map(key_len).sum();
        let at = if self.mode == Mode::Xts { before } else { TWEAK + before };
        &material[at..at + self.ciphers().nth(nth).map_or(0, key_len)]
    }

    fn check(self, material: &[u8]) -> Result<()> {
        if material.len() < self.material() {
            let context = format!("{self} needs {} bytes of keys, not {}", self.material(), material.len());
            return Err(Error::new(ErrorKind::BadHeader, context));
        }
        Ok(())
    }
}

/// CBC with whitening of a header: the whitening is bytes 8..16 of the seed, the IV its first
/// block.
fn cbc(cipher: &dyn SectorCipher, block: usize, material: &[u8], (sector, encrypt): (&mut Key, bool)) {
    let add = |bytes: &mut [u8], mask: &[u8]| {
        bytes.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
    };
    let (iv, white) = (&material[..block], &material[8..16]);
    let bytes = sector.as_mut_bytes();
    if encrypt {
        add(&mut bytes[..block], iv);
        cipher.encrypt(0, InOutBuf::from(&mut *bytes));
        add(&mut bytes[..SEALED], white);
    } else {
        add(&mut bytes[..SEALED], white);
        cipher.decrypt(0, InOutBuf::from(&mut *bytes));
        add(&mut bytes[..block], iv);
    }
}

/// Bytes before the ciphers' keys in LRW and CBC: a tweak key of 16, or a seed of 32.
const TWEAK: usize = 32;

fn key_len(cipher: &str) -> usize {
    match cipher {
        "cast5" => 16,
        "des3_ede" => 24,
        "blowfish_le" => 56,
        _ => 32,
    }
}

fn block(cipher: &str) -> usize {
    if matches!(cipher, "cast5" | "des3_ede" | "blowfish_le") { 8 } else { 16 }
}

fn of_veracrypt(cipher: &str) -> &str {
    match cipher {
        "aes" => "AES",
        "serpent" => "Serpent",
        "twofish" => "Twofish",
        "camellia" => "Camellia",
        "kuznyechik" => "Kuznyechik",
        "cast5" => "CAST5",
        "des3_ede" => "Triple DES",
        "blowfish_le" => "Blowfish",
        other => other,
    }
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ciphers, self.mode.name())
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chain({self})")
    }
}

/// The chains that are tried: all, or those of one name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChainFilter(Option<Named>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Named {
    /// Exactly these ciphers, in the order of encryption.
    Ciphers(String),
    /// A part of cryptsetup's name.
    Part(String),
}

impl ChainFilter {
    /// The chains whose name in cryptsetup contains `part`, as its option `--cipher` selects them.
    pub fn containing(part: &str) -> Self {
        Self(Some(Named::Part(part.to_owned())))
    }

    pub(super) fn takes(&self, chain: Chain) -> bool {
        match &self.0 {
            None => true,
            Some(Named::Ciphers(_)) => self.is_exactly(chain),
            Some(Named::Part(part)) => chain.to_string().contains(part),
        }
    }

    fn is_exactly(&self, chain: Chain) -> bool {
        matches!(&self.0, Some(Named::Ciphers(name)) if name == chain.ciphers)
    }
}

impl std::str::FromStr for ChainFilter {
    type Err = Error;

    /// Takes cryptsetup's name, in the order of encryption (`serpent-twofish-aes`), and
    /// VeraCrypt's, in the order of decryption (`AES(Twofish(Serpent))`).
    ///
    /// Returns `BadOption` for ciphers that no chain has.
    fn from_str(name: &str) -> Result<Self> {
        let lower = name.to_ascii_lowercase();
        let nested: Vec<&str> = lower.trim_end_matches(')').split('(').map(str::trim).collect();
        let plain = match nested.len() {
            1 => lower.clone(),
            _ => nested.into_iter().rev().collect::<Vec<_>>().join("-"),
        };
        let mut all = Chain::all(true);
        all.extend(Chain::all(false));
        if !all.iter().any(|chain| chain.ciphers == plain) {
            let context = "no chain of TrueCrypt or VeraCrypt has these ciphers in this order";
            return Err(Error::new(ErrorKind::BadOption, context));
        }
        Ok(Self(Some(Named::Ciphers(plain))))
    }
}

#[cfg(test)]
mod tests;
