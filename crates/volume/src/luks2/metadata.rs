//! LUKS2's JSON metadata as values that are valid because they exist (LUKS2 On-Disk Format 1.1,
//! section 3).

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use underseal_cipher::{CipherSpec, SectorSize};

use super::integrity::{self, Integrity};
use super::node::Node;
use crate::kdf::{Argon2Variant, Kdf};
use crate::{CipherParameters, Error, ErrorKind, Hash, PbkdfKind, Priority, Result};

/// The most keyslots, tokens, digests and segments.
pub(crate) const MAX_OBJECTS: u32 = 32;
/// The longest volume key: encryption and integrity keys of every mode together stay far below.
pub(crate) const MAX_KEY_SIZE: u32 = 1024;

/// Why an OPAL segment is refused: its drive encrypts by itself.
pub(super) const OPAL: &str =
    "the drive encrypts by itself (OPAL), and is unlocked by a command that this build does not know";

/// All of the metadata.
#[derive(Debug, Clone)]
pub(crate) struct Metadata {
    pub(crate) keyslots: BTreeMap<u32, Keyslot>,
    pub(crate) tokens: BTreeMap<u32, Token>,
    pub(crate) segments: BTreeMap<u32, Segment>,
    pub(crate) digests: BTreeMap<u32, Digest>,
    pub(crate) config: Config,
    /// The JSON document as read. Parts that this build does not understand are kept when the
    /// header is written again.
    pub(crate) document: Map<String, Value>,
}

/// A part that this build understands, or the reason why it is kept without being understood.
pub(crate) type Known<T> = std::result::Result<T, String>;

#[derive(Debug, Clone)]
pub(crate) struct Keyslot {
    /// The type's name: `luks2` or `reencrypt`.
    pub(crate) kind: String,
    /// The length of the keyslot's key, in bytes.
    pub(crate) key_size: u32,
    /// The priority: 0 is used only on request, 1 is normal, 2 comes first.
    pub(crate) priority: u32,
    /// The area: offset and length in bytes.
    pub(crate) area: (u64, u64),
    pub(crate) passphrase: Known<PassphraseSlot>,
}

impl Keyslot {
    pub(crate) fn priority(&self) -> Priority {
        match self.priority {
            0 => Priority::Ignored,
            1 => Priority::Normal,
            _ => Priority::Preferred,
        }
    }
}

/// The parameters of a keyslot of type `luks2`.
#[derive(Debug, Clone)]
pub(crate) struct PassphraseSlot {
    pub(crate) kdf: Kdf,
    pub(crate) af_hash: Hash,
    pub(crate) cipher: CipherSpec,
    /// The length of the key that encrypts the area, in bytes.
    pub(crate) wrapping_size: u32,
}

#[derive(Debug, Clone)]
pub(crate) struct Token {
    pub(crate) kind: String,
    pub(crate) keyslots: Vec<u32>,
}

#[derive(Debug, Clone)]
pub(crate) struct Segment {
    /// The type's name: `crypt` or `linear`.
    pub(crate) kind: String,
    /// The offset on the data device, in bytes.
    pub(crate) offset: u64,
    /// The size in bytes. `None` reaches to the end of the device.
    pub(crate) size: Option<u64>,
    pub(crate) flags: Vec<String>,
    pub(crate) crypt: Known<Crypt>,
}

/// The members that a segment of type `crypt` adds.
#[derive(Debug, Clone)]
pub(crate) struct Crypt {
    pub(crate) cipher: CipherSpec,
    pub(crate) sector_size: SectorSize,
    /// The IV offset, in 512-byte units.
    pub(crate) iv_tweak: u64,
    /// The tags or IVs beside the sectors. With them, the cipher is the kernel's name of an
    /// authenticated cipher.
    pub(crate) integrity: Option<Integrity>,
}

impl Crypt {
    /// Returns the cipher as the header has it.
    pub(crate) fn written(&self) -> String {
        match &self.integrity {
            Some(integrity) => integrity.encryption.clone(),
            None => self.cipher.to_string(),
        }
    }

    /// Returns the parameters of the segment's cipher, for a key of `key_size` bytes.
    pub(crate) fn cipher_parameters(&self, key_size: usize) -> CipherParameters {
        let beside = |integrity: &Integrity| underseal_cipher::Integrity {
            bytes: integrity.bytes,
            tuple: integrity.bytes,
            kind: integrity.kind,
            key_size: integrity.key_size,
            iv_offset: self.iv_tweak,
        };
        let integrity = self.integrity.as_ref().map(beside);
        CipherParameters { integrity, ..CipherParameters::new(&self.cipher, self.sector_size, key_size) }
    }

    /// Returns true when a key of `len` bytes fits the cipher, with the MAC's key behind the
    /// cipher's key.
    pub(crate) fn takes_key(&self, len: usize) -> bool {
        let mac = self.integrity.as_ref().map_or(0, |integrity| integrity.mac_key(&self.cipher));
        let sizes = underseal_cipher::key_sizes(&self.cipher);
        sizes.is_ok_and(|sizes| sizes.iter().any(|size| size + mac == len))
    }
}

impl Segment {
    /// Returns true for a segment that only a reencryption uses.
    pub(crate) fn is_backup(&self) -> bool {
        self.flags.iter().any(|flag| flag.starts_with("backup-"))
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Digest {
    pub(crate) kind: String,
    pub(crate) keyslots: Vec<u32>,
    pub(crate) segments: Vec<u32>,
    pub(crate) check: Known<DigestCheck>,
}

/// PBKDF2 over the volume key.
#[derive(Debug, Clone)]
pub(crate) struct DigestCheck {
    pub(crate) kdf: Kdf,
    pub(crate) digest: Vec<u8>,
}

#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) keyslots_size: u64,
    /// Flags of activation, for example `allow-discards`.
    pub(crate) flags: Vec<String>,
    /// Features that a reader must know to use this header at all.
    pub(crate) requirements: Vec<String>,
}

impl Metadata {
    /// Parses and checks the metadata of a header whose copies are `header_size` bytes each.
    pub(crate) fn parse(document: Map<String, Value>, header_size: u64) -> Result<Self> {
        let part = |name: &str| match document.get(name) {
            Some(value) => Ok(Node::new(name, value)),
            None => Err(Error::new(ErrorKind::BadHeader, format!("no \"{name}\""))),
        };
        let config = config(&part("config")?, header_size)?;
        let metadata = Self {
            keyslots: numbered(&part("keyslots")?, keyslot)?,
            tokens: numbered(&part("tokens")?, token)?,
            segments: numbered(&part("segments")?, segment)?,
            digests: numbered(&part("digests")?, digest)?,
            config,
            document: Map::new(),
        };
        super::check::check(&metadata, header_size)?;
        Ok(Self { document, ..metadata })
    }

    /// Returns the first byte of data on its device.
    pub(crate) fn data_offset(&self) -> u64 {
        self.segments.values().filter(|s| !s.is_backup()).map(|s| s.offset).min().unwrap_or(0)
    }

    /// Returns the size of the data in bytes, or `None` when a segment reaches to the end of its
    /// device.
    pub(crate) fn data_size(&self) -> Option<u64> {
        let mut segments = self.segments.values().filter(|segment| !segment.is_backup());
        segments.try_fold(0, |sum: u64, segment| sum.checked_add(segment.size?))
    }
}

fn numbered<T>(node: &Node<'_>, parse: impl Fn(&Node<'_>) -> Result<T>) -> Result<BTreeMap<u32, T>> {
    node.numbered(MAX_OBJECTS)?.into_iter().map(|(number, node)| Ok((number, parse(&node)?))).collect()
}

/// Keeps an unsupported part as the reason. A malformed part stays an error.
fn known<T>(parsed: Result<T>) -> Result<Known<T>> {
    match parsed {
        Ok(value) => Ok(Ok(value)),
        Err(e) if e.kind() == ErrorKind::Unsupported => Ok(Err(e.to_string())),
        Err(e) => Err(e),
    }
}

fn keyslot(node: &Node<'_>) -> Result<Keyslot> {
    let area = node.field("area")?;
    let priority = node.optional("priority")?.map_or(Ok(1), |p| p.number(0..=2))?;
    Ok(Keyslot {
        kind: node.field("type")?.text()?.into(),
        key_size: node.field("key_size")?.number(0..=MAX_KEY_SIZE)?,
        priority,
        area: (area.field("offset")?.number_text()?, area.field("size")?.number_text()?),
        passphrase: known(passphrase_slot(node))?,
    })
}

fn passphrase_slot(node: &Node<'_>) -> Result<PassphraseSlot> {
    only(&node.field("type")?, "luks2")?;
    let (area, af) = (node.field("area")?, node.field("af")?);
    only(&area.field("type")?, "raw")?;
    only(&af.field("type")?, "luks1")?;
    af.field("stripes")?.number(4000..=4000)?;
    node.field("key_size")?.number(1..=MAX_KEY_SIZE)?;
    Ok(PassphraseSlot {
        af_hash: af.field("hash")?.hash()?,
        cipher: area.field("encryption")?.cipher()?,
        wrapping_size: area.field("key_size")?.number(1..=MAX_KEY_SIZE)?,
        kdf: kdf(&node.field("kdf")?)?,
    })
}

fn kdf(node: &Node<'_>) -> Result<Kdf> {
    let salt = node.field("salt")?.bytes()?;
    if !(8..=1024).contains(&salt.len()) {
        return Err(node.error(ErrorKind::BadHeader, format_args!("a salt of {} bytes", salt.len())));
    }
    let variant = match node.field("type")?.text()?.parse()? {
        PbkdfKind::Pbkdf2 => return pbkdf2(node, salt),
        PbkdfKind::Argon2i => Argon2Variant::Argon2i,
        PbkdfKind::Argon2id => Argon2Variant::Argon2id,
    };
    let lanes = node.field("cpus")?.number(1..=(1 << 24) - 1)?;
    Ok(Kdf::Argon2 {
        variant,
        passes: node.field("time")?.number(1..=u32::MAX)?,
        memory_kib: node.field("memory")?.number(8u32.saturating_mul(lanes)..=u32::MAX)?,
        lanes,
        salt,
    })
}

fn pbkdf2(node: &Node<'_>, salt: Vec<u8>) -> Result<Kdf> {
    let iterations = node.field("iterations")?.number(1..=u32::MAX)?;
    Ok(Kdf::Pbkdf2 { hash: node.field("hash")?.hash()?, iterations, salt })
}

pub(super) fn token(node: &Node<'_>) -> Result<Token> {
    let kind = node.field("type")?;
    if kind.text()?.is_empty() {
        return Err(kind.error(ErrorKind::BadHeader, "is empty"));
    }
    Ok(Token {
        kind: kind.text()?.into(),
        keyslots: node.field("keyslots")?.repeated_references(MAX_OBJECTS)?,
    })
}

fn segment(node: &Node<'_>) -> Result<Segment> {
    let size = node.field("size")?;
    let size = if size.text()? == "dynamic" { None } else { Some(size.number_text()?) };
    let flags = node.optional("flags")?.map_or(Ok(vec![]), |flags| flags.texts())?;
    Ok(Segment {
        kind: node.field("type")?.text()?.into(),
        offset: node.field("offset")?.number_text()?,
        size,
        flags: flags.into_iter().map(Into::into).collect(),
        crypt: known(crypt(node))?,
    })
}

/// The type of a segment whose data is not encrypted.
pub(crate) const LINEAR: &str = "linear";
const DECRYPTED: &str =
    "\"linear\": the data is not encrypted. Where a decryption has ended, use the device without this header";

fn crypt(node: &Node<'_>) -> Result<Crypt> {
    let kind = node.field("type")?;
    if kind.text()?.starts_with("hw-opal") {
        return Err(kind.error(ErrorKind::Unsupported, OPAL));
    }
    if kind.text()? == LINEAR {
        return Err(kind.error(ErrorKind::Unsupported, DECRYPTED));
    }
    only(&kind, "crypt")?;
    let sector_size = node.field("sector_size")?;
    let encryption = node.field("encryption")?;
    let (integrity, cipher) = match node.optional("integrity")? {
        Some(object) => {
            let (integrity, cipher) = integrity::parse(&object, &encryption)?;
            (Some(integrity), cipher)
        }
        None => (None, encryption.cipher()?),
    };
    // The largest sector size of LUKS is the smallest page size of all machines.
    let sector_size = SectorSize::new(sector_size.number(512..=4096)?)
        .map_err(|e| sector_size.error(ErrorKind::BadHeader, "no sector size").with_source(e))?;
    Ok(Crypt { iv_tweak: node.field("iv_tweak")?.number_text()?, cipher, sector_size, integrity })
}

fn digest(node: &Node<'_>) -> Result<Digest> {
    Ok(Digest {
        kind: node.field("type")?.text()?.into(),
        keyslots: node.field("keyslots")?.references(MAX_OBJECTS)?,
        segments: node.field("segments")?.references(MAX_OBJECTS)?,
        check: known(digest_check(node))?,
    })
}

fn digest_check(node: &Node<'_>) -> Result<DigestCheck> {
    only(&node.field("type")?, "pbkdf2")?;
    let kdf = pbkdf2(node, node.field("salt")?.bytes()?)?;
    let field = node.field("digest")?;
    let digest = field.bytes()?;
    // A shorter digest would match other keys, and an empty digest every key. Headers converted
    // from LUKS1 have digests of 20 bytes; other digests are as long as their hash.
    if !(20..=64).contains(&digest.len()) {
        return Err(field.error(ErrorKind::BadHeader, format_args!("a digest of {} bytes", digest.len())));
    }
    Ok(DigestCheck { kdf, digest })
}

fn config(node: &Node<'_>, header_size: u64) -> Result<Config> {
    let json_size = node.field("json_size")?;
    if json_size.number_text()? != header_size - super::binary::LEN as u64 {
        return Err(json_size.error(ErrorKind::BadHeader, "is not the size of the JSON area"));
    }
    let list = |node: Option<Node<'_>>| -> Result<Vec<String>> {
        Ok(node.map_or(Ok(vec![]), |n| n.texts())?.into_iter().map(Into::into).collect())
    };
    let requirements = match node.optional("requirements")? {
        Some(requirements) => list(requirements.optional("mandatory")?)?,
        None => vec![],
    };
    Ok(Config {
        keyslots_size: node.field("keyslots_size")?.number_text()?,
        flags: list(node.optional("flags")?)?,
        requirements,
    })
}

fn only(node: &Node<'_>, kind: &str) -> Result<()> {
    let found = node.text()?;
    if found == kind {
        return Ok(());
    }
    Err(node.error(ErrorKind::Unsupported, format_args!("{} is not supported", crate::printable(found))))
}
