//! Signatures of other formats at the start of a device.

/// The number of bytes to check: every common filesystem and partition table has a signature there.
pub const LOOKED_AT: u64 = 1 << 20;

/// Offset, bytes, and the format's name. The mark of a boot sector is last: other formats have it
/// too.
const SIGNATURES: [(usize, &[u8], &str); 23] = [
    (0, b"QFI\xfb", "a qcow2 image"),
    (0, b"XFSB", "an XFS filesystem"),
    (0, b"hsqs", "a squashfs filesystem"),
    (0, b"integrt\0", "an integrity volume"),
    (0, b"verity\0\0", "a dm-verity tree"),
    (3, b"-FVE-FS-", "a BitLocker volume"),
    (424, BITLOCKER_NORMAL, "a BitLocker To Go volume"),
    (424, BITLOCKER_ON_WRITE, "a BitLocker To Go volume"),
    // The algorithm of its checksums follows, CRC-32C.
    (88, b"CS\x01\0\0\0", "a CoreStorage (FileVault 2) volume"),
    (32, b"NXSB", "an APFS container"),
    (3, b"NTFS    ", "an NTFS filesystem"),
    (3, b"EXFAT   ", "an exFAT filesystem"),
    (82, b"FAT32   ", "a FAT filesystem"),
    (54, b"FAT16   ", "a FAT filesystem"),
    (54, b"FAT12   ", "a FAT filesystem"),
    (512, b"EFI PART", "a GPT partition table"),
    (4096, b"EFI PART", "a GPT partition table"),
    (536, b"LVM2 001", "an LVM physical volume"),
    (0x438, b"\x53\xef", "an ext2, ext3 or ext4 filesystem"),
    (4086, b"SWAPSPACE2", "swap space"),
    (0x8001, b"CD001", "an ISO 9660 filesystem"),
    (0x10040, b"_BHRfS_M", "a btrfs filesystem"),
    (510, b"\x55\xaa", "a boot sector or partition table"),
];

/// BitLocker's GUID of volumes that are encrypted whole, as its bytes lie on disk.
const BITLOCKER_NORMAL: &[u8] = b"\x3b\xd6\x67\x49\x29\x2e\xd8\x4a\x83\x99\xf6\xa3\x39\xe3\xd0\x01";
/// BitLocker's GUID of volumes that are encrypted as they are written.
const BITLOCKER_ON_WRITE: &[u8] = b"\x3b\x4d\xa8\x92\x80\xdd\x0e\x4d\x9e\x4e\xb1\xe3\x28\x4e\xae\xd8";

/// Sectors of 512 bytes with superblocks of formats that can be used even if sector 0 is lost.
/// Marks on disk refer to places in this list, so new sectors are added at its end.
pub(crate) const SUPERBLOCK_SECTORS: [u64; 12] = [1, 2, 4, 7, 8, 16, 18, 64, 128, 130, 3, 10];

/// Offset and bytes: magic numbers in these sectors. Magic numbers of two bytes may also appear in
/// other data. Sources: the kernel's headers of these file systems.
const SUPERBLOCKS: [(usize, &[u8]); 40] = [
    (512, b"EFI PART"),
    (536, b"LVM2 001"),
    (0x418, b"LVM2 001"),
    (0x618, b"LVM2 001"),
    (0x400, b"BD"),
    (0x400, b"H+"),
    (0x400, b"HX"),
    (0x400, b"\x10\x20\xf5\xf2"),
    (0x400, b"\xe2\xe1\xf5\xe0"),
    (0x406, b"\x34\x34"),
    (0x410, b"\x7f\x13"),
    (0x410, b"\x8f\x13"),
    (0x410, b"\x68\x24"),
    (0x410, b"\x78\x24"),
    (0x418, b"\x5a\x4d"),
    (0x438, b"\x53\xef"),
    (0x400, b"OCFSV2"),
    (0x800, b"OCFSV2"),
    (0xe00, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca"),
    (0x1000, b"OCFSV2"),
    (0x2000, b"OCFSV2"),
    (4086, b"SWAPSPACE2"),
    (4086, b"SWAP-SPACE"),
    (0x1000, b"EFI PART"),
    (0x1000, b"\xfc\x4e\x2b\xa9"),
    (0x1018, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca"),
    (0x1018, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9"),
    (0x1400, b"\x10\x20\xf5\xf2"),
    (0x2034, b"ReIsErFs"),
    (0x255c, b"\x54\x19\x01\x00"),
    (0x255c, b"\x19\x01\x54\x19"),
    (0x8000, b"JFS1"),
    (0x8001, b"CD001"),
    (0x8001, b"BEA01"),
    (0x8001, b"NSR0"),
    (0x10000, b"\x01\x16\x19\x70"),
    (0x10034, b"ReIsEr"),
    (0x10040, b"_BHRfS_M"),
    (0x1055c, b"\x54\x19\x01\x00"),
    (0x1055c, b"\x19\x01\x54\x19"),
];

/// Returns the superblocks in a device that begins with these bytes: a bit for each of
/// [`SUPERBLOCK_SECTORS`].
pub(crate) fn superblocks(start: &[u8]) -> u64 {
    let there = |at: usize, bytes: &[u8]| start.get(at..).is_some_and(|rest| rest.starts_with(bytes));
    let found = SUPERBLOCKS.iter().filter(|(at, bytes)| there(*at, bytes));
    found.fold(0, |all, (at, _)| {
        let sector = (at / 512) as u64;
        all | SUPERBLOCK_SECTORS.iter().position(|known| *known == sector).map_or(0, |i| 1 << i)
    })
}

/// Returns the format of a device that begins with these bytes, if it is a common format other than
/// LUKS.
pub fn signature(start: &[u8]) -> Option<&'static str> {
    let there = |at: usize, bytes: &[u8]| start.get(at..).is_some_and(|rest| rest.starts_with(bytes));
    SIGNATURES.iter().find(|(at, bytes, _)| there(*at, bytes)).map(|(.., name)| *name)
}

/// Returns the block size of the file system that a device begins with: a device below it must not
/// have larger sectors, or it cannot be mounted. `start` has the first [`LOOKED_AT`] bytes. For XFS
/// the sector size counts, which may be smaller than the block size. The result is `None` for
/// unknown formats.
///
/// Sources: the kernel's documentation of ext4 (`s_log_block_size`), XFS (`sb_sectsize`) and btrfs
/// (`sectorsize`); the BIOS parameter block of FAT and NTFS (bytes a sector); exFAT's
/// `BytesPerSectorShift`; UEFI 2.10, 5.3 (the second block of a GPT).
pub fn block_size(start: &[u8]) -> Option<u32> {
    let there = |at: usize, bytes: &[u8]| start.get(at..).is_some_and(|rest| rest.starts_with(bytes));
    let little = |at: usize| Some(u16::from_le_bytes(start.get(at..at + 2)?.try_into().ok()?).into());
    let size: u32 = if there(0x438, b"\x53\xef") {
        let log = u32::from_le_bytes(start.get(0x418..0x41c)?.try_into().ok()?);
        1024_u32.checked_shl(log).filter(|_| log <= 6)?
    } else if there(0, b"XFSB") {
        u16::from_be_bytes(start.get(102..104)?.try_into().ok()?).into()
    } else if there(0x10040, b"_BHRfS_M") {
        u32::from_le_bytes(start.get(0x10090..0x10094)?.try_into().ok()?)
    } else if there(3, b"EXFAT   ") {
        1_u32.checked_shl((*start.get(108)?).into())?
    } else if there(3, b"NTFS    ")
        || [(82, b"FAT32   "), (54, b"FAT16   "), (54, b"FAT12   ")]
            .iter()
            .any(|(at, name)| there(*at, *name))
    {
        little(11)?
    } else {
        // A partition table has this signature at the beginning of its disk's second block.
        [512_u32, 1024, 2048, 4096].into_iter().find(|size| there(*size as usize, b"EFI PART"))?
    };
    (size.is_power_of_two() && (512..=1 << 16).contains(&size)).then_some(size)
}

/// Returns how many bytes of its device the file system takes that a device begins with, by its
/// superblock. `start` has the first [`LOOKED_AT`] bytes. The result is `None` for unknown formats.
///
/// Sources: the kernel's documentation of ext4 (`s_blocks_count_lo`, `_hi`), XFS (`sb_dblocks`) and
/// btrfs (`total_bytes`); the BIOS parameter block of FAT and NTFS, whose backup boot sector lies
/// behind its sectors; exFAT's `VolumeLength`.
pub(crate) fn filesystem_len(start: &[u8]) -> Option<u64> {
    let there = |at: usize, bytes: &[u8]| start.get(at..).is_some_and(|rest| rest.starts_with(bytes));
    let field = |at: usize, len: usize| {
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(start.get(at..at + len)?);
        Some(u64::from_le_bytes(bytes))
    };
    if there(0x438, b"\x53\xef") {
        let has_64_bits = field(0x460, 4)? & 0x80 != 0;
        let high = if has_64_bits { field(0x550, 4)? } else { 0 };
        (high << 32 | field(0x404, 4)?).checked_mul(block_size(start)?.into())
    } else if there(0, b"XFSB") {
        let blocks = u64::from_be_bytes(start.get(8..16)?.try_into().ok()?);
        blocks.checked_mul(u32::from_be_bytes(start.get(4..8)?.try_into().ok()?).into())
    } else if there(0x10040, b"_BHRfS_M") {
        field(0x10070, 8)
    } else if there(3, b"EXFAT   ") {
        field(72, 8)?.checked_mul(block_size(start)?.into())
    } else if there(3, b"NTFS    ") {
        field(40, 8)?.checked_add(1)?.checked_mul(block_size(start)?.into())
    } else if [(82, b"FAT32   "), (54, b"FAT16   "), (54, b"FAT12   ")]
        .iter()
        .any(|(at, name)| there(*at, *name))
    {
        let few = field(19, 2).filter(|sectors| *sectors > 0);
        few.or(field(32, 4))?.checked_mul(block_size(start)?.into())
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offsets and bytes.
    type Pieces<'p> = &'p [(usize, &'p [u8])];

    /// Returns the start of a device with these bytes in it.
    fn start(pieces: Pieces<'_>) -> Vec<u8> {
        let mut start = vec![0; 1 << 17];
        for (at, bytes) in pieces {
            start[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
        start
    }

    #[test]
    fn blocks_are_read_from_superblocks() {
        let cases: [(Pieces<'_>, Option<u32>); 12] = [
            (&[(0x438, b"\x53\xef")], Some(1024)),
            (&[(0x438, b"\x53\xef"), (0x418, &[2, 0, 0, 0])], Some(4096)),
            (&[(0x438, b"\x53\xef"), (0x418, &[0xff; 4])], None),
            (&[(0, b"XFSB\0\0\x10\0"), (102, &[2, 0])], Some(512)),
            (&[(0x10040, b"_BHRfS_M"), (0x10090, &[0, 0x10, 0, 0])], Some(4096)),
            (&[(3, b"NTFS    "), (11, &[0, 2])], Some(512)),
            (&[(82, b"FAT32   "), (11, &[0, 16])], Some(4096)),
            (&[(54, b"FAT16   "), (11, &[3, 0])], None),
            (&[(3, b"EXFAT   "), (108, &[9])], Some(512)),
            (&[(3, b"EXFAT   "), (108, &[255])], None),
            (&[(4096, b"EFI PART")], Some(4096)),
            (&[], None),
        ];
        for (pieces, size) in cases {
            assert_eq!(block_size(&start(pieces)), size, "{pieces:?}");
        }
    }

    #[test]
    fn the_end_of_a_file_system_is_read_from_its_superblock() {
        let ext4: (usize, &[u8]) = (0x438, b"\x53\xef");
        let cases: [(Pieces<'_>, Option<u64>); 10] = [
            (&[ext4, (0x404, &[5, 1, 0, 0])], Some(0x105 << 10)),
            (
                &[ext4, (0x404, &[5]), (0x418, &[2]), (0x460, &[0x80]), (0x550, &[1])],
                Some(0x1_0000_0005 << 12),
            ),
            (&[ext4, (0x404, &[5]), (0x550, &[1])], Some(5 << 10)),
            (&[(0, b"XFSB\0\0\x10\0\0\0\0\0\0\0\x01\x02"), (102, &[2, 0])], Some(0x102 << 12)),
            (&[(0, b"XFSB\0\0\x10\0\xff\0\0\0\0\0\x01\x02"), (102, &[2, 0])], None),
            (&[(0x10040, b"_BHRfS_M"), (0x10070, &[0, 0, 0, 7])], Some(7 << 24)),
            (&[(3, b"NTFS    "), (11, &[0, 2]), (40, &[9])], Some(5120)),
            (&[(82, b"FAT32   "), (11, &[0, 2]), (32, &[0, 1])], Some(256 * 512)),
            (&[(3, b"EXFAT   "), (108, &[9]), (72, &[0, 1])], Some(256 * 512)),
            (&[], None),
        ];
        for (pieces, len) in cases {
            assert_eq!(filesystem_len(&start(pieces)), len, "{pieces:?}");
        }
    }

    #[test]
    fn every_superblock_is_in_a_sector_that_has_a_bit() {
        for (at, bytes) in SUPERBLOCKS {
            let bits = superblocks(&start(&[(at, bytes)]));
            assert_eq!(bits.count_ones(), 1, "{at}");
            let sector = SUPERBLOCK_SECTORS[bits.trailing_zeros() as usize];
            assert!((sector * 512..(sector + 1) * 512).contains(&(at as u64)), "{at}");
            assert!((at + bytes.len()).div_ceil(512) as u64 == sector + 1, "{at}: within the sector");
        }
        assert_eq!(superblocks(&start(&[(0, b"XFSB"), (510, b"\x55\xaa")])), 0);
        assert_eq!(superblocks(&[]), 0);
    }

    #[test]
    fn a_short_start_is_no_file_system() {
        let whole = start(&[(0x438, b"\x53\xef")]);
        for len in 0..0x43a {
            assert_eq!(block_size(&whole[..len]), None);
            assert_eq!(filesystem_len(&whole[..len]), None);
        }
    }
}
