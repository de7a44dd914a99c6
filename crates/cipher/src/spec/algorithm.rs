//! Algorithm names of the kernel's crypto API: `xts(aes)`, `authenc(hmac(sha256),cbc(aes))`.

use std::str::FromStr;

/// A name, with the names that it is applied to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Algorithm {
    name: String,
    of: Vec<Algorithm>,
    /// The innermost names, joined: the ciphers.
    cipher: String,
}

/// How deep names may nest: the deepest real one has three levels.
const DEPTH: usize = 6;

impl Algorithm {
    /// `chain(cipher)`; the cipher may be several names with commas.
    pub(crate) fn new(chain: &str, cipher: &str) -> Option<Self> {
        format!("{chain}({cipher})").parse().ok()
    }

    /// The outermost name.
    pub(crate) fn chain(&self) -> &str {
        &self.name
    }

    /// The innermost names: `aes`; `xchacha12,aes`.
    pub(crate) fn cipher(&self) -> &str {
        &self.cipher
    }

    /// The arguments of the name.
    pub(crate) fn of(&self) -> &[Algorithm] {
        &self.of
    }

    /// The name, if it has no arguments.
    pub(crate) fn leaf(&self) -> Option<&str> {
        self.of.is_empty().then_some(&self.name)
    }

    /// The name of a block cipher, also in the form `ecb(..)`.
    pub(crate) fn block_cipher(&self) -> Option<&str> {
        match (self.name.as_str(), &self.of[..]) {
            ("ecb", [inner]) => inner.leaf(),
            _ => self.leaf(),
        }
    }

    /// The arguments X and HASH of `essiv(X,HASH)`.
    pub(crate) fn without_essiv(&self) -> Option<(Self, String)> {
        match (self.name.as_str(), &self.of[..]) {
            ("essiv", [inner, hash]) if !inner.is_authenticated() => {
                Some((inner.clone(), hash.leaf()?.into()))
            }
            _ => None,
        }
    }

    /// True for the API's AEADs.
    pub(crate) fn is_authenticated(&self) -> bool {
        let names = [
            "gcm",
            "ccm",
            "rfc7539",
            "rfc7539esp",
            "rfc4106",
            "rfc4309",
            "rfc4543",
            "authenc",
            "authencesn",
            "echainiv",
        ];
        names.contains(&self.name.as_str())
            || self.name.starts_with("aegis")
            || self.name == "essiv" && self.of.first().is_some_and(Self::is_authenticated)
    }
}

impl FromStr for Algorithm {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut rest = text;
        let algorithm = parse(&mut rest, DEPTH)?;
        if rest.is_empty() { Ok(algorithm) } else { Err(()) }
    }
}

fn parse(rest: &mut &str, depth: usize) -> Result<Algorithm, ()> {
    let end = rest.find(['(', ')', ',']).unwrap_or(rest.len());
    let (name, after) = rest.split_at(end);
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if name.is_empty() || depth == 0 || !name.chars().all(is_name) {
        return Err(());
    }
    *rest = after;
    let mut of = Vec::new();
    if let Some(inside) = rest.strip_prefix('(') {
        *rest = inside;
        loop {
            of.push(parse(rest, depth - 1)?);
            let (separator, after) = rest.split_at_checked(1).ok_or(())?;
            *rest = after;
            match separator {
                "," => {}
                ")" => break,
                _ => return Err(()),
            }
        }
    }
    // `-generic` names an implementation, not another algorithm.
    let name = name.strip_suffix("-generic").unwrap_or(name).to_owned();
    let inner = of.iter().map(|of| of.cipher.as_str()).collect::<Vec<_>>().join(",");
    let cipher = if of.is_empty() { name.clone() } else { inner };
    Ok(Algorithm { name, of, cipher })
}
