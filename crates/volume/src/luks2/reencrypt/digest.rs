//! The digest over the metadata of a reencryption: making it needs all of the volume's keys.
//!
//! Its input is one run of bytes, without any separator:
//! ```text
//!   "v", version as a digit | old key, new key (if another) | mode, direction, area
//!                           | old segment, new segment, moved segment
//!   strings as they are, numbers of 64 and 32 bits in big endian
//! ```

use std::borrow::Cow;

use serde_json::{Map, Value};
use underseal_cipher::Key;

use super::slot::{Lay, Reencryption};
use crate::kdf::{Budget, new_key, to_key};
use crate::luks2::metadata::Metadata;
use crate::luks2::node::Node;
use crate::{Error, ErrorKind, KdfLimits, Result};

/// The longest string in the digest's input.
const LONGEST: usize = 64;

/// Checks that the metadata were made with these keys: the old key and the new key, in this order,
/// as far as both exist.
///
/// Fails with `Untrusted` when the metadata were made without the keys, and with `TooCostly` and
/// `Memory`.
pub(crate) fn verify(metadata: &Metadata, reencryption: &Reencryption, keys: &[&Key]) -> Result<()> {
    let check = metadata.digests.get(&reencryption.digest).map(|digest| &digest.check);
    let Some(Ok(check)) = check else {
        return Err(Error::new(ErrorKind::BadHeader, "digests: none of the reencryption's metadata"));
    };
    let input = input(&metadata.document, reencryption, keys)?;
    let budget = Budget::new(KdfLimits::default());
    let place = format_args!("digests.{}", reencryption.digest);
    let found =
        budget.derive(&check.kdf, input.as_bytes(), check.digest.len()).map_err(|e| e.within(place))?;
    // Keys are compared in constant time.
    if to_key(&check.digest)? == found {
        return Ok(());
    }
    let context = format!(
        "digests.{}: what the header says of its reencryption was not written by who has the keys; nothing was changed. A backup \
         of the header from before, if there is one, shows what it was",
        reencryption.digest
    );
    Err(Error::new(ErrorKind::Untrusted, context))
}

/// Returns the input of the digest.
///
/// Fails with `BadHeader` for strings that are empty or too long, and with `Memory`.
pub(crate) fn input(
    document: &Map<String, Value>,
    reencryption: &Reencryption,
    keys: &[&Key],
) -> Result<Key> {
    let mut parts: Vec<Cow<'_, [u8]>> = vec![Cow::Owned(vec![b'v', b'0' + reencryption.version])];
    parts.extend(keys.iter().map(|key| Cow::Borrowed(key.as_bytes())));
    keyslot(document, reencryption, &mut parts)?;
    for lay in reencryption.backups() {
        segment(document, lay, &mut parts)?;
    }
    let mut input = new_key(parts.iter().map(|part| part.len()).sum())?;
    let mut rest = input.as_mut_bytes();
    for part in parts {
        let (place, after) = rest.split_at_mut(part.len());
        place.copy_from_slice(&part);
        rest = after;
    }
    Ok(input)
}

fn keyslot<'d>(
    document: &'d Map<String, Value>,
    reencryption: &Reencryption,
    parts: &mut Vec<Cow<'d, [u8]>>,
) -> Result<()> {
    let slot = entry(document, "keyslots", reencryption.slot);
    let area = slot.field("area")?;
    parts.push(text(&slot.field("mode")?)?);
    parts.push(text(&slot.field("direction")?)?);
    let kind = area.field("type")?;
    parts.push(text(&kind)?);
    parts.push(wide(&area.field("offset")?)?);
    parts.push(wide(&area.field("size")?)?);
    if kind.text()?.ends_with("checksum") {
        parts.push(text(&area.field("hash")?)?);
        parts.push(narrow(&area.field("sector_size")?)?);
    }
    if kind.text()?.starts_with("datashift") {
        parts.push(wide(&area.field("shift_size")?)?);
    }
    Ok(())
}

fn segment<'d>(document: &'d Map<String, Value>, lay: &Lay, parts: &mut Vec<Cow<'d, [u8]>>) -> Result<()> {
    let segment = entry(document, "segments", lay.number);
    parts.push(text(&segment.field("type")?)?);
    parts.push(wide(&segment.field("offset")?)?);
    let size = segment.field("size")?;
    parts.push(if lay.segment.size.is_none() { text(&size)? } else { wide(&size)? });
    if lay.crypt().is_some() {
        parts.push(wide(&segment.field("iv_tweak")?)?);
        parts.push(text(&segment.field("encryption")?)?);
        parts.push(narrow(&segment.field("sector_size")?)?);
    }
    Ok(())
}

fn entry<'d>(document: &'d Map<String, Value>, part: &str, number: u32) -> Node<'d> {
    // Parsed parts exist. A missing member would be null, and is refused as no object.
    const NOTHING: &Value = &Value::Null;
    let value = document.get(part).and_then(|entries| entries.get(number.to_string()));
    Node::new(format!("{part}.{number}"), value.unwrap_or(NOTHING))
}

fn text<'d>(node: &Node<'d>) -> Result<Cow<'d, [u8]>> {
    let text = node.text()?;
    if !(1..=LONGEST).contains(&text.len()) {
        return Err(
            node.error(ErrorKind::BadHeader, format_args!("{} bytes: from 1 to {LONGEST}", text.len()))
        );
    }
    Ok(Cow::Borrowed(text.as_bytes()))
}

fn wide<'d>(node: &Node<'d>) -> Result<Cow<'d, [u8]>> {
    Ok(Cow::Owned(node.number_text()?.to_be_bytes().to_vec()))
}

fn narrow<'d>(node: &Node<'d>) -> Result<Cow<'d, [u8]>> {
    Ok(Cow::Owned(node.number(0..=u32::MAX)?.to_be_bytes().to_vec()))
}
