//! libgcrypt, which implements Twofish, Serpent, Camellia and SM4 with modes; loaded at run time,
//! so that the build does not need it.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::LazyLock;

use libloading::Library;

static LIBRARY: LazyLock<Library> = LazyLock::new(|| {
    // SAFETY: the library's initialisers only register themselves.
    let library = unsafe { Library::new("libgcrypt.so.20") };
    let library = library.unwrap_or_else(|e| panic!("this test needs the package libgcrypt20: {e}"));
    // SAFETY: the function has this signature; the call initialises the library, once.
    unsafe {
        let check: libloading::Symbol<'_, extern "C" fn(*const c_char) -> *const c_char> =
            library.get(b"gcry_check_version\0").unwrap();
        assert!(!check(std::ptr::null()).is_null());
    }
    library
});

type Function<F> = libloading::Symbol<'static, F>;

fn function<F>(name: &str) -> Function<F> {
    // SAFETY: every use below names the signature of gcrypt.h.
    unsafe { LIBRARY.get(name.as_bytes()).unwrap() }
}

/// libgcrypt's numbers of modes.
pub(crate) const ECB: c_int = 1;
pub(crate) const CBC: c_int = 3;
pub(crate) const CTR: c_int = 6;
pub(crate) const XTS: c_int = 13;

/// A keyed cipher in a mode.
pub(crate) struct Gcrypt {
    handle: *mut c_void,
    mode: c_int,
}

impl Gcrypt {
    /// Finds the cipher by its name in dm-crypt; `None` for unsupported ciphers and key sizes.
    pub(crate) fn new(cipher: &str, mode: c_int, key: &[u8]) -> Option<Self> {
        let algorithm = match (cipher, key.len() / if mode == XTS { 2 } else { 1 }) {
            ("twofish", 16) => 303,
            ("twofish", 32) => 10,
            ("serpent", 16) => 304,
            ("serpent", 24) => 305,
            ("serpent", 32) => 306,
            ("camellia", 16) => 310,
            ("camellia", 24) => 311,
            ("camellia", 32) => 312,
            ("sm4", 16) => 318,
            _ => return None,
        };
        let open: Function<extern "C" fn(*mut *mut c_void, c_int, c_int, c_uint) -> c_uint> =
            function("gcry_cipher_open\0");
        let set_key: Function<extern "C" fn(*mut c_void, *const u8, usize) -> c_uint> =
            function("gcry_cipher_setkey\0");
        let mut handle = std::ptr::null_mut();
        assert_eq!(open(&raw mut handle, algorithm, mode, 0), 0);
        assert_eq!(set_key(handle, key.as_ptr(), key.len()), 0);
        Some(Self { handle, mode })
    }

    /// Encrypts a sector.
    pub(crate) fn sector(&self, iv: &[u8; 16], data: &[u8]) -> Vec<u8> {
        let set_iv: Function<extern "C" fn(*mut c_void, *const u8, usize) -> c_uint> =
            function(if self.mode == CTR { "gcry_cipher_setctr\0" } else { "gcry_cipher_setiv\0" });
        let encrypt: Function<extern "C" fn(*mut c_void, *mut u8, usize, *const u8, usize) -> c_uint> =
            function("gcry_cipher_encrypt\0");
        let mut out = vec![0; data.len()];
        if self.mode != ECB {
            assert_eq!(set_iv(self.handle, iv.as_ptr(), iv.len()), 0);
        }
        assert_eq!(encrypt(self.handle, out.as_mut_ptr(), out.len(), data.as_ptr(), data.len()), 0);
        out
    }
}

impl Drop for Gcrypt {
    fn drop(&mut self) {
        let close: Function<extern "C" fn(*mut c_void)> = function("gcry_cipher_close\0");
        close(self.handle);
    }
}
