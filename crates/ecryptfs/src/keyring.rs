//! The available keys, found by their signatures.

use std::sync::Arc;

use crate::{AuthToken, Signature};

/// A set of tokens with different signatures.
#[derive(Debug, Clone, Default)]
pub struct Keyring {
    /// A list, since the number of tokens is small.
    tokens: Vec<Arc<AuthToken>>,
}

impl Keyring {
    /// Returns an empty keyring.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a token, unless its signature is present.
    pub fn add(&mut self, token: impl Into<Arc<AuthToken>>) {
        let token = token.into();
        if self.find(token.signature()).is_none() {
            self.tokens.push(token);
        }
    }

    /// Returns the token with this signature.
    pub fn find(&self, signature: Signature) -> Option<&Arc<AuthToken>> {
        self.tokens.iter().find(|token| token.signature() == signature)
    }

    /// Returns all tokens, in the order of their addition.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<AuthToken>> {
        self.tokens.iter()
    }

    /// Returns true for an empty keyring.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

impl From<AuthToken> for Keyring {
    fn from(token: AuthToken) -> Self {
        Self { tokens: vec![Arc::new(token)] }
    }
}
