//! Cipher specifications in dm-crypt's words: `aes-xts-plain64`, `aes-cbc-essiv:sha256`, `capi:xts(aes)-plain64`.

use std::fmt;
use std::str::FromStr;

use crate::{Error, ErrorKind, Result};

/// A parsed cipher specification. Printing it gives back the canonical text.
///
/// The `capi:` form of a block-cipher chain is understood and kept as it was written; both forms of the same
/// cipher compare by their parts through the accessors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CipherSpec {
    cipher: String,
    chain: String,
    iv: String,
    iv_option: Option<String>,
    capi: bool,
}

impl CipherSpec {
    /// The block cipher: `aes`.
    pub fn cipher(&self) -> &str {
        &self.cipher
    }

    /// The chain mode: `xts`.
    pub fn chain(&self) -> &str {
        &self.chain
    }

    /// The IV generator: `plain64`; empty for modes that take none.
    pub fn iv(&self) -> &str {
        &self.iv
    }

    /// The IV generator's option: `sha256` in `essiv:sha256`.
    pub fn iv_option(&self) -> Option<&str> {
        self.iv_option.as_deref()
    }

    /// True for the null cipher, which protects nothing.
    pub fn is_null(&self) -> bool {
        self.cipher == "cipher_null"
    }

    /// Everything after the cipher: `xts-plain64`. LUKS1 stores the two apart.
    pub fn mode(&self) -> String {
        let iv = match &self.iv_option {
            Some(option) => format!("{}:{option}", self.iv),
            None => self.iv.clone(),
        };
        if iv.is_empty() { self.chain.clone() } else { format!("{}-{iv}", self.chain) }
    }
}

impl FromStr for CipherSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad =
            |why: &str| Error::new(ErrorKind::BadSpec, format!("cipher \"{}\": {why}", printable(text)));
        if text.is_empty() || text.len() > 128 || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(bad("want 1 to 128 printable characters without spaces"));
        }
        if let Some(api) = text.strip_prefix("capi:") {
            return parse_capi(api).ok_or_else(|| bad("want capi:CHAIN(CIPHER)-IV[:OPTION]"));
        }
        let (names, option) = match text.split_once(':') {
            // `aes:64-cbc-lmk` has a key count here instead; no cipher of this build takes one.
            Some((names, _)) if !names.contains('-') => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!("cipher \"{names}\" with several keys is not supported"),
                ));
            }
            Some((names, option)) => (names, Some(option)),
            None => (text, None),
        };
        let mut parts = names.splitn(3, '-');
        let (cipher, chain, iv) = (parts.next().unwrap_or(""), parts.next(), parts.next());
        if cipher.is_empty() || chain == Some("") || iv == Some("") || option == Some("") {
            return Err(bad("a part is empty"));
        }
        // dm-crypt: a cipher alone, or `X-plain` without more, means cbc with plain.
        let (chain, iv) = match (chain, iv) {
            (None, _) | (Some("plain"), None) => ("cbc", "plain"),
            (Some("ecb"), None) => ("ecb", ""),
            (Some(_), None) => return Err(bad("IV mechanism required")),
            (Some(chain), Some(iv)) => (chain, iv),
        };
        if iv == "essiv" && option.is_none() {
            return Err(bad("Digest algorithm missing for ESSIV mode"));
        }
        Ok(Self {
            cipher: cipher.into(),
            chain: chain.into(),
            iv: iv.into(),
            iv_option: option.map(Into::into),
            capi: false,
        })
    }
}

impl fmt::Display for CipherSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.capi {
            return write!(f, "{}-{}", self.cipher, self.mode());
        }
        write!(f, "capi:{}({})-{}", self.chain, self.cipher, self.iv)?;
        self.iv_option.as_ref().map_or(Ok(()), |option| write!(f, ":{option}"))
    }
}

/// `xts(aes)-plain64`, `essiv(cbc(aes),sha256)-plain64`: split at the last `:`, then at the last `-`.
fn parse_capi(api: &str) -> Option<CipherSpec> {
    let (api, iv_option) = match api.rsplit_once(':') {
        Some((api, option)) => (api, Some(option.to_owned())),
        None => (api, None),
    };
    let (algorithm, iv) = api.rsplit_once('-')?;
    let (chain, rest) = algorithm.split_once('(')?;
    let cipher = rest.strip_suffix(')')?;
    let plain = |s: &str| !s.is_empty() && !s.contains(['(', ')', ',']);
    if !plain(chain) || !plain(cipher) || iv.is_empty() {
        return None;
    }
    Some(CipherSpec { cipher: cipher.into(), chain: chain.into(), iv: iv.into(), iv_option, capi: true })
}

/// Hostile text, made fit for an error line.
fn printable(text: &str) -> String {
    text.chars().take(64).map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_print_as_they_were_written() {
        for text in ["aes-xts-plain64", "aes-cbc-essiv:sha256", "cipher_null-ecb", "capi:xts(aes)-plain64"] {
            assert_eq!(text.parse::<CipherSpec>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_bare_cipher_means_cbc_plain() {
        for text in ["aes", "aes-plain"] {
            assert_eq!(text.parse::<CipherSpec>().unwrap().to_string(), "aes-cbc-plain");
        }
    }

    #[test]
    fn malformed_specifications_are_refused_with_their_kind() {
        for (text, kind) in [
            ("", ErrorKind::BadSpec),
            ("aes-xts", ErrorKind::BadSpec),
            ("aes-cbc-essiv", ErrorKind::BadSpec),
            ("aes--plain64", ErrorKind::BadSpec),
            ("aes-xts-plain64 ", ErrorKind::BadSpec),
            ("capi:xts(aes)", ErrorKind::BadSpec),
            ("capi:(aes)-plain64", ErrorKind::BadSpec),
            ("aes:64-cbc-lmk", ErrorKind::Unsupported),
        ] {
            assert_eq!(text.parse::<CipherSpec>().unwrap_err().kind(), kind, "{text:?}");
        }
    }
}
