//! Text from headers: fixed fields on disk, and hostile names made safe for messages.

use std::fmt;

use crate::{Error, ErrorKind, Result};

/// Returns hostile text, shortened and quoted for a message.
pub(crate) fn printable(text: &str) -> String {
    let short: String = text.chars().take(64).collect();
    format!("\"{}\"", visible(&short))
}

/// Returns hostile text without characters that could move a terminal's cursor.
pub(crate) fn visible(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Text in a field of `N` bytes, ending with a NUL and zeros after it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct FixedText<const N: usize> {
    bytes: Vec<u8>,
    /// The bytes, with a replacement character for each part that is not UTF-8.
    text: String,
}

impl<const N: usize> FixedText<N> {
    /// Accepts `text` if it fits with its NUL. `what` names it in the error.
    pub(crate) fn new(text: &str, what: &str) -> Result<Self> {
        let bad = |why: &str| Err(Error::new(ErrorKind::BadOption, format!("{what}: {why}")));
        if text.len() >= N {
            return bad(&format!("longer than {} bytes", N - 1));
        }
        if text.chars().any(char::is_control) {
            return bad("holds a control character");
        }
        Ok(Self { bytes: text.into(), text: text.into() })
    }

    /// Reads a field of `N` bytes. Bytes after the first NUL are ignored, as in cryptsetup.
    pub(crate) fn parse(field: &[u8], what: &str) -> Result<Self> {
        let this = Self::parse_any(field, what)?;
        match std::str::from_utf8(&this.bytes) {
            Ok(_) => Ok(this),
            Err(_) => Err(Error::new(ErrorKind::BadHeader, format!("the {what} is no text"))),
        }
    }

    /// Reads a field whose text may be in any encoding: cryptsetup writes what the terminal sends.
    pub(crate) fn parse_any(field: &[u8], what: &str) -> Result<Self> {
        let no_end = || Error::new(ErrorKind::BadHeader, format!("the {what} does not end"));
        let end = field.iter().position(|&b| b == 0).ok_or_else(no_end)?;
        let bytes = field[..end].to_vec();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(Self { bytes, text })
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the text with its NUL, as it lies on disk.
    pub(crate) fn field(&self) -> Vec<u8> {
        [self.as_bytes(), &[0]].concat()
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl<const N: usize> fmt::Debug for FixedText<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}
