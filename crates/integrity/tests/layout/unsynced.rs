//! A volume whose journal and superblock are in the page cache only: a sync failed that was to keep
//! them.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use underseal_integrity::{Disk, Disks, VolumeGeometry, WriteMode, look, open};

use crate::support::*;

/// A disk that has the metadata only after a sync, and must have them before a block is written to
/// its place.
struct CachedDisk {
    cache: Memory,
    disk: Memory,
    metadata: Range<usize>,
    placed: AtomicU64,
}

impl CachedDisk {
    fn new(bytes: Vec<u8>, geometry: &VolumeGeometry) -> Self {
        let end = usize::try_from(geometry.journal_offset() + geometry.journal_bytes()).unwrap();
        let mut disk = bytes.clone();
        disk[..end].fill(0);
        let (cache, disk) = (Memory::new(bytes), Memory::new(disk));
        Self { cache, disk, metadata: 0..end, placed: AtomicU64::new(0) }
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
        self.cache.write_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        *self.disk.0.lock().unwrap() = self.cache.bytes();
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
