//! Startup key files (`.BEK`): a key that opens one protector.

use underseal_cipher::Key;

use super::entries::{Entries, kind, value};
use super::guid::Guid;
use crate::fields::Fields;
use crate::{Error, ErrorKind, Result};

/// Bytes of a file's head.
const HEAD: usize = 48;
/// Bytes of its entry before the nested ones: a GUID and a time.
const ENTRY_HEAD: usize = 24;
/// Longer than any real one (200 bytes): a file that is longer is something else.
pub const MOST: usize = 4096;

/// The contents of a startup key file.
#[derive(Debug)]
pub(crate) struct StartupKey {
    /// The GUID of its protector.
    pub(crate) protector: Guid,
    /// The GUID of its volume, which old files do not have.
    pub(crate) volume: Option<Guid>,
    pub(crate) key: Key,
}

/// Reads a startup key file.
///
/// Returns `BadOption` for a malformed file, and `Memory`.
pub(crate) fn parse(bytes: &[u8]) -> Result<StartupKey> {
    let bad = |why: &str| Error::new(ErrorKind::BadOption, format!("no startup key of BitLocker: {why}"));
    let fields = Fields(bytes);
    let (Ok(size), Ok(version), Ok(head), Ok(protector)) =
        (fields.le32(0), fields.le32(4), fields.le32(8), fields.array(16))
    else {
        return Err(bad("it is too short"));
    };
    let fits = usize::try_from(size).is_ok_and(|size| size == bytes.len()) && bytes.len() <= MOST;
    if !fits || version != 1 || usize::try_from(head) != Ok(HEAD) || bytes.len() < HEAD {
        return Err(bad("its head is not that of a startup key"));
    }
    let damaged = |e: Error| bad("it is damaged").with_source(e);
    for entry in Entries(&bytes[HEAD..]) {
        let entry = entry.map_err(damaged)?;
        if (entry.kind, entry.value) != (kind::STARTUP_KEY, value::EXTERNAL_KEY) {
            continue;
        }
        let (mut volume, mut found) = (None, None);
        for nested in Entries(entry.data.get(ENTRY_HEAD..).ok_or_else(|| bad("it is damaged"))?) {
            let nested = nested.map_err(damaged)?;
            match nested.value {
                value::GUID => volume = Some(Guid(Fields(nested.data).array(0).map_err(damaged)?)),
                value::KEY => found = nested.data.get(4..).filter(|key| key.len() == 32),
                _ => {}
            }
        }
        let key = Key::new(found.ok_or_else(|| bad("it holds no key of 32 bytes"))?)?;
        return Ok(StartupKey { protector: Guid(protector), volume, key });
    }
    Err(bad("it holds no key"))
}
