//! The partitions of a disk image: GPT (UEFI 2.10, 5.3) and MBR with logical partitions.
//!
//! Numbers are those of Linux: GPT's entries from 1 on; MBR's primary partitions 1 to 4, logical
//! partitions from 5 on. The parser is written here because the published crates allocate as much
//! as a forged header asks for.

use std::ops::Range;

use underseal_volume::ReadAt;

use crate::fields::{self, Fields};
use crate::{Error, ErrorKind, Result};

/// The most entries of a GPT that are looked at; usual tables have 128.
const MOST_ENTRIES: u32 = 1024;
/// The largest entry of a GPT in bytes; usual ones have 128.
const LARGEST_ENTRY: u32 = 4096;
/// The most logical partitions of an MBR.
const MOST_LOGICAL: u32 = 128;
/// Sector sizes that disks have, in bytes.
const SECTORS: [u64; 2] = [512, 4096];

/// A partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// The partition's number, from 1 on.
    pub number: u32,
    /// The partition's bytes on the disk.
    pub range: Range<u64>,
}

/// The partitions of a disk, in the order of their numbers; none for a disk without a table.
///
/// # Errors
/// `BadHeader` for a damaged table, `Io`. A partition that passes the end of the image is cut
/// there.
pub fn partitions(disk: &(impl ReadAt + ?Sized)) -> Result<Vec<Partition>> {
    let size = fields::size(disk)?;
    if size < 512 {
        return Ok(Vec::new());
    }
    let mut mbr = [0; 512];
    fields::read(disk, 0, &mut mbr)?;
    let marked = mbr[510..] == [0x55, 0xaa];
    let protective = marked && (0..4).any(|nth| mbr[446 + 16 * nth + 4] == 0xee);
    if !protective && marked {
        return of_mbr(disk, &mbr, size);
    }
    for sector in SECTORS {
        if let Some(found) = of_gpt(disk, size, sector)? {
            return Ok(found);
        }
    }
    if protective {
        return Err(Error::new(
            ErrorKind::BadHeader,
            "a GPT is announced, and neither of its copies is sound",
        ));
    }
    Ok(Vec::new())
}

/// The bytes of the partition of this number.
///
/// # Errors
/// `BadOption` when no partition has this number; as [`partitions`].
pub fn partition(disk: &(impl ReadAt + ?Sized), number: u32) -> Result<Range<u64>> {
    let all = partitions(disk)?;
    match all.iter().find(|partition| partition.number == number) {
        Some(found) => Ok(found.range.clone()),
        None if all.is_empty() => Err(Error::new(ErrorKind::BadOption, "the image has no partition table")),
        None => {
            let numbers: Vec<String> = all.iter().map(|partition| partition.number.to_string()).collect();
            let context = format!("no partition {number}: the image has {}", numbers.join(", "));
            Err(Error::new(ErrorKind::BadOption, context))
        }
    }
}

/// Names in the boot sectors of file systems, which have the mark of an MBR and may have bytes like
/// partitions. Sources: the kernel's msdos partition parser; the BIOS parameter block.
const BOOT_SECTORS: [(usize, &[u8]); 6] = [
    (3, b"NTFS    "),
    (3, b"EXFAT   "),
    (3, b"HPFS    "),
    (54, b"FAT12   "),
    (54, b"FAT16   "),
    (82, b"FAT32   "),
];

/// Whether the disk begins with a partition table: an MBR with a partition, or the mark of a GPT,
/// sound or damaged.
/// Fails with `Io`.
pub(crate) fn is_partitioned(disk: &(impl ReadAt + ?Sized)) -> Result<bool> {
    let size = fields::size(disk)?;
    for sector in SECTORS.into_iter().filter(|sector| sector + 8 <= size) {
        let mut mark = [0; 8];
        fields::read(disk, sector, &mut mark)?;
        if mark == *b"EFI PART" {
            return Ok(true);
        }
    }
    if size < 512 {
        return Ok(false);
    }
    let mut mbr = [0; 512];
    fields::read(disk, 0, &mut mbr)?;
    if mbr[510..] != [0x55, 0xaa] || BOOT_SECTORS.iter().any(|(at, name)| mbr[*at..].starts_with(name)) {
        return Ok(false);
    }
    // Each entry is active or not, and nothing else; boot code has other bytes there.
    let mut some = false;
    for nth in 0..4 {
        let (kind, first, count) = entry(&mbr, nth)?;
        let flag = mbr[446 + 16 * nth as usize];
        if flag & 0x7f != 0 {
            return Ok(false);
        }
        some |= kind != 0 && first != 0 && count != 0;
    }
    Ok(some)
}

/// The GPT, or its copy at the end of the disk; none where there is neither.
fn of_gpt(disk: &(impl ReadAt + ?Sized), size: u64, sector: u64) -> Result<Option<Vec<Partition>>> {
    let last = (size / sector).checked_sub(1);
    for lba in [Some(1), last].into_iter().flatten().filter(|lba| lba * sector + 512 <= size) {
        let mut header = [0; 512];
        fields::read(disk, lba * sector, &mut header)?;
        if let Some(entries) = gpt_entries(disk, &header, lba, size, sector)? {
            return gpt_partitions(&entries, size, sector).map(Some);
        }
    }
    Ok(None)
}

/// The array of entries of a sound header, and the size of one; none for a header that is none.
fn gpt_entries(
    disk: &(impl ReadAt + ?Sized),
    header: &[u8; 512],
    lba: u64,
    size: u64,
    sector: u64,
) -> Result<Option<(Vec<u8>, usize)>> {
    let of = Fields(header);
    let len = of.le32(12)? as usize;
    if of.bytes(0, 8)? != b"EFI PART" || !(92..=512).contains(&len) || of.le64(24)? != lba {
        return Ok(None);
    }
    let mut summed = header[..len].to_vec();
    summed[16..20].fill(0);
    let (at, count, each) = (of.le64(72)?, of.le32(80)?, of.le32(84)?);
    let usual = count <= MOST_ENTRIES && (128..=LARGEST_ENTRY).contains(&each);
    if crc32fast::hash(&summed) != of.le32(16)? || !usual {
        return Ok(None);
    }
    let bytes = u64::from(count) * u64::from(each);
    let Some(at) = at.checked_mul(sector).filter(|at| at.saturating_add(bytes) <= size) else {
        return Ok(None);
    };
    let mut entries = vec![0; count as usize * each as usize];
    fields::read(disk, at, &mut entries)?;
    Ok((crc32fast::hash(&entries) == of.le32(88)?).then_some((entries, each as usize)))
}

fn gpt_partitions((entries, each): &(Vec<u8>, usize), size: u64, sector: u64) -> Result<Vec<Partition>> {
    let mut found = Vec::new();
    for (entry, number) in entries.chunks_exact(*each).zip(1..) {
        let of = Fields(entry);
        // A type of zeros is no partition.
        if of.bytes(0, 16)?.iter().all(|byte| *byte == 0) {
            continue;
        }
        let (first, last) = (of.le64(32)?, of.le64(40)?);
        let count = last.checked_sub(first).and_then(|more| more.checked_add(1));
        let bytes = count.and_then(|count| Some((first.checked_mul(sector)?, count.checked_mul(sector)?)));
        found.push(one(number, bytes, size)?);
    }
    Ok(found)
}

fn of_mbr(disk: &(impl ReadAt + ?Sized), mbr: &[u8; 512], size: u64) -> Result<Vec<Partition>> {
    let mut found = Vec::new();
    let mut extended = None;
    for number in 1..=4 {
        match entry(mbr, number - 1)? {
            (0, ..) | (_, _, 0) => {}
            (0x05 | 0x0f | 0x85, first, _) => extended = extended.or(Some(first)),
            (_, first, count) => found.push(one(number, sectors(first, count), size)?),
        }
    }
    // A chain of tables: each has a logical partition relative to itself, and the next table
    // relative to the first one.
    let (Some(begin), mut number) = (extended, 5) else { return Ok(found) };
    let mut at = begin;
    while number < 5 + MOST_LOGICAL {
        let mut table = [0; 512];
        let Some(byte) = at.checked_mul(512).filter(|byte| byte.saturating_add(512) <= size) else { break };
        fields::read(disk, byte, &mut table)?;
        if table[510..] != [0x55, 0xaa] {
            break;
        }
        if let (kind @ 1.., first, count @ 1..) = entry(&table, 0)?
            && ![0x05, 0x0f, 0x85].contains(&kind)
        {
            found.push(one(number, sectors(at.saturating_add(first), count), size)?);
            number += 1;
        }
        match entry(&table, 1)? {
            // Forward only: a chain that turns back would have no end.
            (0x05 | 0x0f | 0x85, next, 1..) if begin.saturating_add(next) > at => at = begin + next,
            _ => break,
        }
    }
    Ok(found)
}

/// An entry of an MBR: type, first sector, count of sectors.
fn entry(table: &[u8; 512], nth: u32) -> Result<(u8, u64, u64)> {
    let at = 446 + 16 * nth as usize;
    let of = Fields(table);
    Ok((table[at + 4], of.le32(at + 8)?.into(), of.le32(at + 12)?.into()))
}

fn sectors(first: u64, count: u64) -> Option<(u64, u64)> {
    Some((first.checked_mul(512)?, count.checked_mul(512)?))
}

fn one(number: u32, bytes: Option<(u64, u64)>, size: u64) -> Result<Partition> {
    let Some((start, len)) = bytes else {
        let context = format!("partition {number} ends before it begins, or beyond any disk");
        return Err(Error::new(ErrorKind::BadHeader, context));
    };
    // A disk image that was cut short has partitions beyond its end, and others that are whole.
    let range = fields::range(&format!("partition {number}"), start, len, size);
    Ok(Partition { number, range: range.unwrap_or(start.min(size)..start.saturating_add(len).min(size)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpt(entries: &[(u64, u64)], sectors: usize) -> Vec<u8> {
        let mut disk = vec![0; sectors * 512];
        (disk[510], disk[511], disk[450]) = (0x55, 0xaa, 0xee);
        let mut array = vec![0; 128 * 128];
        for (nth, (first, last)) in entries.iter().enumerate() {
            array[128 * nth] = u8::from(*first > 0);
            array[128 * nth + 32..][..8].copy_from_slice(&first.to_le_bytes());
            array[128 * nth + 40..][..8].copy_from_slice(&last.to_le_bytes());
        }
        let last = sectors as u64 - 1;
        for (lba, at) in [(1, 2), (last, last - 32)] {
            let mut header = [0; 92];
            header[..12].copy_from_slice(b"EFI PART\0\0\x01\0");
            header[12] = 92;
            header[24..32].copy_from_slice(&lba.to_le_bytes());
            header[72..80].copy_from_slice(&at.to_le_bytes());
            (header[80], header[84]) = (128, 128);
            header[88..].copy_from_slice(&crc32fast::hash(&array).to_le_bytes());
            let crc = crc32fast::hash(&header);
            header[16..20].copy_from_slice(&crc.to_le_bytes());
            disk[usize::try_from(lba).unwrap() * 512..][..92].copy_from_slice(&header);
            disk[usize::try_from(at).unwrap() * 512..][..array.len()].copy_from_slice(&array);
        }
        disk
    }

    fn mbr(table: &mut [u8], nth: usize, kind: u8, first: u32, count: u32) {
        let entry = &mut table[446 + 16 * nth..][..16];
        entry[4] = kind;
        entry[8..12].copy_from_slice(&first.to_le_bytes());
        entry[12..].copy_from_slice(&count.to_le_bytes());
        table[510..512].copy_from_slice(&[0x55, 0xaa]);
    }

    #[test]
    fn a_gpt_is_read_by_either_of_its_copies() {
        let mut disk = gpt(&[(40, 49), (0, 0), (60, 60)], 256);
        let want = [(1, 40 * 512..50 * 512), (3, 60 * 512..61 * 512)];
        let want = want.map(|(number, range)| Partition { number, range });
        assert_eq!(partitions(&disk[..]).unwrap(), want);
        assert_eq!(partition(&disk[..], 3).unwrap(), 60 * 512..61 * 512);
        assert_eq!(partition(&disk[..], 2).unwrap_err().kind(), ErrorKind::BadOption);
        disk[512 + 72] ^= 1;
        assert_eq!(partitions(&disk[..]).unwrap(), want);
        let last = disk.len() - 512;
        disk[last] ^= 1;
        assert_eq!(partitions(&disk[..]).unwrap_err().kind(), ErrorKind::BadHeader);
    }

    #[test]
    fn primary_and_logical_partitions_have_linuxs_numbers() {
        let mut disk = vec![0; 200 * 512];
        mbr(&mut disk, 0, 0x07, 10, 5);
        mbr(&mut disk, 2, 0x0f, 50, 100);
        mbr(&mut disk[50 * 512..], 0, 0x83, 2, 3);
        mbr(&mut disk[50 * 512..], 1, 0x05, 20, 10);
        mbr(&mut disk[70 * 512..], 0, 0x83, 1, 4);
        // A chain that turns back ends.
        mbr(&mut disk[70 * 512..], 1, 0x05, 0, 10);
        let found: Vec<_> =
            partitions(&disk[..]).unwrap().into_iter().map(|of| (of.number, of.range.start / 512)).collect();
        assert_eq!(found, [(1, 10), (5, 52), (6, 71)]);
        assert!(partitions(&[0; 4096][..]).unwrap().is_empty());
    }

    #[test]
    fn a_partition_table_is_told_from_boot_sectors() {
        let mut disk = gpt(&[(40, 49)], 256);
        assert!(is_partitioned(&disk[..]).unwrap());
        // The mark is enough, with a damaged header or without an MBR.
        disk[..512].fill(0);
        disk[512 + 16] ^= 1;
        assert!(is_partitioned(&disk[..]).unwrap());
        let mut large = vec![0; 8192];
        large[4096..4104].copy_from_slice(b"EFI PART");
        assert!(is_partitioned(&large[..]).unwrap());

        let mut disk = vec![0; 4096];
        assert!(!is_partitioned(&disk[..]).unwrap());
        mbr(&mut disk, 1, 0x83, 8, 0);
        assert!(!is_partitioned(&disk[..]).unwrap(), "an MBR without partitions");
        mbr(&mut disk, 1, 0x83, 8, 100);
        assert!(is_partitioned(&disk[..]).unwrap());
        disk[446] = 0x80;
        assert!(is_partitioned(&disk[..]).unwrap());
        disk[446] = 0x81;
        assert!(!is_partitioned(&disk[..]).unwrap(), "boot code");
        disk[446] = 0;
        for (at, name) in BOOT_SECTORS {
            let mut disk = disk.clone();
            disk[at..at + 8].copy_from_slice(name);
            assert!(!is_partitioned(&disk[..]).unwrap(), "{name:?}");
        }
        for len in [0, 8, 511] {
            assert!(!is_partitioned(&disk[..len]).unwrap(), "{len}");
        }
        assert!(is_partitioned(&disk[..512]).unwrap());
    }

    #[test]
    fn forged_tables_neither_panic_nor_allocate() {
        let mut disk = gpt(&[(40, 49)], 256);
        for (at, bytes) in [(80, u32::MAX), (84, u32::MAX), (84, 0), (12, u32::MAX)] {
            disk[512 + at..][..4].copy_from_slice(&bytes.to_le_bytes());
            let len = 92;
            disk[512 + 16..512 + 20].fill(0);
            let crc = crc32fast::hash(&disk[512..512 + len]);
            disk[512 + 16..512 + 20].copy_from_slice(&crc.to_le_bytes());
            // The copy is still sound.
            assert_eq!(partitions(&disk[..]).unwrap().len(), 1, "{at}");
        }
        let backwards = gpt(&[(60, 40)], 256);
        assert_eq!(partitions(&backwards[..]).unwrap_err().kind(), ErrorKind::BadHeader);
        let beyond = gpt(&[(60, u64::MAX - 1)], 256);
        assert_eq!(partitions(&beyond[..]).unwrap_err().kind(), ErrorKind::BadHeader);
    }
}
