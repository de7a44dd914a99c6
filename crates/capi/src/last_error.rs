//! The text of a handle's last failure. It has no lock: another thread of the program might hold
//! that at a fork, and the child would wait for ever.

#![expect(unsafe_code, reason = "the C interface")]

use std::ffi::{CString, c_char};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Texts of [`CString::into_raw`], each owned by the pointer that it is in; null for none.
#[derive(Default)]
pub(crate) struct LastError {
    /// Set by the last failure, and not shown yet.
    new: AtomicPtr<c_char>,
    /// Handed out; it stays until the next call that finds a newer one.
    shown: AtomicPtr<c_char>,
}

impl LastError {
    pub(crate) fn set(&self, text: &str) {
        let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
        replace(&self.new, text.into_raw());
    }

    /// Returns the last text. Texts that were returned before may be gone: one thread at a time
    /// calls this function.
    pub(crate) fn show(&self) -> *const c_char {
        let new = self.new.swap(ptr::null_mut(), Ordering::AcqRel);
        if !new.is_null() {
            replace(&self.shown, new);
        }
        let shown = self.shown.load(Ordering::Acquire);
        if shown.is_null() { c"".as_ptr() } else { shown }
    }
}

impl Drop for LastError {
    fn drop(&mut self) {
        replace(&self.new, ptr::null_mut());
        replace(&self.shown, ptr::null_mut());
    }
}

/// Puts a text into the place of another one, which is freed.
fn replace(place: &AtomicPtr<c_char>, text: *mut c_char) {
    let old = place.swap(text, Ordering::AcqRel);
    if !old.is_null() {
        // SAFETY: the pointer came from into_raw, and the swap has made it this call's alone.
        drop(unsafe { CString::from_raw(old) });
    }
}
