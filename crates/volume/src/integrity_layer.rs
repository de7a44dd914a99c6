//! The layer between an authenticated volume and its device.

use underseal_cipher::SectorSize;

/// dm-integrity's layout under a volume that keeps tags or IVs beside its sectors. An open of the
/// volume first opens this layer, with these values, which must match its superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntegrityLayer {
    /// The offset of its superblock on the data device, in bytes.
    pub offset: u64,
    /// Bytes beside each sector.
    pub tag_size: usize,
    /// The size of its blocks: the volume's sector size.
    pub sector_size: SectorSize,
    /// True when writes go through its journal, unless an open chooses otherwise.
    pub has_journal: bool,
}
