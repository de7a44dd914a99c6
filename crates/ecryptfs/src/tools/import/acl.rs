//! Access control lists as tar archives write them (`SCHILY.acl.access` and `SCHILY.acl.default`),
//! in the kernel's form.
//!
//! ```text
//!   user::rw-        separated by line feeds (GNU tar) or commas (star, bsdtar);
//!   user:name:r--    names of users and groups, or numbers;
//!   user:name:r--:7  star and bsdtar write both
//!   group::r--
//!   mask::r--
//!   other::---
//! ```
//! The kernel's form is the xattr `system.posix_acl_access` (`linux/posix_acl_xattr.h`): a version,
//! then for each entry a tag, permissions and a number, all little-endian.

use std::fs;

use super::archive::bad;
use crate::Result;

const VERSION: u32 = 2;
/// The number of an entry without a name.
const NO_ID: u32 = u32::MAX;

/// Returns the xattr's value of a list. An entry whose name this system does not know, and which
/// has no number, is left out, with a warning: others get no access by it.
///
/// Fails with `BadFile` when the text is no list.
pub(super) fn to_xattr(text: &[u8]) -> Result<Vec<u8>> {
    let wrong = |what: &str| bad(format!("an access control list {what}"));
    let text = str::from_utf8(text).map_err(|_| wrong("is no text"))?;
    let mut entries = Vec::new();
    for line in text.split(['\n', ',']).map(|line| line.split('#').next().unwrap_or("").trim()) {
        if line.is_empty() {
            continue;
        }
        let mut fields = line.split(':');
        let mut next = || fields.next().unwrap_or("").trim();
        let (kind, name, allowed, number) = (next(), next(), next(), next());
        let allowed = permissions(allowed).ok_or_else(|| wrong(&format!("has the entry {line:?}")))?;
        let (tag, names) = match (kind, name.is_empty()) {
            ("user" | "u", true) => (0x01, None),
            ("user" | "u", false) => (0x02, Some("/etc/passwd")),
            ("group" | "g", true) => (0x04, None),
            ("group" | "g", false) => (0x08, Some("/etc/group")),
            ("mask" | "m", true) => (0x10, None),
            ("other" | "o", true) => (0x20, None),
            _ => return Err(wrong(&format!("has the entry {line:?}"))),
        };
        let id = match names {
            None => Some(NO_ID),
            Some(file) => number_of(name, number, file),
        };
        match id {
            Some(id) => entries.push((tag, id, allowed)),
            None => log::warn!("the access of {kind} {name} is left out: this system does not know the name"),
        }
    }
    // The kernel wants them sorted.
    entries.sort_unstable();
    let mut value = VERSION.to_le_bytes().to_vec();
    for (tag, id, allowed) in entries {
        value.extend(u16::to_le_bytes(tag));
        value.extend(u16::to_le_bytes(allowed));
        value.extend(u32::to_le_bytes(id));
    }
    Ok(value)
}

fn permissions(text: &str) -> Option<u16> {
    let bit = |letter| match letter {
        'r' => Some(4),
        'w' => Some(2),
        'x' => Some(1),
        '-' => Some(0),
        _ => None,
    };
    (!text.is_empty()).then_some(())?;
    text.chars().try_fold(0, |sum, letter| Some(sum | bit(letter)?))
}

/// Returns the number of a user or group: that of this system by name, else the archive's.
fn number_of(name: &str, number: &str, file: &str) -> Option<u32> {
    let known = || {
        let text = fs::read_to_string(file).ok()?;
        let line = text.lines().find(|line| line.split(':').next() == Some(name))?;
        line.split(':').nth(2)?.parse().ok()
    };
    let given = || number.parse().or_else(|_| name.parse()).ok();
    known().or_else(given).filter(|id| *id != NO_ID)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_each_program_have_the_kernels_form() {
        let expected = [
            &[2, 0, 0, 0][..],
            &[1, 0, 6, 0, 255, 255, 255, 255],
            &[2, 0, 4, 0, 0, 0, 0, 0],
            &[2, 0, 7, 0, 0x39, 0x30, 0, 0],
            &[4, 0, 0, 0, 255, 255, 255, 255],
            &[16, 0, 7, 0, 255, 255, 255, 255],
            &[32, 0, 0, 0, 255, 255, 255, 255],
        ]
        .concat();
        let gnu = b"user::rw-\nuser:root:r--\nuser:12345:rwx\ngroup::---\nmask::rwx\nother::---\n";
        let star = b"user::rw-,user:root:r--:0,user:no such user:rwx:12345,group::---,mask::rwx,other::---";
        let unsorted = b"o::-,m::rwx,g::-,u:12345:rwx,u:root:r,u::rw,user:no such user:rwx";
        for text in [&gnu[..], star, unsorted] {
            assert_eq!(to_xattr(text).unwrap(), expected, "{}", String::from_utf8_lossy(text));
        }
        for wrong in [&b"user::rwz"[..], b"user::", b"user", b"mask:x:r", b"\xff", b"x::r"] {
            assert_eq!(to_xattr(wrong).unwrap_err().kind(), crate::ErrorKind::BadFile);
        }
    }
}
