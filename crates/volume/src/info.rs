//! The description of a header for people and programs, as complete as luksDump, without any key.

use serde::Serialize;

mod text;

/// The description of a header.
#[derive(Debug, Clone, Serialize)]
pub struct Info {
    /// `luks1` or `luks2`.
    pub format: &'static str,
    /// The UUID's text in the header.
    pub uuid: String,
    /// LUKS2's label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// LUKS2's subsystem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subsystem: Option<String>,
    /// LUKS2's sequence number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// The length of the header before the keyslots (LUKS2: of one copy), in bytes.
    pub metadata_size: u64,
    /// The length of the area for keyslots in bytes.
    pub keyslots_size: u64,
    /// The hash of LUKS2's checksums.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checksum: Option<&'static str>,
    /// SHA-256 over the parts that decide how the volume opens: `sha256:` and hex.
    pub header_digest: String,
    /// The fault of one of LUKS2's copies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
    /// Persistent activation flags.
    pub flags: Vec<String>,
    /// The requirements that a reader must know to open this volume.
    pub requirements: Vec<String>,
    /// The segments of the data.
    pub segments: Vec<SegmentInfo>,
    /// The keyslots in use.
    pub keyslots: Vec<KeyslotInfo>,
    /// LUKS2's tokens.
    pub tokens: Vec<TokenInfo>,
    /// The digests of volume keys.
    pub digests: Vec<DigestInfo>,
    /// LUKS2's metadata, word for word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<serde_json::Value>,
}

/// A segment of the data.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "each says it in its name; sizes and offsets are in bytes")]
pub struct SegmentInfo {
    pub number: u32,
    #[serde(rename = "type")]
    pub kind: String,
    pub offset: u64,
    /// `None` for a segment that extends to the end of the device.
    pub size: Option<u64>,
    pub cipher: Option<String>,
    pub key_bits: Option<u32>,
    pub sector_size: Option<usize>,
    /// In 512-byte units.
    pub iv_offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub integrity: Option<String>,
    /// The bits of the key that belong to the MAC beside the sectors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub integrity_key_bits: Option<u32>,
    pub flags: Vec<String>,
    /// Why this build cannot use the segment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl SegmentInfo {
    /// Whether the data of two segments lie and are encrypted in one way. The size of their keys is
    /// the keyslots', which may be gone.
    pub(crate) fn holds_data_as(&self, other: &Self) -> bool {
        let of = |s: &Self| (s.kind.clone(), s.offset, s.size, s.cipher.clone(), s.sector_size);
        (of(self), self.iv_offset, &self.integrity) == (of(other), other.iv_offset, &other.integrity)
    }
}

/// A keyslot.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "each says it in its name; sizes and offsets are in bytes")]
pub struct KeyslotInfo {
    pub number: u32,
    #[serde(rename = "type")]
    pub kind: String,
    pub key_bits: u32,
    /// `ignored`, `normal` or `preferred`.
    pub priority: &'static str,
    pub cipher: Option<String>,
    pub cipher_key_bits: Option<u32>,
    pub kdf: Option<KdfInfo>,
    pub af_stripes: Option<usize>,
    pub af_hash: Option<&'static str>,
    pub area_offset: u64,
    pub area_size: u64,
    /// The digest that confirms its key.
    pub digest: Option<u32>,
    /// Why this build cannot use the keyslot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A key derivation.
#[derive(Debug, Clone, Serialize)]
pub struct KdfInfo {
    /// `pbkdf2`, `argon2i` or `argon2id`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// PBKDF2's hash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<&'static str>,
    /// PBKDF2's rounds or Argon2's passes.
    pub iterations: u32,
    /// Argon2's memory in KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_kib: Option<u32>,
    /// Argon2's lanes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lanes: Option<u32>,
    /// The salt in hex.
    pub salt: String,
}

/// A token: a source of a passphrase without a question.
#[derive(Debug, Clone, Serialize)]
pub struct TokenInfo {
    /// The token's number.
    pub number: u32,
    /// `luks2-keyring`, `systemd-tpm2`, ..
    #[serde(rename = "type")]
    pub kind: String,
    /// The keyslots that it opens.
    pub keyslots: Vec<u32>,
}

/// A digest of a volume key.
#[derive(Debug, Clone, Serialize)]
pub struct DigestInfo {
    /// The digest's number.
    pub number: u32,
    /// `pbkdf2`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The derivation of the digest; `None` when this build lacks it.
    pub kdf: Option<KdfInfo>,
    /// The digest in hex.
    pub digest: Option<String>,
    /// The keyslots with this digest's key.
    pub keyslots: Vec<u32>,
    /// The segments under this digest's key.
    pub segments: Vec<u32>,
    /// Why this build cannot use the digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl KdfInfo {
    pub(crate) fn new(kdf: &crate::Kdf) -> Self {
        use crate::Kdf;
        let (kind, salt) = (kdf.kind().name(), hex(kdf.salt()));
        match *kdf {
            Kdf::Pbkdf2 { hash, iterations, .. } => {
                Self { kind, hash: Some(hash.name()), iterations, memory_kib: None, lanes: None, salt }
            }
            Kdf::Argon2 { passes, memory_kib, lanes, .. } => Self {
                kind,
                hash: None,
                iterations: passes,
                memory_kib: Some(memory_kib),
                lanes: Some(lanes),
                salt,
            },
        }
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
