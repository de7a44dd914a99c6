//! A header's digest, and the requirements on a header, for machines that do not trust their disk.

use std::fmt;
use std::str::FromStr;

use underseal_cipher::CipherSpec;

use crate::info::hex;
use crate::{Error, ErrorKind, Hash, Header, Result};

const PREFIX: &str = "sha256:";

/// SHA-256 over the parts of a header that decide how its volume opens.
///
/// LUKS1: the 592 bytes of the header. LUKS2: the text of the UUID, a zero byte, and the text of
/// the JSON metadata of the used copy, without its zeros. The differences between the two copies,
/// and the sequence number, are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeaderDigest([u8; 32]);

impl HeaderDigest {
    pub(crate) fn of(parts: &[&[u8]]) -> Self {
        let digest = Hash::Sha256.digest(parts);
        Self(std::array::from_fn(|i| digest[i]))
    }
}

impl fmt::Display for HeaderDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", hex(&self.0))
    }
}

impl FromStr for HeaderDigest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || Error::new(ErrorKind::BadOption, "a header's digest is sha256: and 64 hex digits");
        let digits = text.strip_prefix(PREFIX).filter(|digits| digits.len() == 64).ok_or_else(bad)?;
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            let digit = |d: u8| char::from(d).to_digit(16).ok_or_else(bad);
            *byte = u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).map_err(|_| bad())?;
        }
        Ok(Self(bytes))
    }
}

/// The requirements on a header, by a user who does not trust the disk. An unset field requires
/// nothing.
#[derive(Debug, Clone, Default)]
pub struct Pinned {
    /// The required digest.
    pub digest: Option<HeaderDigest>,
    /// The required cipher of all data.
    pub cipher: Option<CipherSpec>,
    /// The required integrity of all data, as LUKS2 names it: `aead`, `hmac(sha256)`, ..
    pub integrity: Option<String>,
}

impl Header {
    /// Returns the digest that [`Pinned`] compares, and that people note down.
    pub fn digest(&self) -> HeaderDigest {
        match self {
            Self::Luks1(header) => header.digest(),
            Self::Luks2(header) => header.digest(),
        }
    }

    /// Refuses a header that does not meet the requirements, before it is used.
    ///
    /// # Errors
    /// `Untrusted`, naming the field.
    pub fn hold_to(&self, pinned: &Pinned) -> Result<()> {
        let refuse = |why: String| Err(Error::new(ErrorKind::Untrusted, why));
        if let Some(wanted) = pinned.digest
            && self.digest() != wanted
        {
            return refuse(format!("the header's digest is {}, not {wanted}", self.digest()));
        }
        for segment in self.info().segments {
            let cipher = pinned.cipher.as_ref().map(CipherSpec::to_string);
            let fields = [
                ("encryption", segment.cipher, cipher),
                ("integrity.type", segment.integrity, pinned.integrity.clone()),
            ];
            for (field, found, wanted) in fields {
                let Some(wanted) = wanted.filter(|wanted| found.as_ref() != Some(wanted)) else { continue };
                // `none` is a type of integrity.
                let found = found.unwrap_or_else(|| "nothing".into());
                let place = format!("segments.{}.{field}", segment.number);
                return refuse(format!("{place}: {found} is not {wanted}, which is required"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_reads_back_as_it_prints() {
        let digest = HeaderDigest::of(&[b"a", b"b"]);
        assert_eq!(digest, HeaderDigest::of(&[b"ab"]));
        assert_eq!(digest.to_string().parse::<HeaderDigest>().unwrap(), digest);
        let shouted = digest.to_string().to_uppercase().replace("SHA256", "sha256");
        assert_eq!(shouted.parse::<HeaderDigest>().unwrap(), digest);
    }

    #[test]
    fn what_is_no_digest_is_refused() {
        let digits = "0".repeat(64);
        for text in [
            "",
            "sha256:",
            &digits,
            &format!("sha512:{digits}"),
            &format!("sha256:{digits}0"),
            &format!("sha256:{}", "ä".repeat(32)),
            &format!("sha256:{}", "+1".repeat(32)),
        ] {
            assert_eq!(text.parse::<HeaderDigest>().unwrap_err().kind(), ErrorKind::BadOption, "{text}");
        }
    }
}
