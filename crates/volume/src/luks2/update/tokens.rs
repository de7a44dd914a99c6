//! Adding, removing and changing tokens, and their keyslots. The contents of a token do not matter
//! here.

use serde_json::{Map, Value};

use crate::luks2::metadata::{self, MAX_OBJECTS, Metadata};
use crate::luks2::node::Node;
use crate::luks2::{Header, activate, json};
use crate::{Error, ErrorKind, Result, Target, printable};

/// The prefix of cryptsetup's own types.
const RESERVED: &str = "luks2-";
/// cryptsetup's own type: the passphrase is a key in the kernel's keyring.
const KEYRING: &str = "luks2-keyring";

/// The place of a new token.
#[derive(Debug, Clone, Copy, Default)]
pub struct NewToken {
    /// The token's number. `None` stands for the first free number.
    pub number: Option<u32>,
    /// Replaces the token with this number.
    pub replace: bool,
}

/// Parses a token from its JSON.
///
/// # Errors
/// `BadOption` when it is no token that a header could hold, or a token that cryptsetup would not
/// import.
pub fn token_from_json(text: &[u8]) -> Result<Map<String, Value>> {
    let token = json::parse(text.trim_ascii(), json::Repeats::LastWins).map_err(refused)?;
    check(&token)?;
    Ok(token)
}

impl Header {
    /// Returns a token as it is on disk.
    ///
    /// # Errors
    /// `BadOption` when no token has this number.
    pub fn token(&self, number: u32) -> Result<&Map<String, Value>> {
        let token = self.json().get("tokens").and_then(|tokens| tokens.get(number.to_string()));
        token.and_then(Value::as_object).ok_or_else(|| no_token(number))
    }

    /// Adds a token to the header. Returns its number.
    ///
    /// # Errors
    /// `BadOption` when it is no token, when it names a keyslot that does not exist, when its
    /// number is in use or no number is free, or when the metadata has no room for it;
    /// `Unsupported` when the header requires features that this build does not know; `Busy`,
    /// `Ambiguous` when the header cannot be changed now; `Io`.
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
    /// `BadOption` when it does not exist; the other kinds of [`Header::add_token`].
    pub fn remove_token(&mut self, on: &(impl Target + ?Sized), number: u32) -> Result<()> {
        let edit = |document: &mut Map<String, Value>, metadata: &Metadata| {
            activate::requirements(&metadata.config.requirements)?;
            tokens(document)?.shift_remove(&number.to_string()).ok_or_else(|| no_token(number))?;
            Ok(())
        };
        self.update(on, edit, |()| Ok(()))
    }

    /// Adds a keyslot to a token's keyslots, or removes it.
    ///
    /// # Errors
    /// `BadOption` when the token or the keyslot does not exist, or when the token does not have
    /// the keyslot to be removed; the other kinds of [`Header::add_token`].
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

/// Returns the token without keyslots, if a header could hold it.
pub(super) fn checked(mut token: Map<String, Value>) -> Result<Map<String, Value>> {
    token.insert("keyslots".into(), Value::Array(vec![]));
    check(&token)?;
    Ok(token)
}

/// Writes a token of a new keyslot into the document. Returns the token's number.
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

/// The metadata, its tokens, and a token are objects in each other.
const TOKEN_DEPTH: usize = 3;

/// Makes cryptsetup's checks of an imported token. Returns the keyslots that it names.
fn check(token: &Map<String, Value>) -> Result<Vec<u32>> {
    let value = Value::Object(token.clone());
    json::json_c_reads(&value, TOKEN_DEPTH).map_err(|why| option(format!("token: {why}")))?;
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
    // The document was parsed, so the member exists.
    tokens.ok_or_else(|| Error::new(ErrorKind::BadHeader, "tokens: not as they were read"))
}

fn no_token(number: u32) -> Error {
    option(format!("there is no token {number}"))
}

fn option(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadOption, why)
}

/// A bad header is a bad argument here.
fn refused(e: Error) -> Error {
    option(e.to_string())
}

#[cfg(test)]
mod tests;
