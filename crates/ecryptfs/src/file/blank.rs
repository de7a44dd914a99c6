//! Lower files that have a length and nothing else.
//!
//! A filesystem may record a new file's length before its data is on the disk (ext4, with delayed
//! allocation). A power cut between the two leaves zeros: no header, and no data that would need a
//! header. Such a file is treated as a lower file of no length.

use std::os::fd::BorrowedFd;

use rustix::fs::{SeekFrom, seek};
use rustix::io::{Errno, pread};

/// The largest number of bytes to check. More would delay every caller that asks for the file's
/// size.
const MOST: u64 = 64 << 20;

/// Returns true when a lower file that begins with `head` is all zeros.
pub(crate) fn is_blank(fd: BorrowedFd<'_>, head: &[u8]) -> Result<bool, Errno> {
    if !is_zero(head) {
        return Ok(false);
    }
    let (mut at, mut read) = (head.len() as u64, 0);
    let mut piece = vec![0; 64 << 10];
    while read < MOST {
        // Holes and extents that were never written need not be read.
        at = match seek(fd, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => return Ok(true),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            other => other?,
        };
        match pread(fd, &mut piece, at)? {
            0 => return Ok(true),
            len if is_zero(&piece[..len]) => {
                at += len as u64;
                read += len as u64;
            }
            _ => return Ok(false),
        }
    }
    Ok(false)
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}
