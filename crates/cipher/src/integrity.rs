//! The tuple of each sector: dm-crypt's `integrity:BYTES:KIND`.
//!
//! ```text
//!   tuple of a sector = [tag][stored IV][zeros]
//!                        <---- bytes ---->       <= tuple, the room on the lower device
//! ```

/// The tuple of each sector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Integrity {
    /// Bytes that the cipher uses: its tag, then the IV if that is random.
    pub bytes: usize,
    /// Bytes of the lower device for each sector, at least `bytes`; the cipher writes zeros to the
    /// unused ones.
    pub tuple: usize,
    /// Whether the tuple has a tag.
    pub kind: IntegrityKind,
    /// dm-crypt's `integrity_key_size`: the bytes of the MAC's key at the key's end; `None`: the
    /// size of its digest.
    pub key_size: Option<usize>,
    /// The mapping's IV offset. Sector numbers for IVs include it; authenticated sector numbers do
    /// not.
    pub iv_offset: u64,
}

/// The `KIND`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IntegrityKind {
    /// `aead`: sectors are authenticated.
    Aead,
    /// `none`: only the IV is stored, if it is random.
    None,
}

/// The tuple that an authenticated cipher needs, for formatting a new volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Authentication {
    /// Bytes of the whole tag; 0 without one.
    pub tag: usize,
    /// Bytes of the stored IV; 0 if the IV is derived.
    pub stored_iv: usize,
    /// Bytes of the MAC's key, behind those of [`key_sizes`](crate::key_sizes); 0 without a
    /// separate key.
    pub mac_key: usize,
}
