//! What other formats leave at the start of a device.

/// So much is looked at: every common filesystem and partition table leaves something there.
pub const LOOKED_AT: u64 = 1 << 20;

/// Where, which bytes, and what has them there.
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

/// What a device that begins with these bytes holds, if it is one of the common formats. LUKS is not among them.
pub fn signature(start: &[u8]) -> Option<&'static str> {
    let there = |at: usize, bytes: &[u8]| start.get(at..).is_some_and(|rest| rest.starts_with(bytes));
    SIGNATURES.iter().find(|(at, bytes, _)| there(*at, bytes)).map(|(.., name)| *name)
}
