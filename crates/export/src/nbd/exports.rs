//! The exports that an NBD server offers, checked once when the server starts.

use super::protocol::{MAX_STRING, TransmissionFlags};
use crate::net::Printable;
use crate::{Error, ErrorKind, Result};

/// An NBD export's name and properties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportInfo {
    /// The name a client asks for; may be empty. At most 4096 bytes, without NUL.
    pub name: String,
    /// The description for people; may be empty. At most 4096 bytes, without NUL.
    pub description: String,
    /// The size in bytes; at most `i64::MAX`, for clients keep it in an `off_t`.
    pub size: u64,
    /// Alignment of offsets and lengths, in bytes: a power of two up to 65,536. Clients that do not
    /// negotiate block sizes are refused where it is over 512.
    pub min_block: u32,
    /// Alignment that avoids read-modify-write, in bytes: a power of two, at least 512 and at least
    /// `min_block`.
    pub preferred_block: u32,
    /// The longest payload of a read or write, in bytes: at least `preferred_block`.
    pub max_block: u32,
    /// The transmission flags. HAS_FLAGS is set, and DF is cleared for clients without structured
    /// replies, when the flags are sent.
    pub flags: TransmissionFlags,
}

/// The exports of a server: at least one, each name once, all within the protocol's rules.
#[derive(Debug, Clone)]
pub struct Exports(Vec<ExportInfo>);

impl Exports {
    /// Checks the descriptions.
    ///
    /// # Errors
    /// [`ErrorKind::BadExport`] names the export and the rule it breaks.
    pub fn new(exports: Vec<ExportInfo>) -> Result<Self> {
        if exports.is_empty() {
            return Err(Error::new(ErrorKind::BadExport, "a server needs at least one export"));
        }
        for (i, export) in exports.iter().enumerate() {
            let fault = export.fault().or_else(|| {
                exports[..i]
                    .iter()
                    .any(|other| other.name == export.name)
                    .then_some("another export has its name")
            });
            if let Some(fault) = fault {
                let name = Printable(export.name.as_bytes());
                return Err(Error::new(ErrorKind::BadExport, format!("export {name}: {fault}")));
            }
        }
        Ok(Self(exports))
    }

    /// The same exports with their current sizes, where these are known.
    pub(super) fn sized(&self, size: impl Fn(usize) -> Option<u64>) -> Self {
        let mut exports = self.0.clone();
        for (number, export) in exports.iter_mut().enumerate() {
            export.size = size(number).unwrap_or(export.size);
        }
        Self(exports)
    }

    /// Finds the export of that name; the empty name means the first export, unless an export is
    /// named "".
    pub fn find(&self, name: &[u8]) -> Option<usize> {
        let exact = self.0.iter().position(|export| export.name.as_bytes() == name);
        exact.or(if name.is_empty() { Some(0) } else { None })
    }
}

impl std::ops::Deref for Exports {
    type Target = [ExportInfo];

    fn deref(&self) -> &[ExportInfo] {
        &self.0
    }
}

impl ExportInfo {
    fn fault(&self) -> Option<&'static str> {
        let text = |s: &str| s.len() <= MAX_STRING && !s.contains('\0');
        let rules = [
            (text(&self.name), "its name is longer than 4096 bytes or holds a NUL"),
            (text(&self.description), "its description is longer than 4096 bytes or holds a NUL"),
            (i64::try_from(self.size).is_ok(), "its size is more than 2^63 - 1 bytes"),
            (
                self.min_block.is_power_of_two() && self.min_block <= 1 << 16,
                "its minimum block is no power of two from 1 to 65,536",
            ),
            (
                self.preferred_block.is_power_of_two() && self.preferred_block >= self.min_block.max(512),
                "its preferred block is no power of two of at least 512 and the minimum block",
            ),
            (self.max_block >= self.preferred_block, "its maximum block is smaller than the preferred one"),
            (
                self.min_block == 0 || self.size.is_multiple_of(u64::from(self.min_block)),
                "its size is no multiple of the minimum block",
            ),
            (
                self.flags.contains(TransmissionFlags::SEND_WRITE_ZEROES)
                    || !self.flags.contains(TransmissionFlags::SEND_FAST_ZERO),
                "fast zeroes need write zeroes",
            ),
        ];
        rules.into_iter().find_map(|(kept, fault)| (!kept).then_some(fault))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(name: &str) -> ExportInfo {
        ExportInfo {
            name: name.into(),
            description: String::new(),
            size: 1 << 20,
            min_block: 512,
            preferred_block: 4096,
            max_block: 1 << 25,
            flags: TransmissionFlags::HAS_FLAGS,
        }
    }

    #[test]
    fn empty_name_means_the_first_export_unless_one_is_named_so() {
        let exports = Exports::new(vec![export("a"), export("b")]).unwrap();
        assert_eq!(
            (exports.find(b""), exports.find(b"b"), exports.find(b"c"), exports.find(b"\xff")),
            (Some(0), Some(1), None, None)
        );
        assert_eq!(Exports::new(vec![export("a"), export("")]).unwrap().find(b""), Some(1));
    }

    #[test]
    fn only_sizes_that_are_known_change() {
        let exports = Exports::new(vec![export("a"), export("b")]).unwrap();
        let sized = exports.sized(|number| (number == 1).then_some(1 << 30));
        assert_eq!((sized[0].clone(), sized[1].size), (export("a"), 1 << 30));
        assert_eq!(sized[1].name, "b");
    }

    #[test]
    fn every_broken_rule_is_named() {
        type Break = fn(&mut ExportInfo);
        let table: [(Break, &str); 10] = [
            (|e| e.name = "x".repeat(4097), "its name"),
            (|e| e.name = "a\0b".into(), "its name"),
            (|e| e.description = "x".repeat(4097), "its description"),
            (|e| e.size = 1 << 63, "its size is more"),
            (|e| e.min_block = 0, "its minimum block"),
            (|e| e.min_block = 1 << 17, "its minimum block"),
            (|e| e.preferred_block = 256, "its preferred block"),
            (|e| e.max_block = 2048, "its maximum block"),
            (|e| e.size += 1, "no multiple"),
            (|e| e.flags |= TransmissionFlags::SEND_FAST_ZERO, "fast zeroes"),
        ];
        for (break_it, fault) in table {
            let mut broken = export("disk");
            break_it(&mut broken);
            let error = Exports::new(vec![broken]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadExport);
            assert!(error.to_string().contains(fault), "{error}");
        }
        assert!(Exports::new(vec![]).is_err());
        assert!(Exports::new(vec![export("a"), export("a")]).unwrap_err().to_string().contains("another"));
    }
}
