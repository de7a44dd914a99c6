//! The identity of a mount: no later mount has the same.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, StatxFlags, statx};
use underseal_sandbox::IDENTITY;

/// A mount, by its filesystem and its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MountIdentity {
    /// The major and minor number of the filesystem.
    pub(crate) filesystem: (u32, u32),
    /// The number in the mount table (from Linux 5.8 on), which later mounts may have.
    pub(crate) number: u64,
    /// The number that is never reused (from Linux 6.8 on; before, the same as `number`).
    unique: u64,
}

impl MountIdentity {
    /// Returns the identity of the mount on a name in a folder.
    pub(crate) fn at(folder: impl AsFd, name: &OsStr) -> io::Result<Self> {
        // The mount's server may not answer yet, or no longer.
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC | AtFlags::EMPTY_PATH;
        // `STATX_MNT_ID_UNIQUE`, which older kernels ignore, replaces the other number.
        let unique = StatxFlags::MNT_ID | StatxFlags::from_bits_retain(0x4000);
        let about = statx(&folder, name, flags, unique)?;
        let number = statx(&folder, name, flags, StatxFlags::MNT_ID)?.stx_mnt_id;
        let filesystem = (about.stx_dev_major, about.stx_dev_minor);
        Ok(Self { filesystem, number, unique: about.stx_mnt_id })
    }

    /// Returns the identity of a descriptor's mount.
    pub(crate) fn of(file: impl AsFd) -> io::Result<Self> {
        Self::at(file, OsStr::new(""))
    }

    /// Returns the bytes for the process's helper.
    pub(crate) fn to_bytes(self) -> [u8; IDENTITY] {
        let mut bytes = [0; IDENTITY];
        bytes[..4].copy_from_slice(&self.filesystem.0.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.filesystem.1.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.number.to_ne_bytes());
        bytes[16..].copy_from_slice(&self.unique.to_ne_bytes());
        bytes
    }

    /// Returns the identity that [`Self::to_bytes`] gave.
    pub(crate) fn from_bytes(bytes: &[u8; IDENTITY]) -> Self {
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| {
            let mut long = [0; 8];
            long.copy_from_slice(&bytes[at..at + 8]);
            u64::from_ne_bytes(long)
        };
        Self { filesystem: (word(0), word(4)), number: long(8), unique: long(16) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_survives_the_way_to_the_helper() {
        let root = std::fs::File::open("/").unwrap();
        let identity = MountIdentity::of(&root).unwrap();
        assert_eq!(MountIdentity::from_bytes(&identity.to_bytes()), identity);
        assert_eq!(MountIdentity::at(&root, OsStr::new(".")).unwrap(), identity);
        assert_ne!(MountIdentity::at(&root, OsStr::new("proc")).unwrap(), identity);
    }
}
