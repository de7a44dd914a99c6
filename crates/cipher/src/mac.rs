//! Message authentication codes over many sectors in one call.
//!
//! ```text
//!   hmac_sha256    pad states made once; sectors side by side in vector lanes, else one by one
//!   hmac           HMAC of any other hash, from its library
//!   cmac           CBC chains of sectors side by side
//!   blocks         hmac_sha256 of numbered blocks, for the integrity layer
//! ```

mod blocks;
mod cmac;
mod hmac;
mod hmac_sha256;

pub use blocks::BlockHmac;
pub(crate) use cmac::Cmac;
pub(crate) use hmac::library;
pub(crate) use hmac_sha256::{HmacSha256, last_block};

use crate::aead::Associated;
use crate::block::{AnyCipher, BlockCipher, xor};

/// A MAC; a shorter one leaves the rest unchanged.
pub(crate) type MacBytes = [u8; 64];

pub(crate) const NO_SUM: MacBytes = [0; 64];

/// A message for each sector: a head, then the sector.
pub(crate) struct Messages<'a> {
    pub(crate) heads: &'a [Associated],
    /// Bytes in each head.
    pub(crate) head: usize,
    /// The sectors, of one size, as many as heads.
    pub(crate) data: &'a [u8],
}

impl<'a> Messages<'a> {
    fn count(&self) -> usize {
        self.heads.len()
    }

    /// Bytes in each sector.
    fn bytes(&self) -> usize {
        self.data.len() / self.heads.len()
    }

    /// Returns a message's head and sector.
    fn get(&self, nth: usize) -> (&'a [u8], &'a [u8]) {
        (self.heads[nth].first(self.head), &self.data[nth * self.bytes()..][..self.bytes()])
    }
}

/// A keyed MAC.
pub(crate) trait Mac: Send + Sync {
    /// Writes the MACs of the messages to the first bytes of `sums`.
    fn sums(&self, messages: &Messages<'_>, sums: &mut [MacBytes]);
}

/// Any MAC.
pub(crate) type AnyMac = Box<dyn Mac>;

/// A step of CBC-MAC, for as many chains as there are states.
pub(crate) fn chain(cipher: &AnyCipher<16>, states: &mut [[u8; 16]], block: impl Fn(usize) -> [u8; 16]) {
    for (nth, state) in states.iter_mut().enumerate() {
        *state = xor(state, &block(nth));
    }
    cipher.encrypt_untidied(states);
}
