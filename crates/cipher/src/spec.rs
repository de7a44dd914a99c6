//! Cipher specifications in dm-crypt's syntax: `aes-xts-plain64`, `aes:64-cbc-lmk`,
//! `capi:xts(aes)-plain64`.

mod algorithm;

pub(crate) use algorithm::Algorithm;

use std::fmt;
use std::str::FromStr;

use crate::{Error, ErrorKind, Result};

/// A parsed cipher specification. Printing it gives back the canonical text,
/// [`CipherSpec::as_written`] the text that it was parsed from.
///
/// Both forms of the same cipher compare by their parts through the accessors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CipherSpec {
    written: String,
    capi: bool,
    algorithm: Algorithm,
    keys: u32,
    iv: String,
    iv_option: Option<String>,
}

/// The most keys of a specification.
const MAX_KEYS: u32 = 1 << 10;

impl CipherSpec {
    /// The block cipher: `aes`; of `adiantum` both ciphers: `xchacha12,aes`.
    pub fn cipher(&self) -> &str {
        self.algorithm.cipher()
    }

    /// The chain mode: `xts`; for a stream cipher or an algorithm in one piece its own name.
    pub fn chain(&self) -> &str {
        self.algorithm.chain()
    }

    /// The IV generator: `plain64`; empty for modes that take none.
    pub fn iv(&self) -> &str {
        &self.iv
    }

    /// The IV generator's option: `sha256` in `essiv:sha256`.
    pub fn iv_option(&self) -> Option<&str> {
        self.iv_option.as_deref()
    }

    /// How many keys the volume key is made of, a power of two: 64 in `aes:64-cbc-lmk`, mostly one.
    pub fn key_count(&self) -> u32 {
        self.keys
    }

    /// The text that was parsed.
    pub fn as_written(&self) -> &str {
        &self.written
    }

    /// True for the null cipher, which protects nothing.
    pub fn is_null(&self) -> bool {
        self.cipher() == "cipher_null"
    }

    /// True for authenticated encryption, which needs room for a tag beside each sector:
    /// [`BuildOptions::integrity`](crate::BuildOptions).
    pub fn is_authenticated(&self) -> bool {
        self.algorithm.is_authenticated()
    }

    /// Everything after the cipher: `xts-plain64`. LUKS1 stores the two apart.
    pub fn mode(&self) -> String {
        let iv = match &self.iv_option {
            Some(option) => format!("{}:{option}", self.iv),
            None => self.iv.clone(),
        };
        if iv.is_empty() { self.chain().into() } else { format!("{}-{iv}", self.chain()) }
    }

    /// The known weaknesses of the specification, in words for a warning; empty for a sound choice.
    pub fn weaknesses(&self) -> Vec<&'static str> {
        let mut weak = Vec::new();
        let mut add = |is: bool, why| {
            if is {
                weak.push(why);
            }
        };
        let (cipher, chain, iv) = (self.cipher(), self.chain(), self.iv());
        add(self.is_null(), "cipher_null does not encrypt");
        add(chain == "ecb" && !self.is_null(), "ecb shows which blocks are equal");
        add(matches!(cipher, "des" | "arc4") || chain == "arc4", "the cipher is broken");
        add(
            matches!(cipher, "des3_ede" | "blowfish" | "cast5" | "xtea"),
            "64-bit blocks collide after some gigabytes",
        );
        add(iv == "null", "null gives equal sectors equal ciphertexts");
        add(
            chain == "cbc" && matches!(iv, "plain" | "plain64" | "plain64be" | "benbi"),
            "cbc with a known IV can be watermarked",
        );
        add(matches!(iv, "lmk" | "tcw"), "lmk and tcw are for old loop-AES and TrueCrypt volumes");
        add(iv == "plain" && chain != "cbc", "plain repeats after 2 TiB");
        add(chain == "ctr" || chain.contains("chacha"), "writing a sector again uses its key stream again");
        let nonces = ["gcm", "rfc4106", "rfc7539", "rfc7539esp", "rfc4309", "aegis128"];
        add(
            nonces.contains(&chain) && iv != "random",
            "writing a sector again uses its nonce again: contents may show, and tags may be forged",
        );
        add(
            nonces.contains(&chain) && chain != "aegis128" && iv == "random",
            "random nonces of 12 bytes or less may repeat: a new key is due before 2^32 sectors are written",
        );
        weak
    }

    /// True for a text in the `capi:` form.
    pub(crate) fn is_api_name(&self) -> bool {
        self.capi
    }

    pub(crate) fn algorithm(&self) -> &Algorithm {
        &self.algorithm
    }
}

impl FromStr for CipherSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text.is_empty() || text.len() > 128 || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(bad(
                text,
                "Bad cipher specification",
                "want 1 to 128 printable characters without spaces",
            ));
        }
        match text.strip_prefix("capi:") {
            Some(api) => parse_capi(text, api),
            None => parse_old(text),
        }
    }
}

impl fmt::Display for CipherSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.capi {
            return f.write_str(&self.written);
        }
        f.write_str(self.cipher())?;
        if self.written.split('-').next().is_some_and(|part| part.contains(':')) {
            write!(f, ":{}", self.keys)?;
        }
        write!(f, "-{}", self.mode())
    }
}

/// `cipher[:keycount]-chainmode-ivmode[:ivopts]`.
fn parse_old(text: &str) -> Result<CipherSpec> {
    let bad_spec = |why| bad(text, "Bad cipher specification", why);
    let mut parts = text.splitn(3, '-');
    let (first, chain, rest) = (parts.next().unwrap_or(""), parts.next(), parts.next());
    let (cipher, keys) = match first.split_once(':') {
        None => (first, 1),
        Some((cipher, count)) => {
            let keys = count.parse::<u32>().ok().filter(|n| n.is_power_of_two() && *n <= MAX_KEYS);
            let why = "want a power of two of at most 1024";
            (cipher, keys.ok_or_else(|| bad(text, "Bad cipher key count specification", why))?)
        }
    };
    let (iv, option) =
        match rest.map(|rest| rest.split_once(':').map_or((rest, None), |(iv, o)| (iv, Some(o)))) {
            None => (None, None),
            Some((iv, option)) => (Some(iv), option),
        };
    if text.contains(['(', ')']) {
        return Err(bad_spec("names with parentheses are for the capi: form"));
    }
    if cipher.is_empty() || chain == Some("") || iv == Some("") || option == Some("") {
        return Err(bad_spec("a part is empty"));
    }
    // A cipher alone, or `X-plain` without more, means cbc with plain.
    let (chain, iv) = match (chain, iv) {
        (None, _) | (Some("plain"), None) => ("cbc", "plain"),
        (Some("ecb"), None) => ("ecb", ""),
        (Some(_), None) => return Err(bad(text, "IV mechanism required", "only ecb goes without")),
        (Some(chain), Some(iv)) => (chain, iv),
    };
    if iv == "essiv" && option.is_none() {
        return Err(bad(
            text,
            "Digest algorithm missing for ESSIV mode",
            "want essiv:HASH, such as essiv:sha256",
        ));
    }
    let algorithm = Algorithm::new(chain, cipher)
        .ok_or_else(|| bad_spec("want names of letters, digits, \"_\" and \"-\""))?;
    Ok(CipherSpec {
        written: text.into(),
        capi: false,
        algorithm,
        keys,
        iv: iv.into(),
        iv_option: option.map(Into::into),
    })
}

/// `xts(aes)-plain64`: split at the last `:`, then at the last `-`.
fn parse_capi(text: &str, api: &str) -> Result<CipherSpec> {
    let bad_spec = |why| bad(text, "Bad cipher specification", why);
    let (api, option) = match api.rsplit_once(':') {
        Some((api, option)) => (api, Some(option.to_owned())),
        None => (api, None),
    };
    // The kernel takes what follows the last `-` for the IV; in a name such as `aes-generic` it is
    // not one.
    let (name, iv) = match api.rsplit_once('-').filter(|(_, iv)| !iv.contains(')')) {
        Some((name, iv)) => (name, iv),
        None => (api, ""),
    };
    let algorithm: Algorithm = name.parse().map_err(|()| bad_spec("want capi:CHAIN(CIPHER)-IV[:OPTION]"))?;
    let (mut algorithm, mut iv, mut option) = (algorithm, iv.to_owned(), option);
    // The two ways to write ESSIV are one.
    if let Some((inner, hash)) = algorithm.without_essiv() {
        if iv != "plain64" || option.is_some() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("cipher \"{text}\": essiv(..) goes with plain64 only"),
            ));
        }
        (algorithm, iv, option) = (inner, "essiv".into(), Some(hash));
    }
    if iv.is_empty() && algorithm.chain() != "ecb" {
        return Err(bad(text, "IV mechanism required", "the kernel would go on with an uninitialised IV"));
    }
    if iv == "essiv" && option.as_deref().is_none_or(str::is_empty) {
        return Err(bad(
            text,
            "Digest algorithm missing for ESSIV mode",
            "want essiv:HASH, such as essiv:sha256",
        ));
    }
    let keys = if iv == "lmk" { 64 } else { 1 };
    Ok(CipherSpec { written: text.into(), capi: true, algorithm, keys, iv, iv_option: option })
}

/// An error in the kernel's words, with the reason that it swallows.
fn bad(text: &str, kernel: &str, why: &str) -> Error {
    Error::new(ErrorKind::BadSpec, format!("{kernel}: cipher \"{}\": {why}", printable(text)))
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
        for text in [
            "aes-xts-plain64",
            "aes-cbc-essiv:sha256",
            "cipher_null-ecb",
            "capi:xts(aes)-plain64",
            "aes:64-cbc-lmk",
            "xchacha12,aes-adiantum-plain64",
            "capi:authenc(hmac(sha256),xts(aes))-random",
        ] {
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
            ("capi:xts(aes))-plain64", ErrorKind::BadSpec),
            ("capi:((((((((((((((((aes))))))))))))))))-plain64", ErrorKind::BadSpec),
            ("aes:3-cbc-plain", ErrorKind::BadSpec),
            ("aes(x)-cbc-plain", ErrorKind::BadSpec),
            ("xts(aes)-plain64", ErrorKind::BadSpec),
            ("aes:-cbc-plain", ErrorKind::BadSpec),
            ("aes:4294967296-cbc-plain", ErrorKind::BadSpec),
        ] {
            assert_eq!(text.parse::<CipherSpec>().unwrap_err().kind(), kind, "{text:?}");
        }
    }

    #[test]
    fn both_forms_have_the_same_parts() {
        for (old, capi) in [
            ("aes-xts-plain64", "capi:xts(aes)-plain64"),
            ("aes-cbc-essiv:sha256", "capi:essiv(cbc(aes),sha256)-plain64"),
            ("aes-cbc-essiv:sha256", "capi:cbc(aes)-essiv:sha256"),
            ("xchacha12,aes-adiantum-plain64", "capi:adiantum(xchacha12,aes)-plain64"),
            ("aes-xts-plain64", "capi:xts(ecb(aes-generic))-plain64"),
        ] {
            let parts = |text: &str| {
                let spec: CipherSpec = text.parse().unwrap();
                (spec.cipher().to_owned(), spec.mode())
            };
            assert_eq!(parts(old), parts(capi));
        }
    }

    #[test]
    fn weak_choices_are_named_and_sound_ones_are_not() {
        for sound in ["aes-xts-plain64", "serpent-cbc-essiv:sha256", "xchacha20,aes-adiantum-plain64"] {
            assert_eq!(sound.parse::<CipherSpec>().unwrap().weaknesses(), Vec::<&str>::new(), "{sound}");
        }
        for weak in [
            "aes-ecb",
            "aes-cbc-plain",
            "aes-xts-null",
            "des-cbc-essiv:md5",
            "cipher_null-ecb",
            "aes:64-cbc-lmk",
        ] {
            assert!(!weak.parse::<CipherSpec>().unwrap().weaknesses().is_empty(), "{weak}");
        }
    }
}
