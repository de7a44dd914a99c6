//! What a device wants of those who use it.

/// A device's size and its alignment rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Size in bytes.
    pub size: u64,
    /// Offsets and lengths must be a multiple of this many bytes; 1 when anything goes.
    pub block: u32,
    /// Offsets and lengths that cost the device no read-modify-write, in bytes.
    pub preferred_block: u32,
    /// Memory must begin at a multiple of this many bytes. At most a page: every [`Buffer`](crate::Buffer) fits.
    pub memory_alignment: u32,
    /// Nothing may be written.
    pub read_only: bool,
    /// Discards free space below.
    pub discard: bool,
}
