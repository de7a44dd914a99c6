//! Tokens that come, go and change the keyslots they open. What is inside of one concerns nobody
//! here.

use serde_json::{Map, Value};

use crate::luks2::metadata::{self, MAX_OBJECTS, Metadata};
use crate::luks2::node::Node;
use crate::luks2::{Header, activate, json};
use crate::{Error, ErrorKind, Result, Target, printable};

/// What begins so is a type of cryptsetup's own.
const RESERVED: &str = "luks2-";
/// The one that exists: the passphrase is a key in the kernel's keyring.
const KEYRING: &str = "luks2-keyring";

/// Where a new token goes.
#[derive(Debug, Clone, Copy, Default)]
pub struct NewToken {
    /// Its number; none takes the first that is free.
    pub number: Option<u32>,
    /// Takes the place of the token that has this number.
    pub replace: bool,
}

/// A token out of its JSON.
///
/// # Errors
/// `BadOption` when it is no token that a header could hold, or one that cryptsetup would not
/// import.
pub fn token_from_json(text: &[u8]) -> Result<Map<String, Value>> {
    let token = json::parse(text.trim_ascii(), json::Repeats::LastWins).map_err(refused)?;
    check(&token)?;
    Ok(token)
}

impl Header {
    /// A token as it stands on disk.
    ///
    /// # Errors
    /// `BadOption` when there is none of this number.
    pub fn token(&self, number: u32) -> Result<&Map<String, Value>> {
        let token = self.json().get("tokens").and_then(|tokens| tokens.get(number.to_string()));
        token.and_then(Value::as_object).ok_or_else(|| no_token(number))
    }

    /// Gives the header another token: its number.
    ///
    /// # Errors
    /// `BadOption` when it is no token, names a keyslot that is not there, or its number is taken
    /// or none is free, or the metadata has no room for it; `Unsupported` when the header requires
    /// what this build does not know; `Busy`, `Ambiguous` when the header cannot be changed now;
    /// `Io`.
    pub fn add_token(
        &mut self,
        on: &(impl Target + ?Sized),
        token: Map<String, Value>,
        new: NewToken,
    ) -> Result<u32> {
        let slots = check(&token)?;
        let edit = |document: &mut Map<String, Value>, metadata: &Metadata| {
            activate::requirements(&metadata.config.requirements)?;
            if let Some(missing) = slots.iter().find(|slot| !metadata.keyslots.contains_key(slot)) {
                return Err(option(format!("keyslot {missing}, which the token names, is not in use")));
            }
            let number = number(metadata, new)?;
            tokens(document)?.insert(number.to_string(), token.into());
            Ok(number)
        };
        self.update(on, edit, |_| Ok(()))
    }

    /// Removes a token. Its keyslots stay.
    ///
    /// # Errors
    /// `BadOption` when it is not there; the others of [`Header::add_token`].
    pub fn remove_token(&mut self, on: &(impl Target + ?Sized), number: u32) -> Result<()> {
        let edit = |document: &mut Map<String, Value>, metadata: &Metadata| {
            activate::requirements(&metadata.config.requirements)?;
            tokens(document)?.shift_remove(&number.to_string()).ok_or_else(|| no_token(number))?;
            Ok(())
        };
        self.update(on, edit, |()| Ok(()))
    }

    /// Says that a token opens a keyslot, or that it does not.
    ///
    /// # Errors
    /// `BadOption` when one of them is not there, or the token never had the keyslot that it is to
    /// lose; the others of [`Header::add_token`].
    pub fn assign_token(
        &mut self,
        on: &(impl Target + ?Sized),
        number: u32,
        slot: u32,
        opens: bool,
    ) -> Result<()> {
        let edit = |document: &mut Map<String, Value>, metadata: &Metadata| {
            activate::requirements(&metadata.config.requirements)?;
            let has = metadata.tokens.get(&number).ok_or_else(|| no_token(number))?.keyslots.contains(&slot);
            if !metadata.keyslots.contains_key(&slot) {
                return Err(option(format!("keyslot {slot} is not in use")));
            }
            if !opens && !has {
                return Err(option(format!("token {number} does not open keyslot {slot}")));
            }
            let slots = tokens(document)?.get_mut(&number.to_string()).and_then(|t| t.get_mut("keyslots"));
            let slots = slots.and_then(Value::as_array_mut).ok_or_else(|| no_token(number))?;
            slots.retain(|name| name.as_str() != Some(&slot.to_string()));
            if opens {
                slots.push(slot.to_string().into());
            }
            Ok(())
        };
        self.update(on, edit, |()| Ok(()))
    }
}

/// A token without keyslots, if it is one that a header could hold.
pub(super) fn checked(mut token: Map<String, Value>) -> Result<Map<String, Value>> {
    token.insert("keyslots".into(), Value::Array(vec![]));
    check(&token)?;
    Ok(token)
}

/// Puts a token of one keyslot, which comes with it, into the document: its number.
pub(super) fn put(
    document: &mut Map<String, Value>,
    metadata: &Metadata,
    mut token: Map<String, Value>,
    place: NewToken,
    slot: u32,
) -> Result<u32> {
    let number = number(metadata, place)?;
    token.insert("keyslots".into(), vec![slot.to_string()].into());
    tokens(document)?.insert(number.to_string(), token.into());
    Ok(number)
}

/// Checks what cryptsetup checks before it imports one; the keyslots that it names.
fn check(token: &Map<String, Value>) -> Result<Vec<u32>> {
    let value = Value::Object(token.clone());
    let parsed = metadata::token(&Node::new("token", &value)).map_err(refused)?;
    if parsed.kind == KEYRING {
        let description = token.get("key_description").and_then(Value::as_str);
        if token.len() != 3 || description.is_none_or(str::is_empty) {
            let members =
                "its members are type, keyslots and key_description, which is not empty, and no others";
            return Err(option(format!("token of type {KEYRING}: {members}")));
        }
    } else if parsed.kind.starts_with(RESERVED) {
        let kind = printable(&parsed.kind);
        return Err(option(format!(
            "token of type {kind}: {RESERVED} begins cryptsetup's own types, and this is none"
        )));
    }
    Ok(parsed.keyslots)
}

fn number(metadata: &Metadata, new: NewToken) -> Result<u32> {
    let is_free = |number: &u32| !metadata.tokens.contains_key(number);
    match new.number {
        Some(number) if number >= MAX_OBJECTS => {
            Err(option(format!("there is no token {number}: the last is {}", MAX_OBJECTS - 1)))
        }
        Some(number) if new.replace || is_free(&number) => Ok(number),
        Some(number) => Err(option(format!("token {number} is in use"))),
        None => (0..MAX_OBJECTS).find(is_free).ok_or_else(|| option("all tokens are in use")),
    }
}

fn tokens(document: &mut Map<String, Value>) -> Result<&mut Map<String, Value>> {
    let tokens = document.get_mut("tokens").and_then(Value::as_object_mut);
    // The document was parsed, so it is there.
    tokens.ok_or_else(|| Error::new(ErrorKind::BadHeader, "tokens: not as they were read"))
}

fn no_token(number: u32) -> Error {
    option(format!("there is no token {number}"))
}

fn option(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadOption, why)
}

/// What would be a bad header is a bad argument here.
fn refused(e: Error) -> Error {
    option(e.to_string())
}

#[cfg(test)]
mod tests;
