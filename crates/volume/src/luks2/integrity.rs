//! Segments with tags or IVs beside their sectors: under an authenticated cipher, over
//! dm-integrity's layout.
//!
//! ```text
//!   "encryption": "aes-xts-plain64"                      CIPHER-MODE-IV or CIPHER-IV
//!   "integrity": { "type": "hmac(sha256)",               none, aead, poly1305 or a MAC
//!                  "journal_encryption": "none",         of dm-integrity's journal; always none
//!                  "journal_integrity": "none",
//!                  "key_size": 16 }                      of the MAC, if not its digest's size
//!        -> capi:authenc(hmac(sha256),xts(aes))-plain64, integrity:32:aead
//! ```

use underseal_cipher::{Authentication, CipherSpec, IntegrityKind, authentication};

use serde_json::{Value, json};

use super::node::Node;
use crate::{Error, ErrorKind, NewIntegrity, Result, printable};

/// The tags or IVs beside a segment's sectors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Integrity {
    /// The cipher as the header has it.
    pub(crate) encryption: String,
    /// The type as the header has it.
    pub(crate) name: String,
    /// The kind: authenticated sectors, or stored IVs only.
    pub(crate) kind: IntegrityKind,
    /// Bytes beside each sector.
    pub(crate) bytes: usize,
    /// The bytes of the key that belong to the MAC, if the header has them.
    pub(crate) key_size: Option<usize>,
}

impl Integrity {
    /// Returns the bytes of the key that belong to the MAC, under this cipher.
    pub(crate) fn mac_key(&self, spec: &CipherSpec) -> usize {
        self.key_size.or(authentication(spec).ok().map(|is| is.mac_key)).unwrap_or(0)
    }
}

/// The known members of the object. An unknown one may change which bytes of the key belong to the
/// MAC.
const MEMBERS: [&str; 4] = ["type", "journal_encryption", "journal_integrity", "key_size"];

/// Parses the segment's integrity, and the cipher in the kernel's form for authenticated ones.
/// Fails with `BadHeader` for malformed values; with `Unsupported` for ciphers that this build does
/// not open.
pub(super) fn parse(node: &Node<'_>, encryption: &Node<'_>) -> Result<(Integrity, CipherSpec)> {
    if let Some(unknown) = node.members()?.find(|name| !MEMBERS.contains(name)) {
        let unknown = printable(unknown);
        return Err(node.error(ErrorKind::Unsupported, format_args!("what {unknown} means is not known")));
    }
    let name = named(node, "type")?;
    for journal in ["journal_encryption", "journal_integrity"] {
        let method = named(node, journal)?;
        if method != "none" {
            let why = format_args!("{journal} {}: LUKS2 opens volumes without only", printable(method));
            return Err(node.error(ErrorKind::Unsupported, why));
        }
    }
    let key_size = node.optional("key_size")?.map(|size| size.number(1..=super::metadata::MAX_KEY_SIZE));
    let key_size = key_size.transpose()?.map(|size| size as usize);
    let text = encryption.text()?;
    let unknown = || {
        let why = format_args!("{} with integrity {} is not known", printable(text), printable(name));
        encryption.error(ErrorKind::Unsupported, why)
    };
    let spec: CipherSpec = specification(text, name)
        .ok_or_else(unknown)?
        .parse()
        .map_err(|e: underseal_cipher::Error| unknown().with_source(e))?;
    let Authentication { tag, stored_iv, .. } =
        authentication(&spec).map_err(|e| unknown().with_source(e))?;
    let (kind, tag) = if name == "none" { (IntegrityKind::None, 0) } else { (IntegrityKind::Aead, tag) };
    let bytes = tag + stored_iv;
    if bytes == 0 || (kind == IntegrityKind::Aead && tag == 0) {
        return Err(unknown());
    }
    Ok((Integrity { encryption: text.into(), name: name.into(), kind, bytes, key_size }, spec))
}

/// Makes the object of a new segment, and its parsed form under this cipher. Fails with `BadOption`
/// for an impossible combination.
pub(super) fn new(cipher: &CipherSpec, wanted: &NewIntegrity) -> Result<(Value, Integrity, CipherSpec)> {
    let mut object =
        json!({ "type": wanted.kind, "journal_encryption": "none", "journal_integrity": "none" });
    if let Some(size) = wanted.key_size {
        object["key_size"] = size.into();
    }
    // For a cipher without a mode only the kernel's name is accepted as an argument.
    let written = cipher.as_written();
    let encryption = Value::from(written.strip_prefix("capi:").unwrap_or(written));
    let parsed = parse(&Node::new("integrity", &object), &Node::new("cipher", &encryption));
    let (integrity, spec) = parsed.map_err(|e| Error::new(ErrorKind::BadOption, e.to_string()))?;
    // An existing volume is opened; but no volume is made whose second write of a sector reveals
    // its contents.
    if integrity.kind == IntegrityKind::Aead && spec.chain() != "authenc" && spec.iv() != "random" {
        let context =
            format!("{cipher} with integrity {}: writing a sector again uses its nonce again", wanted.kind);
        return Err(Error::new(ErrorKind::BadOption, format!("{context}; random IVs do not")));
    }
    Ok((object, integrity, spec))
}

/// Returns the cipher of a new segment, and the bytes of its key that belong to the MAC. Fails as
/// [`new`].
pub(crate) fn mac_key(cipher: &CipherSpec, wanted: &NewIntegrity) -> Result<(CipherSpec, usize)> {
    let (_, integrity, spec) = new(cipher, wanted)?;
    let mac = integrity.mac_key(&spec);
    Ok((spec, mac))
}

/// Returns the bytes beside each sector of a new segment. Fails as [`new`].
pub(crate) fn tag_size(cipher: &CipherSpec, wanted: &NewIntegrity) -> Result<usize> {
    Ok(new(cipher, wanted)?.1.bytes)
}

/// Returns a required member that must not be empty.
fn named<'v>(node: &Node<'v>, name: &str) -> Result<&'v str> {
    let member = node.field(name)?;
    match member.text()? {
        "" => Err(member.error(ErrorKind::BadHeader, "is empty")),
        text => Ok(text),
    }
}

/// Returns LUKS2's cipher with its integrity type in the kernel's form; `None` for an impossible
/// combination.
fn specification(encryption: &str, integrity: &str) -> Option<String> {
    // Nothing can be added to a name in the kernel's form.
    if encryption.contains(['(', ')']) || encryption.starts_with("capi:") {
        return None;
    }
    let parts: Vec<&str> = encryption.splitn(3, '-').collect();
    let is_mac = ["hmac(", "cmac(", "phmac("].iter().any(|mac| integrity.starts_with(mac));
    Some(match (integrity, &parts[..]) {
        ("none", [cipher, mode, iv]) => format!("capi:{mode}({cipher})-{iv}"),
        ("aead", [cipher, "ccm", iv]) => format!("capi:rfc4309(ccm({cipher}))-{iv}"),
        ("aead", [cipher, mode, iv]) => format!("capi:{mode}({cipher})-{iv}"),
        ("aead", [cipher, iv]) => format!("capi:{cipher}-{iv}"),
        ("poly1305", [cipher, iv]) => format!("capi:rfc7539({cipher},poly1305)-{iv}"),
        (mac, [cipher, mode, iv]) if is_mac => format!("capi:authenc({mac},{mode}({cipher}))-{iv}"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(encryption: &str, integrity: &Value) -> Result<(Integrity, CipherSpec)> {
        let encryption = Value::from(encryption);
        parse(&Node::new("integrity", integrity), &Node::new("encryption", &encryption))
    }

    fn plain(kind: &str) -> Value {
        json!({ "type": kind, "journal_encryption": "none", "journal_integrity": "none" })
    }

    #[test]
    fn ciphers_are_those_of_the_tables_that_cryptsetup_loads() {
        for (encryption, integrity, expected, bytes) in [
            ("aes-xts-plain64", "hmac(sha256)", "capi:authenc(hmac(sha256),xts(aes))-plain64", 32),
            ("aes-xts-random", "hmac(sha256)", "capi:authenc(hmac(sha256),xts(aes))-random", 48),
            ("aes-gcm-random", "aead", "capi:gcm(aes)-random", 28),
            ("chacha20-random", "poly1305", "capi:rfc7539(chacha20,poly1305)-random", 28),
            ("aegis128-random", "aead", "capi:aegis128-random", 32),
            ("aes-xts-random", "none", "capi:xts(aes)-random", 16),
            ("aes-xts-plain64", "hmac(sha512)", "capi:authenc(hmac(sha512),xts(aes))-plain64", 64),
        ] {
            let (found, spec) = read(encryption, &plain(integrity)).unwrap();
            assert_eq!((spec.as_written(), found.bytes), (expected, bytes));
            assert_eq!(found.kind == IntegrityKind::None, integrity == "none");
        }
    }

    #[test]
    fn no_volume_is_made_that_repeats_its_nonces() {
        let make = |cipher: &str, kind: &str| {
            let wanted = NewIntegrity { kind: kind.into(), key_size: None, has_journal: true };
            new(&cipher.parse().unwrap(), &wanted).map(drop)
        };
        for (cipher, kind) in [
            ("aes-gcm-plain64", "aead"),
            ("aes-ccm-plain64", "aead"),
            ("capi:aegis128-plain64", "aead"),
            ("capi:chacha20-plain64", "poly1305"),
        ] {
            let refused = make(cipher, kind).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::BadOption, "{cipher}: {refused}");
            assert!(refused.to_string().contains("nonce"), "{cipher}: {refused}");
            make(&cipher.replace("plain64", "random"), kind).unwrap();
        }
        make("aes-xts-plain64", "hmac(sha256)").unwrap();
    }

    #[test]
    fn what_is_not_known_is_not_guessed() {
        let with = |name: &str, value: Value| {
            let mut object = plain("hmac(sha256)");
            object[name] = value;
            read("aes-xts-plain64", &object)
        };
        assert_eq!(with("key_size", json!(16)).unwrap().0.key_size, Some(16));
        for (name, value, kind) in [
            ("key_bits", json!(128), ErrorKind::Unsupported),
            ("journal_encryption", json!("cbc(aes)"), ErrorKind::Unsupported),
            ("journal_integrity", json!("hmac(sha256)"), ErrorKind::Unsupported),
            ("type", json!("crc32c"), ErrorKind::Unsupported),
            ("journal_integrity", json!(""), ErrorKind::BadHeader),
            ("journal_encryption", json!(7), ErrorKind::BadHeader),
            ("key_size", json!(0), ErrorKind::BadHeader),
            ("key_size", json!("16"), ErrorKind::BadHeader),
        ] {
            let refused = with(name, value.clone()).unwrap_err();
            assert_eq!(refused.kind(), kind, "{name}: {value}: {refused}");
        }
        for (encryption, integrity) in [
            ("aes-xts-plain64", "none"),
            ("aes-xts-plain64", "aead"),
            ("aes-xts-plain64", "poly1305"),
            ("aes-random", "hmac(sha256)"),
            ("capi:xts(aes)-plain64", "hmac(sha256)"),
        ] {
            let refused = read(encryption, &plain(integrity)).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unsupported, "{encryption} {integrity}: {refused}");
        }
    }
}
