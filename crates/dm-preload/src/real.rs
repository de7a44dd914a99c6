//! The C library's own functions.

use std::ffi::{CStr, c_int};

/// Returns the function of this name behind this library's, or `None` if the C library has none.
///
/// # Safety
/// `F` is a pointer to a function of that function's type.
pub(crate) unsafe fn function<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut ()>()) };
    // SAFETY: the name ends.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        return None;
    }
    // SAFETY: a function of this type, as the caller says, of a pointer's size.
    Some(unsafe { std::mem::transmute_copy(&found) })
}

/// Returns the function of this name in a library that is loaded privately, as by dlopen(3).
///
/// # Safety
/// `F` is a pointer to a function of that function's type.
pub(crate) unsafe fn function_of<F: Copy>(library: &CStr, name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut ()>()) };
    // SAFETY: the names end. The library stays loaded: another has loaded it.
    unsafe {
        let loaded = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if loaded.is_null() {
            return None;
        }
        let found = libc::dlsym(loaded, name.as_ptr());
        libc::dlclose(loaded);
        (!found.is_null()).then(|| std::mem::transmute_copy(&found))
    }
}

/// Returns a name with its zero.
pub(crate) const fn name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"",
    }
}

/// Fails like the kernel after an unknown call.
pub(crate) fn missing() -> c_int {
    set_errno(libc::ENOSYS);
    -1
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() = errno };
}

pub(crate) fn errno() -> c_int {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() }
}
