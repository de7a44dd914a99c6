//! What is on an image already.

use std::io;

use underseal_volume::{ErrorKind, Header, ReadAt};

/// So much is looked at: every common filesystem and partition table leaves something there.
const LOOKED_AT: u64 = 1 << 20;

/// What tells common contents: where, which bytes, and what it is called.
const SIGNATURES: [(usize, &[u8], &str); 11] = [
    (0, b"QFI\xfb", "a qcow2 image"),
    (0, b"XFSB", "an XFS filesystem"),
    (0, b"hsqs", "a squashfs filesystem"),
    (3, b"NTFS    ", "an NTFS filesystem"),
    (82, b"FAT32   ", "a FAT filesystem"),
    (512, b"EFI PART", "a GPT partition table"),
    (536, b"LVM2 001", "an LVM physical volume"),
    (0x438, b"\x53\xef", "an ext2, ext3 or ext4 filesystem"),
    (4086, b"SWAPSPACE2", "swap space"),
    (0x10040, b"_BHRfS_M", "a btrfs filesystem"),
    (510, b"\x55\xaa", "a boot sector or partition table"),
];

/// What the file holds; none where its first megabyte is all zeros.
///
/// # Errors
/// When it cannot be read.
pub(super) fn of(file: &impl ReadAt) -> io::Result<Option<&'static str>> {
    let size = file.size()?;
    if size == 0 {
        return Ok(None);
    }
    match Header::parse(file) {
        Ok(Header::Luks1(_)) => return Ok(Some("a LUKS1 volume")),
        Ok(_) => return Ok(Some("a LUKS2 volume")),
        Err(e) if e.kind() == ErrorKind::NoHeader => {}
        Err(_) => return Ok(Some("a damaged LUKS header")),
    }
    let mut start = vec![0; usize::try_from(size.min(LOOKED_AT)).unwrap_or(0)];
    file.read_exact_at(&mut start, 0)?;
    if start.iter().all(|&byte| byte == 0) {
        return Ok(None);
    }
    let known = SIGNATURES.iter().find(|(at, bytes, _)| start[(*at).min(start.len())..].starts_with(bytes));
    Ok(Some(known.map_or("data", |(.., name)| name)))
}
