//! A token's members, which the author of the header chooses: bounded, and each error names the
//! member.

use base64ct::{Base64, Encoding};
use serde_json::{Map, Value};

use crate::{Error, Result};

/// The length of the longest member for a tool, in bytes.
const MAX: usize = 16 << 10;

/// Reads members of a token.
#[derive(Clone, Copy)]
pub(crate) struct Members<'t>(pub(crate) &'t Map<String, Value>);

impl<'t> Members<'t> {
    pub(crate) fn text(self, name: &str) -> Result<&'t str> {
        self.optional_text(name)?.ok_or_else(|| wrong(name, "is not there"))
    }

    pub(crate) fn optional_text(self, name: &str) -> Result<Option<&'t str>> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) if text.len() <= MAX => Ok(Some(text)),
            Some(Value::String(_)) => Err(wrong(name, "is longer than any that is made")),
            Some(_) => Err(wrong(name, "is no text")),
        }
    }

    pub(crate) fn bytes(self, name: &str) -> Result<Vec<u8>> {
        Base64::decode_vec(self.text(name)?).map_err(|_| wrong(name, "is no base64"))
    }

    pub(crate) fn optional_bytes(self, name: &str) -> Result<Option<Vec<u8>>> {
        self.optional_text(name)?.map(|_| self.bytes(name)).transpose()
    }

    pub(crate) fn flag(self, name: &str, absent: bool) -> Result<bool> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(absent),
            Some(Value::Bool(set)) => Ok(*set),
            Some(_) => Err(wrong(name, "is neither true nor false")),
        }
    }

    /// Returns numbers below 24: PCRs.
    pub(crate) fn pcrs(self, name: &str) -> Result<Vec<u8>> {
        let list = match self.0.get(name) {
            None | Some(Value::Null) => return Ok(Vec::new()),
            Some(list) => list.as_array().ok_or_else(|| wrong(name, "is no list"))?,
        };
        let number = |value: &Value| value.as_u64().and_then(|n| u8::try_from(n).ok()).filter(|&n| n < 24);
        let mut pcrs: Vec<u8> = list
            .iter()
            .map(|value| number(value).ok_or_else(|| wrong(name, "has a member that is no PCR")))
            .collect::<Result<_>>()?;
        pcrs.sort_unstable();
        pcrs.dedup();
        Ok(pcrs)
    }
}

pub(crate) fn wrong(name: &str, why: &str) -> Error {
    Error::unusable(format!("its {name} {why}"))
}
