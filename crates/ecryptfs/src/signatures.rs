//! Signature files (`~/.ecryptfs/Private.sig`): a signature a line, first that of the contents'
//! key, then that of the names' key.

use crate::{Error, ErrorKind, Result, Signature};

/// The signatures in a signature file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signatures {
    /// The signature of the contents' token.
    pub contents: Signature,
    /// The signature of the names' token, if names are encrypted.
    pub names: Option<Signature>,
}

impl Signatures {
    /// Reads a signature file.
    ///
    /// # Errors
    /// `BadFile`.
    pub fn read(bytes: &[u8]) -> Result<Self> {
        let bad = |why: &str| Error::new(ErrorKind::BadFile, format!("a damaged signature file: {why}"));
        let text = std::str::from_utf8(bytes).map_err(|_| bad("it is no text"))?;
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(|line| {
            line.parse::<Signature>().map_err(|_| bad("a line is no signature of 16 hex digits"))
        });
        let contents = lines.next().ok_or_else(|| bad("it is empty"))??;
        let names = lines.next().transpose()?;
        match lines.next() {
            Some(_) => Err(bad("it has more than two lines")),
            None => Ok(Self { contents, names }),
        }
    }

    /// Returns the file's text.
    pub fn to_text(&self) -> String {
        let names = self.names.map(|names| format!("{names}\n")).unwrap_or_default();
        format!("{}\n{names}", self.contents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_file_has_one_line_or_two() {
        let both = "d395309aaad4de06\nbe877764c5918621\n";
        let read = Signatures::read(both.as_bytes()).unwrap();
        assert_eq!(read.to_text(), both);
        assert_eq!(read.names.unwrap().to_string(), "be877764c5918621");
        assert_eq!(Signatures::read(b"d395309aaad4de06").unwrap().names, None);
        for text in ["", "\n", "d395", "d395309aaad4de06\nx", &format!("{both}{both}"), "d395309aaad4de0g"] {
            assert_eq!(Signatures::read(text.as_bytes()).unwrap_err().kind(), ErrorKind::BadFile, "{text:?}");
        }
        assert!(Signatures::read(&[0xff; 16]).is_err());
    }
}
