//! The options for a new keyslot's cipher, of `format` and `keyslot`.

use clap::Args;
use underseal_cipher::CipherSpec;

use crate::error::{Error, Result};

/// The cipher of a keyslot.
#[derive(Debug, Args)]
pub(crate) struct AreaArgs {
    /// LUKS2: the cipher of the keyslot itself; the data's by default, or the replaced keyslot's
    #[arg(long, value_name = "CIPHER")]
    pub(crate) keyslot_cipher: Option<CipherSpec>,
    /// LUKS2: its key's length; that cipher's largest by default
    #[arg(long, value_name = "BITS", requires = "keyslot_cipher")]
    pub(crate) keyslot_key_size: Option<usize>,
}

impl AreaArgs {
    /// Returns the cipher and its key's length in bytes. Fails with `Usage` for bits that are no
    /// whole number of bytes.
    pub(crate) fn cipher(&self) -> Result<Option<(CipherSpec, Option<usize>)>> {
        if self.keyslot_key_size.is_some_and(|bits| !bits.is_multiple_of(8)) {
            return Err(Error::usage("the key's bits are no whole number of bytes"));
        }
        let size = self.keyslot_key_size.map(|bits| bits / 8);
        Ok(self.keyslot_cipher.clone().map(|cipher| (cipher, size)))
    }
}
