//! Which tokens are asked for a passphrase, and in which order.

use std::cmp::Reverse;

use crate::luks2::Header;
use crate::{Error, ErrorKind, Result};

/// What narrows the choice of tokens.
#[derive(Debug, Clone, Copy, Default)]
pub struct TokenChoice<'c> {
    /// This one only.
    pub token: Option<u32>,
    /// Those of this type only.
    pub kind: Option<&'c str>,
    /// Those that open this keyslot, and it alone.
    pub slot: Option<u32>,
}

/// A token that may give a passphrase, and the keyslots to try it on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenToTry {
    /// Its number.
    pub number: u32,
    /// Its type.
    pub kind: String,
    /// Preferred ones first.
    pub keyslots: Vec<u32>,
}

impl Header {
    /// The tokens of keyslots that hold the data's key: those of preferred keyslots first, then by
    /// number. A keyslot that says it is to be ignored is left out unless it, or the token, is
    /// named.
    ///
    /// # Errors
    /// `BadOption` when the token that is named is not there.
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
