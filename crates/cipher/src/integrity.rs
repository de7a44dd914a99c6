//! What is kept beside each sector: dm-crypt's `integrity:BYTES:KIND`.
//!
//! ```text
//!   tuple of a sector = [tag][stored IV][zeros]
//!                        <---- bytes ---->       <= tuple, the place that the device below has
//! ```

/// What is kept beside each sector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Integrity {
    /// Bytes that the cipher uses: its tag, then the IV if that is random.
    pub bytes: usize,
    /// Bytes that the device below has for each sector, at least `bytes`; the cipher writes zeros
    /// to what it does not use.
    pub tuple: usize,
    /// Whether there is a tag.
    pub kind: IntegrityKind,
    /// dm-crypt's `integrity_key_size`: bytes at the key's end that are the MAC's; its digest's
    /// size when none is given.
    pub key_size: Option<usize>,
    /// The mapping's IV offset. Sector numbers have it in them; those that are authenticated are
    /// without it.
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

/// What an authenticated cipher needs beside the sectors, for whoever makes a new volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Authentication {
    /// Bytes of its whole tag, 0 if it has none.
    pub tag: usize,
    /// Bytes of the IV that is stored, 0 if it is derived.
    pub stored_iv: usize,
    /// Bytes of key that the MAC takes behind those of [`key_sizes`](crate::key_sizes), 0 if it has
    /// no key of its own.
    pub mac_key: usize,
}
