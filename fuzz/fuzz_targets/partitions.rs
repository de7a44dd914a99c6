//! The partition table of a disk: an MBR with its chain, or a GPT whose checksums are right.
#![no_main]

use underseal_formats::partitions;

// Every partition lies within the disk; a table has as many as its reader allows.
libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((&how, rest)) = input.split_first() else { return };
    let mut disk = rest.to_vec();
    disk.resize(disk.len().clamp(1024, 1 << 16).next_multiple_of(512), 0);
    if how & 1 == 0 {
        disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    }
    if how & 2 != 0 {
        seal(&mut disk);
    }
    if let Ok(found) = partitions(&disk[..]) {
        assert!(found.len() <= 1024 + 132);
        assert!(found.iter().all(|of| of.range.start <= of.range.end && of.range.end <= disk.len() as u64));
    }
});

/// Makes sector 1 a GPT's header for the entries that it names.
fn seal(disk: &mut [u8]) {
    disk[450] = 0xee;
    disk[512..520].copy_from_slice(b"EFI PART");
    disk[524..528].copy_from_slice(&92u32.to_le_bytes());
    disk[536..544].copy_from_slice(&1u64.to_le_bytes());
    let number = |at: usize| u32::from_le_bytes(disk[at..at + 4].try_into().unwrap()) as usize;
    let (at, bytes) = (number(512 + 72) * 512, number(512 + 80).saturating_mul(number(512 + 84)));
    if let Some(entries) = disk.get(at..at.saturating_add(bytes)) {
        let crc = crc32fast::hash(entries);
        disk[512 + 88..512 + 92].copy_from_slice(&crc.to_le_bytes());
    }
    disk[528..532].fill(0);
    let crc = crc32fast::hash(&disk[512..604]);
    disk[528..532].copy_from_slice(&crc.to_le_bytes());
}
