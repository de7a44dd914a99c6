//! The size and alignment rules of a lower device.

/// A device's size and its alignment rules. All values except the size are from the opening, and do
/// not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Size in bytes, from the opening or from the last
    /// [`Device::refresh`](crate::Device::refresh).
    pub size: u64,
    /// Offsets and lengths must be a multiple of this many bytes; 1: any are allowed.
    pub block: u32,
    /// The unit of offsets and lengths that need no read-modify-write in the device, in bytes.
    pub preferred_block: u32,
    /// Memory must begin at a multiple of this many bytes, at most a page: every
    /// [`Buffer`](crate::Buffer) fits as a whole. A part of a buffer must begin at a multiple.
    pub memory_alignment: u32,
    /// The device takes no writes.
    pub read_only: bool,
    /// Discards free space in the device.
    pub discard: bool,
    /// The zones of a device with zones that must be written in sequence.
    pub zones: Option<Zones>,
    /// The bytes of the tuple that is read and written with each block. 0: blocks have no tuples.
    pub tag_size: u32,
}

impl Geometry {
    /// The number of tuple bytes for `len` bytes of whole blocks.
    pub fn tags_of(&self, len: usize) -> usize {
        (len / (self.block as usize).max(1)).saturating_mul(self.tag_size as usize)
    }
}

/// The zones of a device that cannot be written at any place (host-managed SMR, ZNS).
///
/// A sequential zone is written at its write pointer only, and discarded as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zones {
    /// A zone's length in bytes; the last may be shorter.
    pub size: u64,
    /// The number of zones at the front that can be written at any place.
    pub conventional: u32,
}

/// The limits on zones in use at a time; 0: no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ZoneLimits {
    /// Open for writing.
    pub open: u32,
    /// Open, or closed and neither empty nor full.
    pub active: u32,
}

/// The present state of a zone, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zone {
    /// The zone's first byte.
    pub start: u64,
    /// The length: the next zone begins behind it.
    pub len: u64,
    /// The writable length.
    pub capacity: u64,
    /// The place of the next write.
    pub pointer: u64,
    /// `BLK_ZONE_TYPE_`: 1 conventional, 2 to be written in sequence.
    pub kind: u8,
    /// `BLK_ZONE_COND_`: empty, open, full, ..
    pub condition: u8,
}

/// An action on zones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZoneAction {
    /// Reserves the resources for writing.
    Open,
    /// Releases these resources.
    Close,
    /// Makes the zone full.
    Finish,
    /// Makes the zone empty; its data is lost.
    Reset,
}
