//! Sectors that are being changed in part: a lock over ranges, for volumes that take blocks smaller than their sectors.
//!
//! Two writes into the same sector, from whatever queues, each read it, change it and write it back: one after the other.
//! Nor is a sector read while it is written, since a block that nobody writes would be decrypted from half of one
//! ciphertext and half of another. Whoever has to wait gets a letter when its turn has come.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use crate::claims::Claims;
use crate::post::{Letter, Post};

pub(crate) struct SectorLocks {
    claims: Mutex<Claims<Claimant>>,
}

/// A queue's request.
#[derive(Clone)]
struct Claimant {
    post: Arc<Post>,
    slot: u32,
}

impl PartialEq for Claimant {
    fn eq(&self, other: &Self) -> bool {
        self.slot == other.slot && Arc::ptr_eq(&self.post, &other.post)
    }
}

impl SectorLocks {
    pub(crate) fn new() -> Self {
        Self { claims: Mutex::new(Claims::new(128)) }
    }

    /// Asks for a range. False: it is not free; a letter comes when it is.
    pub(crate) fn claim(&self, range: Range<u64>, post: &Arc<Post>, slot: u32, shared: bool) -> bool {
        let claimant = Claimant { post: post.clone(), slot };
        self.claims.lock().unwrap_or_else(PoisonError::into_inner).enter(range, claimant, shared)
    }

    /// Gives a range back, or the place in the line for it.
    pub(crate) fn release(&self, post: &Arc<Post>, slot: u32) {
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        let claimant = Claimant { post: post.clone(), slot };
        claims.leave(&claimant, |next| next.post.send(Letter::Granted(next.slot)));
    }
}
