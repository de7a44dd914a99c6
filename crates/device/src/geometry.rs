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
    /// Zones that must be written in sequence, if it has them and tells.
    pub zones: Option<Zones>,
}

/// The zones of a device that does not allow writing everywhere (host-managed SMR, ZNS).
///
/// A sequential zone is written at its write pointer only, and discarded as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zones {
    /// A zone's length in bytes; the last may be shorter.
    pub size: u64,
    /// So many zones at the front may be written anywhere.
    pub conventional: u32,
}
