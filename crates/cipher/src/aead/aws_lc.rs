//! ChaCha20-Poly1305 of AWS-LC: one pass over the data, encrypting and hashing, in vector code.

use std::ptr;

use aws_lc_sys as lc;
use cipher::inout::InOutBuf;

use super::SectorAead;
use crate::{Error, ErrorKind, Locked, Result};

/// A keyed AEAD of the library, all of it on locked pages.
pub(crate) struct AwsLc(Locked<Context>);

struct Context(lc::EVP_AEAD_CTX);

// SAFETY: the library lets one context be used from many threads at once (aead.h), and holds no
// thread's state in it.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: zeroed or initialised, both of which the library cleans up.
        unsafe { lc::EVP_AEAD_CTX_cleanup(&raw mut self.0) }
    }
}

impl AwsLc {
    /// ChaCha20-Poly1305 with tags of `tag` bytes. Returns `KeySize` for another key, and `Memory`
    /// without locked pages.
    pub(crate) fn chacha(key: &[u8], tag: usize) -> Result<Self> {
        // SAFETY: the call returns the library's constant.
        Self::new(unsafe { lc::EVP_aead_chacha20_poly1305() }, key, tag)
    }

    fn new(aead: *const lc::EVP_AEAD, key: &[u8], tag: usize) -> Result<Self> {
        // SAFETY: a plain structure of the library, for which zeros are a value.
        let mut context = Locked::new(Context(unsafe { std::mem::zeroed() }))?;
        // SAFETY: the context is writable and stays where it is; the key is readable for its
        // length.
        let done = unsafe {
            lc::EVP_AEAD_CTX_init(&raw mut context.0, aead, key.as_ptr(), key.len(), tag, ptr::null_mut())
        };
        if done == 1 {
            return Ok(Self(context));
        }
        forget_errors();
        let context = format!("the library takes no key of {} bytes with tags of {tag}", key.len());
        Err(Error::new(ErrorKind::KeySize, context))
    }
}

/// Clears the library's errors, which queue up in each thread and are never read here.
fn forget_errors() {
    // SAFETY: touches the thread's own queue.
    unsafe { lc::ERR_clear_error() }
}

impl SectorAead for AwsLc {
    fn seal(&self, nonce: &[u8; 12], associated: &[u8], data: InOutBuf<'_, '_, u8>, tag: &mut [u8]) {
        let (len, mut written) = (data.len(), 0);
        let (from, to) = data.into_raw();
        // SAFETY: every pointer goes with its length; source and destination are one buffer or
        // apart, and the tag is apart.
        let done = unsafe {
            lc::EVP_AEAD_CTX_seal_scatter(
                &raw const self.0.0,
                to,
                tag.as_mut_ptr(),
                &raw mut written,
                tag.len(),
                nonce.as_ptr(),
                nonce.len(),
                from,
                len,
                ptr::null(),
                0,
                associated.as_ptr(),
                associated.len(),
            )
        };
        // The library can refuse lengths only, and these are a sector's.
        assert!(done == 1 && written == tag.len(), "AWS-LC seals a sector");
    }

    fn open(&self, nonce: &[u8; 12], associated: &[u8], data: InOutBuf<'_, '_, u8>, tag: &[u8]) -> bool {
        let len = data.len();
        let (from, to) = data.into_raw();
        // SAFETY: as in `seal`.
        let done = unsafe {
            lc::EVP_AEAD_CTX_open_gather(
                &raw const self.0.0,
                to,
                nonce.as_ptr(),
                nonce.len(),
                from,
                len,
                tag.as_ptr(),
                tag.len(),
                associated.as_ptr(),
                associated.len(),
            )
        };
        if done != 1 {
            // The library has overwritten the destination with zeros.
            forget_errors();
        }
        done == 1
    }
}
