//! The header of a volume that is opened for writing, on stable storage before anything depends on
//! it.

use underseal_volume::{ErrorKind, Header, Target, VolumeKey};

use super::{Place, held};
use crate::error::{Error, Result};
use crate::exit::Exit;

/// How many changes by other programs are met before the volume is refused.
const CHANGES: usize = 3;

/// Puts the header on stable storage that `key` was unlocked with: after a sync that failed it may
/// be in the page cache only. A header that another program has changed meanwhile is read again.
pub(crate) fn secured(
    mut header: Header,
    on: &(dyn Target + Sync),
    key: &VolumeKey,
    place: &Place,
) -> Result<Header> {
    for _ in 0..CHANGES {
        match header.secure(on) {
            Err(e) if e.kind() == ErrorKind::Busy => header = again(header, on, key, place)?,
            secured => return Ok(secured.map(|()| header)?),
        }
    }
    header.secure(on)?;
    Ok(header)
}

/// The header as it is now, if the key is still its own.
fn again(header: Header, on: &(dyn Target + Sync), key: &VolumeKey, place: &Place) -> Result<Header> {
    if let Header::Luks2(_) = header {
        return held(header, on, key, place);
    }
    let now = Header::read(on)?;
    let is_its_key = now.key_check(key).and_then(|check| check.confirm(key.key())).is_ok();
    if now.uuid() != header.uuid() || !is_its_key {
        let what = "another program has put another header in the place of this one just now";
        return Err(Error::new(Exit::InUse, what).with_remedy("try again"));
    }
    Ok(now)
}
