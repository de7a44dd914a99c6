//! The existing contents of an image.

use std::io;

use underseal_volume::signature::{LOOKED_AT, signature};
use underseal_volume::{ErrorKind, Header, ReadAt};

/// Describes the contents; `None` where the first megabyte is all zeros.
pub(super) fn of(file: &impl ReadAt) -> io::Result<Option<&'static str>> {
    let size = file.size()?;
    if size == 0 {
        return Ok(None);
    }
    match Header::read(file) {
        Ok(Header::Luks1(_)) => return Ok(Some("a LUKS1 volume")),
        Ok(_) => return Ok(Some("a LUKS2 volume")),
        Err(e) if e.kind() == ErrorKind::NoHeader => {}
        Err(e) if matches!(e.kind(), ErrorKind::Busy | ErrorKind::Locked) => return Err(io::Error::other(e)),
        Err(e) if e.kind() == ErrorKind::UnfinishedStart => {
            return Ok(Some(
                "the start of an encryption that was cut off (`reencrypt --resume-only` undoes it)",
            ));
        }
        Err(_) => return Ok(Some("a damaged LUKS header")),
    }
    let mut start = vec![0; usize::try_from(size.min(LOOKED_AT)).unwrap_or(0)];
    file.read_exact_at(&mut start, 0)?;
    if start.iter().all(|&byte| byte == 0) {
        return Ok(None);
    }
    Ok(Some(signature(&start).unwrap_or("data")))
}
