//! Entries of BitLocker's metadata: size, type, value type, version, data. Entries follow each
//! other and nest.

use crate::fields::Fields;
use crate::{Error, ErrorKind, Result};

/// Bytes before an entry's data.
const HEAD: usize = 8;

/// Types of entries on the first level.
pub(crate) mod kind {
    pub(crate) const VMK: u16 = 0x0002;
    pub(crate) const FVEK: u16 = 0x0003;
    pub(crate) const STARTUP_KEY: u16 = 0x0006;
    pub(crate) const DESCRIPTION: u16 = 0x0007;
    pub(crate) const MOVED_HEADER: u16 = 0x000f;
}

/// Types of values.
pub(crate) mod value {
    pub(crate) const KEY: u16 = 0x0001;
    pub(crate) const TEXT: u16 = 0x0002;
    pub(crate) const STRETCH: u16 = 0x0003;
    pub(crate) const CCM: u16 = 0x0005;
    pub(crate) const VMK: u16 = 0x0008;
    pub(crate) const EXTERNAL_KEY: u16 = 0x0009;
    pub(crate) const PLACE: u16 = 0x000f;
    pub(crate) const GUID: u16 = 0x0017;
    pub(crate) const HINT: u16 = 0x0018;
}

/// An entry of the metadata.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) kind: u16,
    pub(crate) value: u16,
    pub(crate) data: &'a [u8],
}

/// The entries of a list. A size of 0 ends the list; an entry that is shorter than its head or
/// longer than the list is an error, after which the list ends.
pub(crate) struct Entries<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let list = std::mem::take(&mut self.0);
        if list.len() < HEAD {
            return None;
        }
        let fields = Fields(list);
        let read = || -> Result<Option<(Entry<'a>, &'a [u8])>> {
            let size = usize::from(fields.le16(0)?);
            if size == 0 {
                return Ok(None);
            }
            if size < HEAD || size > list.len() {
                let context = format!("an entry of {size} bytes in a list with {} left", list.len());
                return Err(Error::new(ErrorKind::BadHeader, context));
            }
            let entry = Entry { kind: fields.le16(2)?, value: fields.le16(4)?, data: &list[HEAD..size] };
            Ok(Some((entry, &list[size..])))
        };
        match read() {
            Ok(Some((entry, rest))) => {
                self.0 = rest;
                Some(Ok(entry))
            }
            Ok(None) => None,
            Err(e) => Some(Err(e)),
        }
    }
}

/// Text of a value: UTF-16, up to its zero. Lone surrogates become replacement characters.
pub(crate) fn text(data: &[u8]) -> String {
    let units = data.as_chunks().0.iter().map(|unit| u16::from_le_bytes(*unit));
    let units = units.take_while(|unit| *unit != 0);
    char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_end_at_a_zero_and_never_run_beyond_their_list() {
        let list = [10, 0, 2, 0, 8, 0, 1, 0, 7, 7, 8, 0, 3, 0, 5, 0, 1, 0, 0, 0, 9, 9, 9, 9, 9, 9];
        let read: Vec<_> =
            Entries(&list).map(|e| e.map(|e| (e.kind, e.value, e.data.len())).unwrap()).collect();
        assert_eq!(read, [(2, 8, 2), (3, 5, 0)]);
        for size in [1u8, 7, 9, 255] {
            let list = [size, 0, 0, 0, 0, 0, 0, 0];
            let mut entries = Entries(&list);
            assert!(entries.next().unwrap().is_err(), "{size}");
            assert!(entries.next().is_none());
        }
    }

    #[test]
    fn text_survives_lone_surrogates() {
        assert_eq!(text(&[0x41, 0, 0, 0xd8, 0x42, 0, 0, 0, 0x43, 0]), "A\u{fffd}B");
    }
}
