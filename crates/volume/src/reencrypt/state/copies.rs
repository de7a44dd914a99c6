//! The two copies of the document: text, in fixed places.

use super::document::Document;
use super::seal::Seal;
use crate::info::hex;
use crate::storage::{self, Target};
use crate::{Error, ErrorKind, Hash, Result};

/// The length of each copy.
pub(super) const LEN: u64 = 16 << 10;

const MAGIC: &str = "underseal reencryption state\n";
const CHECKSUM: &str = "sha256:";
const SEAL: &str = "hmac-sha256:";
/// The digits of a line's hash. A line end follows.
const DIGITS: usize = 64;

/// The place of the newest copy, if any.
pub(super) struct Copies {
    newest: Option<Place>,
}

/// The place of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    First,
    Second,
}

impl Place {
    fn offset(self) -> u64 {
        match self {
            Self::First => 0,
            Self::Second => LEN,
        }
    }
}

/// A copy with a correct checksum.
pub(super) struct Text {
    /// The seal's digits, and the document.
    lines: String,
}

impl Text {
    /// Parses a copy and checks its magic and its checksum.
    fn parse(bytes: &[u8]) -> Result<Self> {
        let none = || Error::new(ErrorKind::NoHeader, "this is no state of a reencryption");
        let bad =
            |why: &str| Error::new(ErrorKind::BadHeader, format!("a copy of the state is damaged: {why}"));
        let rest = bytes.strip_prefix(MAGIC.as_bytes()).ok_or_else(none)?;
        let (line, rest) = rest.split_at_checked(CHECKSUM.len() + DIGITS + 1).ok_or_else(none)?;
        if line != checksum(rest).as_bytes() {
            return Err(bad("its checksum is wrong"));
        }
        let end = rest.iter().position(|&byte| byte == 0).unwrap_or(rest.len());
        let (text, zeros) = rest.split_at(end);
        if zeros.iter().any(|&byte| byte != 0) {
            return Err(bad("it has bytes behind its end"));
        }
        let lines = std::str::from_utf8(text).map_err(|e| bad("it is no text").with_source(e))?;
        let digits = lines.strip_prefix(SEAL).and_then(|rest| rest.split_at_checked(DIGITS));
        match digits {
            Some((_, json)) if json.starts_with('\n') => Ok(Self { lines: lines.into() }),
            _ => Err(bad("it has no seal")),
        }
    }

    /// Returns the sealed part.
    pub(super) fn json(&self) -> &str {
        &self.lines[SEAL.len() + DIGITS + 1..]
    }

    /// Returns the seal's digits.
    pub(super) fn seal(&self) -> &str {
        &self.lines[SEAL.len()..SEAL.len() + DIGITS]
    }
}

impl Copies {
    /// Returns the copies of an empty file.
    ///
    /// Fails with `BadOption` when the file is not empty.
    pub(super) fn begin(on: &dyn Target) -> Result<Self> {
        let bytes = storage::read(on, 0, usize::try_from(2 * LEN).unwrap_or(usize::MAX))?;
        if bytes.iter().any(|&byte| byte != 0) {
            let context = "the state file is not empty; resume its reencryption, or name another file";
            return Err(Error::new(ErrorKind::BadOption, context));
        }
        Ok(Self { newest: None })
    }

    /// Reads both copies and returns the newer sound copy.
    ///
    /// Fails with `NoHeader`, `BadHeader` and `Io`.
    pub(super) fn read(on: &dyn Target) -> Result<(Self, Text)> {
        let read = |place: Place| -> Result<(u64, Place, Text)> {
            let mut bytes = vec![0; usize::try_from(LEN).unwrap_or(usize::MAX)];
            storage::read_into(on, place.offset(), &mut bytes).map_err(|e| match e.kind() {
                ErrorKind::TooSmall => Error::new(ErrorKind::NoHeader, "this is no state of a reencryption"),
                _ => e,
            })?;
            let text = Text::parse(&bytes)?;
            let count = Document::parse(text.json())?.counted();
            Ok((count, place, text))
        };
        let (first, second) = (read(Place::First), read(Place::Second));
        let (_, place, text) = match (first, second) {
            (Err(e), _) | (_, Err(e)) if e.kind() == ErrorKind::Io => return Err(e),
            (Ok(first), Ok(second)) => {
                if second.0 > first.0 {
                    second
                } else {
                    first
                }
            }
            (Ok(one), Err(_)) | (Err(_), Ok(one)) => one,
            (Err(first), Err(second)) => return Err(neither(on, first, second)),
        };
        Ok((Self { newest: Some(place) }, text))
    }

    /// Rewrites the newest copy unchanged: unchanged bytes cannot be torn.
    ///
    /// Fails with `Io`.
    pub(super) fn secure(&self, on: &dyn Target) -> Result<()> {
        let Some(place) = self.newest else { return Ok(()) };
        let bytes = storage::read(on, place.offset(), usize::try_from(LEN).unwrap_or(usize::MAX))?;
        storage::write(on, place.offset(), &bytes)?;
        storage::sync(on)
    }

    /// Writes the document in place of the older copy. Until this returns without an error, the
    /// newest copy is the previous copy.
    ///
    /// Fails with `BadOption` when the document does not fit, and with `Io`.
    pub(super) fn write(&mut self, on: &dyn Target, document: &Document, seal: &Seal) -> Result<()> {
        let json = document.print()?;
        let mut rest = format!("{SEAL}{}\n{json}", seal.of(&json)?).into_bytes();
        let head = MAGIC.len() + CHECKSUM.len() + DIGITS + 1;
        let room = usize::try_from(LEN).unwrap_or(usize::MAX) - head;
        if rest.len() > room {
            let context = format!("a state of {} bytes does not fit in {LEN}", rest.len());
            return Err(Error::new(ErrorKind::BadOption, context));
        }
        rest.resize(room, 0);
        let head = format!("{MAGIC}{}", checksum(&rest));
        let place = match self.newest {
            Some(Place::First) => Place::Second,
            Some(Place::Second) | None => Place::First,
        };
        storage::write(on, place.offset(), &[head.as_bytes(), &rest].concat())?;
        storage::sync(on)?;
        self.newest = Some(place);
        Ok(())
    }
}

/// Returns why no copy is sound.
fn neither(on: &dyn Target, first: Error, second: Error) -> Error {
    let read = |place: Place| {
        let left = storage::size(on).map_or(0, |size| size.saturating_sub(place.offset()));
        storage::read(on, place.offset(), usize::try_from(left.min(LEN)).unwrap_or(usize::MAX))
    };
    let (Ok(one), Ok(other)) = (read(Place::First), read(Place::Second)) else { return first };
    let is_empty = |place: &[u8]| place.iter().all(|&byte| byte == 0);
    // The second copy is first written with the first step in progress, or after all steps without
    // protection.
    if (is_empty(&one) || one.starts_with(MAGIC.as_bytes())) && is_empty(&other) {
        let context = "the state was cut off as it was made: nothing has begun, unless it was to be without protection (\"none\"). \
                       Remove the file, and begin again";
        return Error::new(first.kind(), context);
    }
    if first.kind() == ErrorKind::NoHeader { second } else { first }
}

/// Returns the line with the checksum of the bytes behind it.
fn checksum(rest: &[u8]) -> String {
    format!("{CHECKSUM}{}\n", hex(&Hash::Sha256.digest(&[rest])))
}
