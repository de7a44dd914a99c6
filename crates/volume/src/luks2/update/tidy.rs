//! Metadata with superfluous members.

use serde_json::{Map, Value};

use crate::luks2::metadata::Metadata;
use crate::luks2::{Header, activate};
use crate::{Result, Target};

impl Header {
    /// Returns the key derivations with members of another kind, left by older versions of
    /// cryptsetup.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let Some(slots) = self.json().get("keyslots").and_then(Value::as_object) else { return vec![] };
        let odd = |slot: &Value| {
            slot["kdf"].as_object().is_some_and(|kdf| kdf.keys().any(|name| !belongs(kdf, name)))
        };
        slots
            .iter()
            .filter(|(_, slot)| odd(slot))
            .map(|(number, _)| format!("keyslots.{number}.kdf"))
            .collect()
    }

    /// Removes those members, and writes both copies.
    ///
    /// Fails with the errors of an update.
    pub(crate) fn tidy(&mut self, on: &(impl Target + ?Sized)) -> Result<()> {
        let edit = |document: &mut Map<String, Value>, metadata: &Metadata| {
            activate::requirements(&metadata.config.requirements)?;
            let slots = document.get_mut("keyslots").and_then(Value::as_object_mut);
            for slot in slots.into_iter().flat_map(|slots| slots.values_mut()) {
                let Some(kdf) = slot.get_mut("kdf").and_then(Value::as_object_mut) else { continue };
                let odd: Vec<String> = kdf.keys().filter(|name| !belongs(kdf, name)).cloned().collect();
                odd.iter().for_each(|name| drop(kdf.shift_remove(name)));
            }
            Ok(())
        };
        self.update(on, edit, |()| Ok(()))
    }
}

/// Returns true when a key derivation of this kind has this member. For an unknown kind every
/// member may be right.
fn belongs(kdf: &Map<String, Value>, name: &str) -> bool {
    match kdf.get("type").and_then(Value::as_str) {
        Some("pbkdf2") => ["type", "salt", "hash", "iterations"].contains(&name),
        Some("argon2i" | "argon2id") => ["type", "salt", "time", "memory", "cpus"].contains(&name),
        _ => true,
    }
}
