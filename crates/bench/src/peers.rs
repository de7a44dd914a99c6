//! Other libraries, used like their users must: one sector a call, one context for each key and
//! direction.

#![cfg_attr(
    any(feature = "aws-lc", feature = "openssl", feature = "libgcrypt"),
    expect(unsafe_code, reason = "other libraries' C functions")
)]

/// One sector, in place.
type OneSector = Box<dyn FnMut(&[u8; 16], &mut [u8])>;

/// A way to run a cipher over one sector, in place, with its IV.
pub(crate) struct CipherPeer {
    pub(crate) name: String,
    /// The call takes the IV, the sector and [`SLACK`] bytes behind it.
    pub(crate) sector: OneSector,
}

/// The task of the peers.
#[derive(Clone, Copy)]
#[cfg_attr(
    not(any(feature = "aws-lc", feature = "openssl", feature = "libgcrypt")),
    expect(dead_code, reason = "no peer to read it")
)]
pub(crate) struct PeerTask<'a> {
    /// The cipher, by dm-crypt's name.
    pub(crate) cipher: &'a str,
    /// `xts` or `cbc`; CBC's IVs are encrypted by the peer too, under `salt`.
    pub(crate) chain: &'a str,
    pub(crate) key: &'a [u8],
    pub(crate) encrypt: bool,
    /// ESSIV's key.
    #[cfg_attr(
        not(any(feature = "aws-lc", feature = "openssl")),
        allow(dead_code, reason = "libgcrypt is asked for XTS only")
    )]
    pub(crate) salt: &'a [u8],
}

/// All peers of this build that have the cipher.
pub(crate) fn all(task: PeerTask<'_>) -> Vec<CipherPeer> {
    let peers: &[fn(PeerTask<'_>) -> Option<CipherPeer>] = &[
        #[cfg(feature = "aws-lc")]
        aws_lc::peer,
        #[cfg(feature = "openssl")]
        openssl::peer,
        #[cfg(feature = "libgcrypt")]
        libgcrypt::peer,
    ];
    peers.iter().filter_map(|peer| peer(task)).collect()
}

#[cfg(feature = "aws-lc")]
mod aws_lc {
    use std::ffi::CStr;
    use std::ptr;

    use aws_lc_sys as lc;

    use super::{CipherPeer, PeerTask};

    /// An EVP context that stays keyed.
    struct Context(*mut lc::EVP_CIPHER_CTX);

    impl Context {
        fn new(cipher: *const lc::EVP_CIPHER, key: &[u8], encrypt: bool) -> Self {
            // SAFETY: the cipher takes keys of this length; the context is checked and freed on
            // drop.
            unsafe {
                assert_eq!(lc::EVP_CIPHER_key_length(cipher) as usize, key.len());
                let ctx = lc::EVP_CIPHER_CTX_new();
                let done = lc::EVP_CipherInit_ex(
                    ctx,
                    cipher,
                    ptr::null_mut(),
                    key.as_ptr(),
                    ptr::null(),
                    i32::from(encrypt),
                );
                assert_eq!(done, 1, "AWS-LC takes the key");
                lc::EVP_CIPHER_CTX_set_padding(ctx, 0);
                Self(ctx)
            }
        }

        fn update(&mut self, iv: Option<&[u8; 16]>, data: &mut [u8]) {
            let mut written = 0;
            let len = i32::try_from(data.len()).unwrap_or(0);
            // SAFETY: input and output are `data`, whole blocks without padding; the IV has the
            // cipher's length.
            unsafe {
                if let Some(iv) = iv {
                    lc::EVP_CipherInit_ex(self.0, ptr::null(), ptr::null_mut(), ptr::null(), iv.as_ptr(), -1);
                }
                lc::EVP_CipherUpdate(self.0, data.as_mut_ptr(), &mut written, data.as_ptr(), len);
            }
            debug_assert_eq!(written, len);
        }
    }

    impl Drop for Context {
        fn drop(&mut self) {
            // SAFETY: made in `new`, freed once.
            unsafe { lc::EVP_CIPHER_CTX_free(self.0) }
        }
    }

    pub(super) fn peer(task: PeerTask<'_>) -> Option<CipherPeer> {
        // SAFETY: getters of statics and of a static string.
        let (cipher, ecb, version) = unsafe {
            let cipher = match (task.cipher, task.chain, task.key.len()) {
                ("aes", "xts", 64) => lc::EVP_aes_256_xts(),
                ("aes", "cbc", 16) => lc::EVP_aes_128_cbc(),
                ("aes", "cbc", 32) => lc::EVP_aes_256_cbc(),
                _ => return None,
            };
            (cipher, lc::EVP_aes_256_ecb(), CStr::from_ptr(lc::OpenSSL_version(0)))
        };
        let mut data = Context::new(cipher, task.key, task.encrypt);
        let mut salted = (task.chain == "cbc").then(|| Context::new(ecb, task.salt, true));
        Some(CipherPeer {
            name: version.to_string_lossy().to_lowercase(),
            sector: Box::new(move |iv, sector| {
                let mut iv = *iv;
                if let Some(salted) = &mut salted {
                    salted.update(None, &mut iv);
                }
                let len = sector.len() - super::SLACK;
                data.update(Some(&iv), &mut sector[..len]);
            }),
        })
    }
}

#[cfg(feature = "openssl")]
mod openssl {
    use ::openssl::cipher::{Cipher, CipherRef};
    use ::openssl::cipher_ctx::CipherCtx;

    use super::{CipherPeer, PeerTask};

    fn context(cipher: &CipherRef, key: &[u8], encrypt: bool) -> Option<CipherCtx> {
        let mut ctx = CipherCtx::new().ok()?;
        if encrypt {
            ctx.encrypt_init(Some(cipher), Some(key), None).ok()?;
        } else {
            ctx.decrypt_init(Some(cipher), Some(key), None).ok()?;
        }
        ctx.set_padding(false);
        Some(ctx)
    }

    pub(super) fn peer(task: PeerTask<'_>) -> Option<CipherPeer> {
        let cipher = match (task.cipher, task.chain, task.key.len()) {
            ("aes", "xts", 32) => Cipher::aes_128_xts(),
            ("aes", "xts", 64) => Cipher::aes_256_xts(),
            ("aes", "cbc", 16) => Cipher::aes_128_cbc(),
            ("aes", "cbc", 32) => Cipher::aes_256_cbc(),
            _ => return None,
        };
        let encrypt = task.encrypt;
        let mut data = context(cipher, task.key, encrypt)?;
        let mut salted = match task.chain {
            "cbc" => Some(context(Cipher::aes_256_ecb(), task.salt, true)?),
            _ => None,
        };
        let version = ::openssl::version::version();
        Some(CipherPeer {
            name: version.split(' ').take(2).collect::<Vec<_>>().join(" ").to_lowercase(),
            sector: Box::new(move |iv, sector| {
                let mut block = [0; 32];
                block[..16].copy_from_slice(iv);
                let done = salted.as_mut().map_or(Ok(0), |ctx| ctx.cipher_update_inplace(&mut block, 16));
                let iv = Some(&block[..16]);
                let done = done.and_then(|_| {
                    if encrypt {
                        data.encrypt_init(None, None, iv)
                    } else {
                        data.decrypt_init(None, None, iv)
                    }
                });
                let len = sector.len() - super::SLACK;
                let done = done.and_then(|()| data.cipher_update_inplace(sector, len));
                debug_assert_eq!(done.ok(), Some(len));
            }),
        })
    }
}

#[cfg(feature = "libgcrypt")]
mod libgcrypt {
    use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
    use std::ptr;
    use std::sync::LazyLock;

    use libloading::Library;

    use super::{CipherPeer, PeerTask};

    type Crypt = unsafe extern "C" fn(*mut c_void, *mut u8, usize, *const u8, usize) -> c_uint;
    type SetBytes = unsafe extern "C" fn(*mut c_void, *const u8, usize) -> c_uint;

    /// The system's libgcrypt and its version; `None` when the system has none.
    static LIBRARY: LazyLock<Option<(Library, String)>> = LazyLock::new(|| {
        // SAFETY: loading the library does no more than register it.
        let library = unsafe { Library::new("libgcrypt.so.20") }.ok()?;
        // SAFETY: the function's signature in gcrypt.h; it returns a static string, or null.
        let version = unsafe {
            let check =
                library.get::<unsafe extern "C" fn(*const c_char) -> *const c_char>(b"gcry_check_version\0");
            let version = check.ok()?(ptr::null());
            (!version.is_null()).then(|| CStr::from_ptr(version).to_string_lossy().into_owned())?
        };
        Some((library, version))
    });

    const XTS: c_int = 13;

    /// A keyed cipher.
    struct Handle(*mut c_void, unsafe extern "C" fn(*mut c_void));

    impl Drop for Handle {
        fn drop(&mut self) {
            // SAFETY: opened once, closed once.
            unsafe { (self.1)(self.0) }
        }
    }

    pub(super) fn peer(task: PeerTask<'_>) -> Option<CipherPeer> {
        let algorithm: c_int = match (task.cipher, task.chain, task.key.len()) {
            ("aes", "xts", 32) => 7,
            ("aes", "xts", 64) => 9,
            ("twofish", "xts", 32) => 303,
            ("twofish", "xts", 64) => 10,
            ("serpent", "xts", 64) => 306,
            ("camellia", "xts", 64) => 312,
            ("sm4", "xts", 32) => 318,
            _ => return None,
        };
        let (library, version) = LIBRARY.as_ref()?;
        // SAFETY: the functions' signatures in gcrypt.h; the handle is checked.
        unsafe {
            let open = library.get::<unsafe extern "C" fn(*mut *mut c_void, c_int, c_int, c_uint) -> c_uint>(
                b"gcry_cipher_open\0",
            );
            let close = library.get::<unsafe extern "C" fn(*mut c_void)>(b"gcry_cipher_close\0").ok()?;
            let set_key = library.get::<SetBytes>(b"gcry_cipher_setkey\0").ok()?;
            let set_iv = *library.get::<SetBytes>(b"gcry_cipher_setiv\0").ok()?;
            let name: &[u8] = if task.encrypt { b"gcry_cipher_encrypt\0" } else { b"gcry_cipher_decrypt\0" };
            let crypt = *library.get::<Crypt>(name).ok()?;
            let mut handle = ptr::null_mut();
            if open.ok()?(&raw mut handle, algorithm, XTS, 0) != 0 {
                return None;
            }
            let handle = Handle(handle, *close);
            if set_key(handle.0, task.key.as_ptr(), task.key.len()) != 0 {
                return None;
            }
            Some(CipherPeer {
                name: format!("libgcrypt {version}"),
                sector: Box::new(move |iv, sector| {
                    let handle = &handle;
                    let len = sector.len() - super::SLACK;
                    set_iv(handle.0, iv.as_ptr(), iv.len());
                    let done = crypt(handle.0, sector.as_mut_ptr(), len, ptr::null(), 0);
                    debug_assert_eq!(done, 0);
                }),
            })
        }
    }
}

/// The number of bytes behind each sector that a peer may require without using them.
pub(crate) const SLACK: usize = 16;
