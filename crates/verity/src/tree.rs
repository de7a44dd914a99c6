//! The places of the hashes, and their computation.
//!
//! ```text
//!   levels[n-1]   1 block, whose hash is the root
//!   ..
//!   levels[0]     the hashes of the data's blocks, 2^k in each block, k as large as they fit
//! ```
//!
//! The levels follow each other from the hash device's first block on, the highest one first.
//! Format 1 hashes the salt before the block and places each hash at a multiple of the power of two
//! that it fits in; format 0 hashes the salt behind the block and packs hashes.

use underseal_integrity::KeyedHash;

use crate::{Error, ErrorKind, Result};

/// The largest hash in bytes.
pub(crate) const LARGEST: usize = 64;
/// The longest salt in bytes.
const SALT: usize = 256;
/// A page: the size of the largest block in the kernel.
const PAGE: u32 = 4096;
/// The largest size of a device in bytes.
const MOST: u64 = i64::MAX as u64;

/// The parameters of a tree, as in a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeSettings {
    /// The format: 0 or 1.
    pub version: u32,
    /// The size of a data block in bytes.
    pub data_block: u32,
    /// The size of a hash block in bytes.
    pub hash_block: u32,
    /// The number of data blocks.
    pub data_blocks: u64,
    /// The tree's first block on the hash device.
    pub hash_start: u64,
    /// The hash's name in the kernel.
    pub algorithm: String,
    /// The hash of the highest block.
    pub root: Vec<u8>,
    /// The bytes that are hashed with each block.
    pub salt: Vec<u8>,
}

/// A tree's layout and its hash.
#[derive(Debug, Clone)]
pub struct Tree {
    settings: TreeSettings,
    hash: KeyedHash,
    /// The binary logarithm of the number of hashes in a block.
    bits: u32,
    /// The first block of each level; the level above the data comes first.
    levels: Vec<u64>,
    /// The block behind the last level.
    end: u64,
}

impl Tree {
    /// Returns the layout for these settings.
    ///
    /// # Errors
    /// `BadOption` and `Unsupported`, in the kernel's words.
    pub fn new(settings: TreeSettings) -> Result<Self> {
        let bad = |why: &str| Error::new(ErrorKind::BadOption, why);
        let is_block = |size: u32| size.is_power_of_two() && (512..=PAGE).contains(&size);
        if settings.version > 1 {
            return Err(bad("Invalid version"));
        }
        if !is_block(settings.data_block) {
            return Err(bad("Invalid data device block size"));
        }
        if !is_block(settings.hash_block) {
            return Err(bad("Invalid hash device block size"));
        }
        let data = settings.data_blocks.checked_mul(settings.data_block.into());
        if data.is_none_or(|bytes| bytes > MOST) {
            return Err(bad("Invalid data blocks"));
        }
        if settings.salt.len() > SALT {
            return Err(bad("Invalid salt"));
        }
        let hash = KeyedHash::new(&settings.algorithm, None).map_err(|e| {
            Error::new(ErrorKind::Unsupported, "Cannot initialize hash function").with_source(e)
        })?;
        if hash.size() > LARGEST || (settings.hash_block as usize) < 2 * hash.size() {
            return Err(bad("Digest size too big"));
        }
        if settings.root.len() != hash.size() {
            return Err(bad("Invalid root digest"));
        }
        let bits = (settings.hash_block as usize / hash.size()).ilog2();
        let (levels, end) = layout(&settings, bits).ok_or_else(|| bad("Hash device offset overflow"))?;
        Ok(Self { settings, hash, bits, levels, end })
    }

    /// Returns the settings of the tree.
    pub(crate) fn settings(&self) -> &TreeSettings {
        &self.settings
    }

    /// Returns the size of the data in bytes.
    pub(crate) fn data_size(&self) -> u64 {
        self.settings.data_blocks * u64::from(self.settings.data_block)
    }

    /// Returns the size of the hash device up to the tree's end, in bytes.
    pub(crate) fn hash_size(&self) -> u64 {
        self.end * u64::from(self.settings.hash_block)
    }

    /// The number of levels: 0 over a single block of data, whose hash is the root.
    pub(crate) fn levels(&self) -> usize {
        self.levels.len()
    }

    /// The block of the hash device that, on this level, covers a block of data.
    pub(crate) fn hash_block(&self, level: usize, data_block: u64) -> u64 {
        self.levels[level] + self.shifted(level + 1, data_block)
    }

    /// The hash that a verified block of this level stores for a block below it.
    pub(crate) fn entry(&self, level: usize, data_block: u64, block: &[u8]) -> BlockHash {
        #[expect(clippy::cast_possible_truncation, reason = "below the number of hashes in a block")]
        let index = (self.shifted(level, data_block) & ((1 << self.bits) - 1)) as usize;
        let stride = match self.settings.version {
            0 => self.hash.size(),
            _ => self.settings.hash_block as usize >> self.bits,
        };
        self.digest_of(&block[index * stride..][..self.hash.size()])
    }

    /// Returns the hash of the highest block, or of the only data block.
    pub(crate) fn root(&self) -> BlockHash {
        self.digest_of(&self.settings.root)
    }

    fn digest_of(&self, hash: &[u8]) -> BlockHash {
        let mut bytes = [0; LARGEST];
        bytes[..hash.len()].copy_from_slice(hash);
        BlockHash { bytes, len: hash.len() }
    }

    fn shifted(&self, levels: usize, data_block: u64) -> u64 {
        let by = u32::try_from(levels).unwrap_or(u32::MAX).saturating_mul(self.bits);
        data_block.checked_shr(by).unwrap_or(0)
    }

    /// Returns the hash of a data block or a hash block.
    pub(crate) fn digest(&self, block: &[u8]) -> BlockHash {
        let mut bytes = [0; LARGEST];
        let out = &mut bytes[..self.hash.size()];
        match self.settings.version {
            0 => self.hash.digest(&[block, &self.settings.salt], out),
            _ => self.hash.digest(&[&self.settings.salt, block], out),
        }
        BlockHash { bytes, len: self.hash.size() }
    }
}

/// A hash.
#[derive(Clone, Copy)]
pub(crate) struct BlockHash {
    bytes: [u8; LARGEST],
    len: usize,
}

impl AsRef<[u8]> for BlockHash {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Returns the first block of each level, and the block behind them, or `None` beyond any device.
fn layout(settings: &TreeSettings, bits: u32) -> Option<(Vec<u64>, u64)> {
    let last = settings.data_blocks.saturating_sub(1);
    let mut sizes = Vec::new();
    let mut shift = 0;
    while shift < u64::BITS && last >> shift > 0 {
        shift += bits;
        sizes.push(last.checked_shr(shift).unwrap_or(0) + 1);
    }
    let mut at = settings.hash_start;
    let mut levels = Vec::with_capacity(sizes.len());
    for size in sizes.iter().rev() {
        levels.push(at);
        at = at.checked_add(*size)?;
    }
    levels.reverse();
    let bytes = at.checked_mul(settings.hash_block.into())?;
    (bytes <= MOST).then_some((levels, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(data_blocks: u64) -> TreeSettings {
        TreeSettings {
            version: 1,
            data_block: 4096,
            hash_block: 4096,
            data_blocks,
            hash_start: 1,
            algorithm: "sha256".into(),
            root: vec![0; 32],
            salt: vec![1; 32],
        }
    }

    #[test]
    fn levels_follow_each_other_from_the_root_down() {
        let tree = Tree::new(settings(1)).unwrap();
        assert_eq!((tree.levels(), tree.hash_size()), (0, 4096));
        let tree = Tree::new(settings(128)).unwrap();
        assert_eq!((tree.levels.as_slice(), tree.end), (&[1][..], 2));
        let tree = Tree::new(settings(129)).unwrap();
        assert_eq!((tree.levels.as_slice(), tree.end), (&[2, 1][..], 4));
        let tree = Tree::new(settings(128 * 128 + 1)).unwrap();
        assert_eq!((tree.levels.as_slice(), tree.end), (&[4, 2, 1][..], 133));
        assert_eq!(tree.hash_block(0, 128 * 128), 4 + 128);
        assert_eq!(tree.hash_block(1, 128 * 128), 3);
        assert_eq!(tree.hash_block(2, 128 * 128), 1);
    }

    #[test]
    fn hashes_are_packed_in_format_0_and_lie_on_powers_of_two_in_format_1() {
        let of = |version| {
            let sha1 = TreeSettings { version, algorithm: "sha1".into(), root: vec![0; 20], ..settings(500) };
            Tree::new(sha1).unwrap()
        };
        let block: Vec<u8> = (0..4096_u32).map(|at| (at / 4).to_le_bytes()[0]).collect();
        assert_eq!(of(0).entry(0, 3, &block).as_ref()[0], 15);
        assert_eq!(of(1).entry(0, 3, &block).as_ref()[0], 24);
        // A block holds 128 hashes of 20 bytes in both formats.
        assert_eq!(of(0).entry(0, 128, &block).as_ref()[0], 0);
    }

    #[test]
    fn settings_that_the_kernel_refuses_are_refused() {
        let refused = |change: fn(&mut TreeSettings)| {
            let mut changed = settings(8);
            change(&mut changed);
            Tree::new(changed).unwrap_err().to_string()
        };
        assert_eq!(refused(|s| s.version = 2), "Invalid version");
        assert_eq!(refused(|s| s.data_block = 8192), "Invalid data device block size");
        assert_eq!(refused(|s| s.data_block = 0), "Invalid data device block size");
        assert_eq!(refused(|s| s.hash_block = 1000), "Invalid hash device block size");
        assert_eq!(refused(|s| s.data_blocks = u64::MAX), "Invalid data blocks");
        assert_eq!(refused(|s| s.hash_start = u64::MAX), "Hash device offset overflow");
        assert_eq!(refused(|s| s.hash_start = u64::MAX >> 12), "Hash device offset overflow");
        assert_eq!(refused(|s| s.salt = vec![0; 257]), "Invalid salt");
        assert_eq!(refused(|s| s.root = vec![0; 20]), "Invalid root digest");
        assert_eq!(refused(|s| s.algorithm = "nosuch".into()), "Cannot initialize hash function");
    }
}
