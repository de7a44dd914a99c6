//! HMAC (RFC 2104) of a library's hash, one sector at a time from the states of its pads.

use hmac::digest::FixedOutput;
use hmac::digest::block_api::EagerHash;
use hmac::{Hmac, KeyInit, Mac as _};

use super::{AnyMac, Mac, MacBytes, Messages};
use crate::{Error, ErrorKind, Locked, Result};

struct Library<D: EagerHash>(Locked<Hmac<D>>);

/// Keys the HMAC of a hash. Returns `Memory` when its states cannot be placed on locked pages.
pub(crate) fn library<D>(key: &[u8]) -> Result<AnyMac>
where
    D: EagerHash + 'static,
    Hmac<D>: Send + Sync,
{
    // HMAC keys may have any length.
    let keyed = Hmac::<D>::new_from_slice(key)
        .map_err(|e| Error::new(ErrorKind::KeySize, format!("{} bytes of key", key.len())).with_source(e))?;
    Ok(Box::new(Library(Locked::new(keyed)?)))
}

impl<D> Mac for Library<D>
where
    D: EagerHash,
    Hmac<D>: Send + Sync,
{
    fn sums(&self, messages: &Messages<'_>, sums: &mut [MacBytes]) {
        for (nth, sum) in sums.iter_mut().enumerate() {
            let (head, sector) = messages.get(nth);
            let mut hmac = (*self.0).clone();
            hmac.update(head);
            hmac.update(sector);
            let digest = hmac.finalize_fixed();
            sum[..digest.len()].copy_from_slice(&digest);
        }
    }
}
