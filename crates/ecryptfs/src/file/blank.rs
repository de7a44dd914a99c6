//! Lower files that have a length and nothing else.
//!
//! A filesystem may remember a new file's length before its data are on the disk (ext4, with
//! delayed allocation). A power cut between the two leaves zeros: no header, and nothing that one
//! would be needed for. It is as good as a lower file of no length.

use std::os::fd::BorrowedFd;

use rustix::fs::{SeekFrom, seek};
use rustix::io::{Errno, pread};

/// As much is looked at. Longer ones would keep everybody waiting who asks for their size.
const MOST: u64 = 64 << 20;

/// Whether there is nothing in a lower file that begins with `head`.
pub(crate) fn is_blank(fd: BorrowedFd<'_>, head: &[u8]) -> Result<bool, Errno> {
    if !is_zero(head) {
        return Ok(false);
    }
    let (mut at, mut read) = (head.len() as u64, 0);
    let mut piece = vec![0; 64 << 10];
    while read < MOST {
        // Holes need not be read, nor do extents that were never written.
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
