//! A JSON value with its path, so that every error names the place.

use base64ct::{Base64, Encoding};
use serde_json::Value;
use underseal_cipher::CipherSpec;

use crate::{Error, ErrorKind, Hash, Result, printable};

/// A value in the metadata.
pub(crate) struct Node<'v> {
    path: String,
    value: &'v Value,
}

impl<'v> Node<'v> {
    /// A value at the top. `path` is its name.
    pub(crate) fn new(path: impl Into<String>, value: &'v Value) -> Self {
        Self { path: path.into(), value }
    }

    /// Returns an error about this value.
    pub(crate) fn error(&self, kind: ErrorKind, why: impl std::fmt::Display) -> Error {
        Error::new(kind, format!("{}: {why}", self.path))
    }

    fn bad(&self, want: &str) -> Error {
        self.error(ErrorKind::BadHeader, format_args!("want {want}"))
    }

    /// Returns the required member `name`.
    pub(crate) fn field(&self, name: &str) -> Result<Self> {
        self.optional(name)?.ok_or_else(|| self.error(ErrorKind::BadHeader, format_args!("no \"{name}\"")))
    }

    /// Returns the member `name`, if the object has it.
    pub(crate) fn optional(&self, name: &str) -> Result<Option<Self>> {
        let object = self.value.as_object().ok_or_else(|| self.bad("an object"))?;
        Ok(object.get(name).map(|value| Self { path: format!("{}.{name}", self.path), value }))
    }

    /// Returns the names of all members.
    pub(crate) fn members(&self) -> Result<impl Iterator<Item = &'v str>> {
        let object = self.value.as_object().ok_or_else(|| self.bad("an object"))?;
        Ok(object.keys().map(String::as_str))
    }

    /// Returns the members named by numbers below `limit`: keyslots, tokens, segments or digests.
    pub(crate) fn numbered(&self, limit: u32) -> Result<Vec<(u32, Self)>> {
        let object = self.value.as_object().ok_or_else(|| self.bad("an object"))?;
        let mut members = Vec::with_capacity(object.len().min(limit as usize));
        for (name, value) in object {
            let number = small_number(name, limit).ok_or_else(|| {
                let why = format_args!("{} is no number below {limit}", printable(name));
                self.error(ErrorKind::BadHeader, why)
            })?;
            members.push((number, Self { path: format!("{}.{number}", self.path), value }));
        }
        members.sort_by_key(|(number, _)| *number);
        Ok(members)
    }

    /// Returns the text.
    pub(crate) fn text(&self) -> Result<&'v str> {
        self.value.as_str().ok_or_else(|| self.bad("a string"))
    }

    /// Returns the list of strings.
    pub(crate) fn texts(&self) -> Result<Vec<&'v str>> {
        let list = self.value.as_array().ok_or_else(|| self.bad("an array"))?;
        list.iter().map(|v| v.as_str().ok_or_else(|| self.bad("an array of strings"))).collect()
    }

    /// Returns a list of different numbers below `limit`, written as strings: references to
    /// keyslots and segments.
    pub(crate) fn references(&self, limit: u32) -> Result<Vec<u32>> {
        let numbers = self.sorted(limit)?;
        if numbers.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(self.error(ErrorKind::BadHeader, "names one twice"));
        }
        Ok(numbers)
    }

    /// Like [`Self::references`], but a repeated number is accepted: a token's keyslots.
    pub(crate) fn repeated_references(&self, limit: u32) -> Result<Vec<u32>> {
        let mut numbers = self.sorted(limit)?;
        numbers.dedup();
        Ok(numbers)
    }

    fn sorted(&self, limit: u32) -> Result<Vec<u32>> {
        let parse = |text| small_number(text, limit).ok_or_else(|| self.bad("numbers of slots, as strings"));
        let mut numbers: Vec<u32> = self.texts()?.into_iter().map(parse).collect::<Result<_>>()?;
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Returns a JSON number within `range`.
    pub(crate) fn number(&self, range: std::ops::RangeInclusive<u32>) -> Result<u32> {
        let number = self.value.as_u64().and_then(|n| u32::try_from(n).ok());
        number
            .filter(|n| range.contains(n))
            .ok_or_else(|| self.bad(&format!("a number from {} to {}", range.start(), range.end())))
    }

    /// Returns a 64-bit number, written as a decimal string (JSON numbers lose precision in some
    /// readers).
    pub(crate) fn number_text(&self) -> Result<u64> {
        self.value.as_str().and_then(decimal).ok_or_else(|| self.bad("a decimal 64-bit number, as a string"))
    }

    /// Returns bytes in Base64.
    pub(crate) fn bytes(&self) -> Result<Vec<u8>> {
        Base64::decode_vec(self.text()?).map_err(|_| self.bad("Base64"))
    }

    /// Returns the hash of this name, or an `Unsupported` error for an unknown name.
    pub(crate) fn hash(&self) -> Result<Hash> {
        self.text()?.parse().map_err(|e: Error| e.within(&self.path))
    }

    /// Returns the cipher, or an `Unsupported` error when this build cannot parse the name.
    pub(crate) fn cipher(&self) -> Result<CipherSpec> {
        let text = self.text()?;
        if text.is_empty() {
            return Err(self.bad("a cipher"));
        }
        text.parse().map_err(|e: underseal_cipher::Error| {
            let cipher = printable(self.value.as_str().unwrap_or_default());
            self.error(ErrorKind::Unsupported, format_args!("cipher {cipher} is not known")).with_source(e)
        })
    }
}

/// Parses digits only: no sign, no leading zero.
fn decimal(text: &str) -> Option<u64> {
    let canonical = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| canonical)
}

fn small_number(text: &str, limit: u32) -> Option<u32> {
    decimal(text).and_then(|n| u32::try_from(n).ok()).filter(|&n| n < limit)
}
