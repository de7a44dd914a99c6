//! Allocated and unallocated ranges of a file.

use std::fs::File;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::Extent;

/// Returns the extent at `offset`, cut at `offset + len`. Where the filesystem cannot tell, all is
/// data.
pub(super) fn extent(file: &File, offset: u64, len: u64) -> Extent {
    let end = offset.saturating_add(len);
    match seek(file, SeekFrom::Data(offset)) {
        Ok(data) if data > offset => Extent { len: data.min(end) - offset, hole: true },
        Ok(_) => match seek(file, SeekFrom::Hole(offset)) {
            Ok(hole) if hole > offset => Extent { len: hole.min(end) - offset, hole: false },
            _ => Extent { len, hole: false },
        },
        // The file has no data from here to its end.
        Err(Errno::NXIO) => Extent { len, hole: true },
        Err(_) => Extent { len, hole: false },
    }
}
