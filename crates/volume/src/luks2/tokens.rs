//! The tokens that are asked for a passphrase, and their order.

use std::cmp::Reverse;

use crate::luks2::Header;
use crate::{Error, ErrorKind, Result};

/// Limits on the choice of tokens.
#[derive(Debug, Clone, Copy, Default)]
pub struct TokenChoice<'c> {
    /// Only this token.
    pub token: Option<u32>,
    /// Only tokens of this type.
    pub kind: Option<&'c str>,
    /// Only tokens that open this keyslot, and only this keyslot.
    pub slot: Option<u32>,
}

/// A token that may supply a passphrase, and the keyslots to try it on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenToTry {
    /// The token's number.
    pub number: u32,
    /// The token's type.
    pub kind: String,
    /// The keyslots, preferred keyslots first.
    pub keyslots: Vec<u32>,
}

impl Header {
    /// Returns the tokens of keyslots that hold the data's key: tokens of preferred keyslots first,
    /// then by number. A keyslot with the priority `ignore` is left out, unless the choice names
    /// the keyslot or the token.
    ///
    /// # Errors
    /// `BadOption` when the named token does not exist.
    pub fn tokens_to_try(&self, choice: TokenChoice<'_>) -> Result<Vec<TokenToTry>> {
        let metadata = &self.stored.metadata;
        if let Some(number) = choice.token.filter(|number| !metadata.tokens.contains_key(number)) {
            return Err(Error::new(ErrorKind::BadOption, format!("there is no token {number}")));
        }
        let least = u32::from(choice.token.is_none() && choice.slot.is_none());
        let mut found = Vec::new();
        for (&number, token) in &metadata.tokens {
            let wanted = choice.token.is_none_or(|token| token == number)
                && choice.kind.is_none_or(|kind| kind == token.kind);
            if !wanted {
                continue;
            }
            let priority = |slot: &u32| metadata.keyslots[slot].priority;
            let usable = |slot: &u32| {
                choice.slot.is_none_or(|chosen| chosen == *slot)
                    && priority(slot) >= least
                    && super::keyslot::opens_data(metadata, *slot)
            };
            let mut keyslots: Vec<u32> = token.keyslots.iter().copied().filter(usable).collect();
            keyslots.sort_by_key(|slot| Reverse(priority(slot)));
            if let Some(first) = keyslots.first() {
                found.push((
                    Reverse(priority(first)),
                    TokenToTry { number, kind: token.kind.clone(), keyslots },
                ));
            }
        }
        found.sort_by_key(|(priority, _)| *priority);
        Ok(found.into_iter().map(|(_, token)| token).collect())
    }
}
