//! A volume whose journal and superblock are in the page cache only: a sync failed that was to keep
//! them.

use std::io;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use underseal_integrity::{Disk, Disks, VolumeGeometry, WriteMode, look, open};

use crate::support::*;

/// A disk that lacks the metadata, and must have them before a block is written to its place. A
/// sync takes to the disk only the bytes that were written since the last one: after a failed sync
/// Linux keeps the others in the page cache as if they were on the disk.
struct CachedDisk {
    cache: Memory,
    disk: Memory,
    written: Mutex<Vec<Range<usize>>>,
    metadata: Range<usize>,
    placed: AtomicU64,
}

impl CachedDisk {
    fn new(bytes: Vec<u8>, geometry: &VolumeGeometry) -> Self {
        let end = usize::try_from(geometry.journal_offset() + geometry.journal_bytes()).unwrap();
        let mut disk = bytes.clone();
        disk[..end].fill(0);
        let (cache, disk) = (Memory::new(bytes), Memory::new(disk));
        Self { cache, disk, written: Mutex::default(), metadata: 0..end, placed: AtomicU64::new(0) }
    }
}

impl Disk for CachedDisk {
    fn size(&self) -> io::Result<u64> {
        self.cache.size()
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.cache.read_at(offset, bytes)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if offset >= self.metadata.end as u64 {
            let metadata = |of: &Memory| of.bytes()[self.metadata.clone()].to_vec();
            assert!(metadata(&self.cache) == metadata(&self.disk), "a block is put to byte {offset}");
            self.placed.fetch_add(1, Ordering::Relaxed);
        }
        let at = usize::try_from(offset).unwrap();
        self.written.lock().unwrap().push(at..at + bytes.len());
        self.cache.write_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        let (cache, mut disk) = (self.cache.0.lock().unwrap(), self.disk.0.lock().unwrap());
        for range in self.written.lock().unwrap().drain(..) {
            disk[range.clone()].copy_from_slice(&cache[range]);
        }
        Ok(())
    }
}

#[test]
fn what_a_replay_depends_on_is_on_the_disk_before_anything_is_put_to_its_place() {
    for (name, places) in [
        ("int-a-sha256-512-torn", true),
        ("int-a-sha256-512-wrap", true),
        ("int-a-crc32c-4096-wrap", true),
        ("int-a-clean", false),
    ] {
        let options = options(images()[name]["table"].as_str().unwrap());
        assert_eq!(options.mode, WriteMode::Journal, "{name}");
        let image = unpack(name);
        let geometry = look(&image.disks(), &options).unwrap().geometry;
        let disk = CachedDisk::new(image.data.bytes(), &geometry);
        open(&Disks { data: &disk, meta: None }, &options).unwrap();
        assert_eq!(disk.placed.load(Ordering::Relaxed) > 0, places, "{name}");
        assert!(disk.cache.bytes() == disk.disk.bytes(), "{name}: something is in memory only");
    }
}
