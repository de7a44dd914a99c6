//! A new lower file, from start to end.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use super::lower::write_xattr;
use crate::{Contents, EXTENT, FileHeader, HeaderLocation};

/// The number of bytes that are encrypted and written at once, in whole extents.
const BUFFER: usize = 1 << 20;

/// Encrypts all bytes of `plain` into an empty lower file, then writes its header: until then it is
/// no file of eCryptfs. Returns the number of plain bytes.
pub(super) fn write(
    lower: &File,
    header: &mut FileHeader,
    contents: &Contents,
    plain: &mut dyn Read,
    mut advance: impl FnMut(u64),
) -> io::Result<u64> {
    let mut buffer = vec![0; BUFFER];
    let mut size = 0;
    loop {
        let len = fill(plain, &mut buffer)?;
        if len > 0 {
            let whole = len.next_multiple_of(EXTENT);
            buffer[len..whole].fill(0);
            contents.encrypt(size / EXTENT as u64, &mut buffer[..whole]);
            lower.write_all_at(&buffer[..whole], header.data_offset() + size)?;
            size += len as u64;
            advance(len as u64);
        }
        if len < BUFFER {
            break;
        }
    }
    header.set_size(size);
    match header.place() {
        HeaderLocation::File => lower.write_all_at(&header.to_file(), 0)?,
        HeaderLocation::Xattr => write_xattr(lower, header)?,
    }
    Ok(size)
}

fn fill(from: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match from.read(&mut buffer[done..]) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}
