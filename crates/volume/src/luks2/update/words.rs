//! Keyslots in the document: adding, removing, and naming them in digests and tokens. Parts that
//! this build does not understand stay.

use serde_json::{Map, Value, json};

use crate::{Error, ErrorKind, Priority, Result};

/// Inserts a value under its number into a part of the document.
pub(in crate::luks2) fn insert(
    document: &mut Map<String, Value>,
    part: &str,
    number: u32,
    value: Value,
) -> Result<()> {
    object(document.get_mut(part), part)?.insert(number.to_string(), value);
    Ok(())
}

/// Returns the entry of a keyslot.
pub(in crate::luks2) fn keyslot(
    document: &mut Map<String, Value>,
    number: u32,
) -> Result<&mut Map<String, Value>> {
    let keyslots = object(document.get_mut("keyslots"), "keyslots")?;
    object(keyslots.get_mut(&number.to_string()), "keyslots")
}

/// Sets when the keyslot is tried. The normal priority is left out, as by cryptsetup.
pub(in crate::luks2) fn set_priority(keyslot: &mut Map<String, Value>, priority: Priority) {
    if priority == Priority::Normal {
        keyslot.shift_remove("priority");
    } else {
        keyslot.insert("priority".into(), json!(priority as u32));
    }
}

/// Adds the keyslot to the digest of its key.
pub(in crate::luks2) fn bind(document: &mut Map<String, Value>, digest: u32, number: u32) -> Result<()> {
    let digest = object(document.get_mut("digests"), "digests")?.get_mut(&digest.to_string());
    keyslots_of(digest.ok_or_else(|| missing("digests"))?, "digests")?.push(number.to_string().into());
    Ok(())
}

/// Changes a keyslot's number. References to the old number stay.
pub(in crate::luks2) fn rename_keyslot(document: &mut Map<String, Value>, old: u32, new: u32) -> Result<()> {
    let keyslots = object(document.get_mut("keyslots"), "keyslots")?;
    let slot = keyslots.shift_remove(&old.to_string()).ok_or_else(|| missing("keyslots"))?;
    keyslots.insert(new.to_string(), slot);
    Ok(())
}

/// Adds `other` to each token that names `one`.
pub(in crate::luks2) fn name_in_tokens(
    document: &mut Map<String, Value>,
    one: u32,
    other: u32,
) -> Result<()> {
    for token in object(document.get_mut("tokens"), "tokens")?.values_mut() {
        let slots = keyslots_of(token, "tokens")?;
        if slots.iter().any(|slot| slot.as_str() == Some(&one.to_string())) {
            slots.push(other.to_string().into());
        }
    }
    Ok(())
}

/// Removes a keyslot's entry from the document, and its number from all references. A digest
/// without keyslots and data is removed, too.
pub(in crate::luks2) fn remove_keyslot(document: &mut Map<String, Value>, number: u32) -> Result<()> {
    object(document.get_mut("keyslots"), "keyslots")?.shift_remove(&number.to_string());
    let named = |slot: &Value| slot.as_str() == Some(&number.to_string());
    for token in object(document.get_mut("tokens"), "tokens")?.values_mut() {
        keyslots_of(token, "tokens")?.retain(|slot| !named(slot));
    }
    let mut unused = Vec::new();
    let digests = object(document.get_mut("digests"), "digests")?;
    for (name, digest) in &mut *digests {
        let slots = keyslots_of(digest, "digests")?;
        let before = slots.len();
        slots.retain(|slot| !named(slot));
        let has_data = |digest: &Value| digest["segments"].as_array().is_some_and(|list| !list.is_empty());
        if slots.is_empty() && before > 0 && !has_data(digest) {
            unused.push(name.clone());
        }
    }
    unused.iter().for_each(|name| drop(digests.shift_remove(name)));
    Ok(())
}

fn keyslots_of<'d>(entry: &'d mut Value, part: &str) -> Result<&'d mut Vec<Value>> {
    entry.get_mut("keyslots").and_then(Value::as_array_mut).ok_or_else(|| missing(part))
}

pub(in crate::luks2) fn object<'d>(
    value: Option<&'d mut Value>,
    part: &str,
) -> Result<&'d mut Map<String, Value>> {
    value.and_then(Value::as_object_mut).ok_or_else(|| missing(part))
}

/// The document was parsed, so its parts exist.
pub(in crate::luks2) fn missing(part: &str) -> Error {
    Error::new(ErrorKind::BadHeader, format!("{part}: not as they were read"))
}
