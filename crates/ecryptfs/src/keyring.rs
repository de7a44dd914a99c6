//! The keys at hand, found by their signatures.

use std::sync::Arc;

use crate::{AuthToken, Signature};

/// A set of tokens: one for each signature.
#[derive(Debug, Clone, Default)]
pub struct Keyring {
    /// Few: a list is searched as fast as anything else.
    tokens: Vec<Arc<AuthToken>>,
}

impl Keyring {
    /// No key at all.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a token, unless one of its signature is there.
    pub fn add(&mut self, token: impl Into<Arc<AuthToken>>) {
        let token = token.into();
        if self.find(token.signature()).is_none() {
            self.tokens.push(token);
        }
    }

    /// The token of this signature.
    pub fn find(&self, signature: Signature) -> Option<&Arc<AuthToken>> {
        self.tokens.iter().find(|token| token.signature() == signature)
    }

    /// All tokens, in the order in which they came.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<AuthToken>> {
        self.tokens.iter()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

impl From<AuthToken> for Keyring {
    fn from(token: AuthToken) -> Self {
        Self { tokens: vec![Arc::new(token)] }
    }
}
