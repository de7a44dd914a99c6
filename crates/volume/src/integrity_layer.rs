//! What has to lie between an authenticated volume and its device.

use underseal_cipher::SectorSize;

/// dm-integrity's layout under a volume whose sectors have something beside them: whoever opens the
/// volume opens that first, with these values, which its own superblock must have too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntegrityLayer {
    /// Where its superblock is on the data device, in bytes.
    pub offset: u64,
    /// Bytes beside each sector.
    pub tag_size: usize,
    /// Its block: the volume's sector.
    pub sector_size: SectorSize,
    /// Writes go through its journal, unless whoever opens it says otherwise.
    pub has_journal: bool,
}
