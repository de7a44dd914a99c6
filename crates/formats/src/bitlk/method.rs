//! Methods: the cipher of the data, and the forms that its key has.

use std::fmt;

use underseal_cipher::{CipherSpec, Key, SectorSize};
use underseal_volume::CipherParameters;

use crate::{Error, ErrorKind, Result};

/// A method, by its number on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the cipher it names")]
pub enum Method {
    AesCbc128Elephant,
    AesCbc256Elephant,
    AesCbc128,
    AesCbc256,
    AesXts128,
    AesXts256,
}

/// The offset of the diffuser's key in the stored key, at every key size.
const HALF: usize = 32;

impl Method {
    /// The method of a number in the metadata; returns `Unsupported` for an unknown number.
    pub(super) fn new(number: u16) -> Result<Self> {
        Ok(match number {
            0x8000 => Self::AesCbc128Elephant,
            0x8001 => Self::AesCbc256Elephant,
            0x8002 => Self::AesCbc128,
            0x8003 => Self::AesCbc256,
            0x8004 => Self::AesXts128,
            0x8005 => Self::AesXts256,
            other => {
                let context = format!("BitLocker's method {other:#06x} is not supported");
                return Err(Error::new(ErrorKind::Unsupported, context));
            }
        })
    }

    /// Mode and IV generator, in the kernel's words: `cbc-elephant`.
    pub fn mode(self) -> &'static str {
        match self {
            Self::AesCbc128Elephant | Self::AesCbc256Elephant => "cbc-elephant",
            Self::AesCbc128 | Self::AesCbc256 => "cbc-eboiv",
            Self::AesXts128 | Self::AesXts256 => "xts-plain64",
        }
    }

    /// AES's key in bits.
    pub fn aes_bits(self) -> u32 {
        match self {
            Self::AesCbc128Elephant | Self::AesCbc128 | Self::AesXts128 => 128,
            Self::AesCbc256Elephant | Self::AesCbc256 | Self::AesXts256 => 256,
        }
    }

    /// The bytes of the volume key in cryptsetup's form.
    pub fn key_size(self) -> usize {
        match self {
            Self::AesCbc128 => 16,
            Self::AesCbc256 | Self::AesCbc128Elephant | Self::AesXts128 => 32,
            Self::AesCbc256Elephant | Self::AesXts256 => 64,
        }
    }

    /// The volume key of the stored bytes, or `None` when their length is wrong.
    ///
    /// Returns `Memory`.
    pub(super) fn stored_key(self, stored: &[u8]) -> Result<Option<Key>> {
        if self != Self::AesCbc128Elephant {
            let fits = stored.len() == self.key_size();
            return fits.then(|| Ok(Key::new(stored)?)).transpose();
        }
        let [first, second] = [stored.get(..16), stored.get(HALF..HALF + 16)];
        let (Some(first), Some(second), 64) = (first, second, stored.len()) else { return Ok(None) };
        let mut key = Key::zeroed(32)?;
        let (cbc, tweak) = key.as_mut_bytes().split_at_mut(16);
        cbc.copy_from_slice(first);
        tweak.copy_from_slice(second);
        Ok(Some(key))
    }

    /// The volume key of the bytes that a user gives, in either form, or `None` for a wrong length.
    ///
    /// Returns `Memory`.
    pub(super) fn volume_key(self, given: &[u8]) -> Result<Option<Key>> {
        if given.len() == self.key_size() { Ok(Some(Key::new(given)?)) } else { self.stored_key(given) }
    }

    /// The cipher of a segment without its key.
    pub(super) fn cipher_parameters(self, sector_size: SectorSize) -> Result<CipherParameters> {
        let cipher: CipherSpec = format!("aes-{}", self.mode()).parse()?;
        // IVs and tweaks are made of the byte offset, or of the number of the sector in its own
        // size.
        let iv_large_sectors = sector_size > SectorSize::S512;
        Ok(CipherParameters {
            iv_large_sectors,
            ..CipherParameters::new(&cipher, sector_size, self.key_size())
        })
    }
}

/// As Windows says it: `XTS-AES 128`.
impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AesCbc128Elephant => "AES 128 with diffuser",
            Self::AesCbc256Elephant => "AES 256 with diffuser",
            Self::AesCbc128 => "AES 128",
            Self::AesCbc256 => "AES 256",
            Self::AesXts128 => "XTS-AES 128",
            Self::AesXts256 => "XTS-AES 256",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};

    /// Known answers of an independent implementation: a sector of zeros at byte 0x21000 under the
    /// stored key 00 01 02 ...
    #[test]
    fn each_method_encrypts_as_bitlocker_does() {
        for (number, bytes, sector, first, digest) in [
            (0x8000, 64, 512, "5112f607c7517b567d627a58ae0895a2", "f6218f38d79ed65020738a42e759cbe1"),
            (0x8000, 64, 4096, "855309ed768ba667492b7d0634b2e561", "ded1a573019ffc7819ac0312336a0adc"),
            (0x8001, 64, 512, "076fd52331941f9fd0a15a0820aa7987", "db2c5a4c8f5d6108cd3b6bd4abb549dd"),
            (0x8001, 64, 4096, "ae78e76cfe4715e5565372af039bde86", "098c01fd94b1904b14dfcb1c9ab5e27b"),
            (0x8002, 16, 512, "3e98ea1870e9541d582a61e98fa0a7b2", "134567bb0c26d80c299369af86f38b92"),
            (0x8002, 16, 4096, "3e98ea1870e9541d582a61e98fa0a7b2", "b94285c3e646f7f4d9067b0332247ed5"),
            (0x8003, 32, 512, "5bce53b33bce460a82fa6f230f16c22b", "c09c0f7d43f9ebac7f071a47f0a26b36"),
            (0x8003, 32, 4096, "5bce53b33bce460a82fa6f230f16c22b", "ae61dd7a55caace84ce0854ce21387b3"),
            (0x8004, 32, 512, "56209f11e5cb462dff656a94d30ff29e", "13278c49778953b16603aab8af95dd0d"),
            (0x8004, 32, 4096, "14ad0ce53d1fe9fad2a9fbae2afb9da6", "6de9be8a9ccafe60645be33b5df95179"),
            (0x8005, 64, 512, "a7f51b94ec2ce8741ec1e3164095d1d7", "ab650949810ed6f458e6679da9c58734"),
            (0x8005, 64, 4096, "88c2c15f9b12668a73c015814483d635", "0d74baba9acbfc76fd81a1dff0865850"),
        ] {
            let method = Method::new(number).unwrap();
            let stored: Vec<u8> = (0..bytes).collect();
            let key = method.stored_key(&stored).unwrap().unwrap();
            let cipher_parameters = method.cipher_parameters(SectorSize::new(sector).unwrap()).unwrap();
            let cipher = cipher_parameters.build(&key).unwrap();
            let mut data = vec![0; sector as usize];
            cipher.encrypt(0x21000 / 512, data.as_mut_slice().into());
            assert_eq!(hex::encode(&data[..16]), first, "{method}, {sector}");
            assert_eq!(&hex::encode(Sha256::digest(&data))[..32], digest, "{method}, {sector}");
        }
        assert_eq!(Method::new(0x8006).unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
