//! What a device wants of those who use it.

/// A device's size and its alignment rules. All but the size is of opening time and does not change
/// while the device is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Size in bytes, when it was last asked for: on opening, and by
    /// [`Device::refresh`](crate::Device::refresh).
    pub size: u64,
    /// Offsets and lengths must be a multiple of this many bytes; 1 when anything goes.
    pub block: u32,
    /// Offsets and lengths that cost the device no read-modify-write, in bytes.
    pub preferred_block: u32,
    /// Memory must begin at a multiple of this many bytes. At most a page: every
    /// [`Buffer`](crate::Buffer) fits as a whole. Whoever gives parts of one sees to it that they
    /// begin at such a multiple.
    pub memory_alignment: u32,
    /// Nothing may be written.
    pub read_only: bool,
    /// Discards free space below.
    pub discard: bool,
    /// Zones that must be written in sequence, if it has them and tells.
    pub zones: Option<Zones>,
    /// It keeps so many bytes beside each block, which come and go with it: its tuple. 0: it keeps
    /// none.
    pub tag_size: u32,
}

impl Geometry {
    /// How many bytes of tuples belong to so many bytes, whole blocks.
    pub fn tags_of(&self, len: usize) -> usize {
        (len / (self.block as usize).max(1)).saturating_mul(self.tag_size as usize)
    }
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

/// How many zones may be in use at a time; 0: no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ZoneLimits {
    /// Open for writing.
    pub open: u32,
    /// Open, or closed and neither empty nor full.
    pub active: u32,
}

/// One zone as it is now, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zone {
    /// Where it begins.
    pub start: u64,
    /// Its length: where the next one begins.
    pub len: u64,
    /// How much of it can be written.
    pub capacity: u64,
    /// Where it is written next.
    pub pointer: u64,
    /// `BLK_ZONE_TYPE_`: 1 conventional, 2 to be written in sequence.
    pub kind: u8,
    /// `BLK_ZONE_COND_`: empty, open, full, ..
    pub condition: u8,
}

/// What can be done to zones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZoneAction {
    /// Holds the resources for writing.
    Open,
    /// Gives them back.
    Close,
    /// Makes it full.
    Finish,
    /// Makes it empty: what is in it is lost.
    Reset,
}
