//! librados and librbd, loaded when the first image is opened. All calls of them are here.
//!
//! The libraries stay loaded until the process ends, because their threads do.

#![expect(unsafe_code, reason = "librbd's C functions, found at run time")]

mod image;
mod lock_calls;
mod notify_reply;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::{Arc, OnceLock};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use rustix::io::Errno;

use super::quiet::BlockedSignals;
use crate::{Error, ErrorKind, Result};

pub(super) use self::image::{Image, ImageRequest};

/// An object of the libraries: a cluster, a pool, an image, a completion.
type Handle = *mut c_void;
/// The callback for the end of a request.
type CompletionFn = unsafe extern "C" fn(Handle, *mut c_void);
/// The callback for a change of the image's header.
type UpdateFn = unsafe extern "C" fn(*mut c_void);
/// The callback before and after a snapshot.
type QuiesceFn = unsafe extern "C" fn(*mut c_void);
/// The callback for each run of stored, or no longer stored, bytes.
type ExtentFn = unsafe extern "C" fn(u64, usize, c_int, *mut c_void) -> c_int;

/// `rbd_image_watcher_t`: a client that has an image open.
#[repr(C)]
#[derive(Clone, Copy)]
struct Watcher {
    address: *mut c_char,
    id: i64,
    cookie: u64,
}

/// `rbd_config_option_t`: the value of an option for an image.
#[repr(C)]
struct Setting {
    name: *const c_char,
    value: *const c_char,
    /// The level that set the option.
    _source: c_int,
}

macro_rules! calls {
    ($($name:ident($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions in use, as their headers declare them.
        struct Calls {
            $($name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Calls {
            /// # Safety
            /// The libraries are librados and librbd.
            unsafe fn find(rados: &Library, rbd: &Library) -> std::result::Result<Self, libloading::Error> {
                Ok(Self {
                    $($name: {
                        let name = stringify!($name);
                        let library = if name.starts_with("rados_") { rados } else { rbd };
                        // SAFETY: the caller's promise; the libraries have kept these declarations
                        // since Ceph 16.
                        unsafe { *library.get(name.as_bytes())? }
                    },)*
                })
            }
        }
    };
}

calls! {
    rados_create(*mut Handle, *const c_char) -> c_int;
    rados_conf_read_file(Handle, *const c_char) -> c_int;
    rados_conf_parse_env(Handle, *const c_char) -> c_int;
    rados_conf_get(Handle, *const c_char, *mut c_char, usize) -> c_int;
    rados_conf_set(Handle, *const c_char, *const c_char) -> c_int;
    rados_connect(Handle) -> c_int;
    rados_shutdown(Handle) -> ();
    rados_get_instance_id(Handle) -> u64;
    rados_notify2(Handle, *const c_char, *const c_char, c_int, u64, *mut *mut c_char, *mut usize) -> c_int;
    rados_buffer_free(*mut c_char) -> ();
    rados_mon_command(
        Handle, *mut *const c_char, usize, *const c_char, usize, *mut *mut c_char, *mut usize, *mut *mut c_char, *mut usize
    ) -> c_int;
    rados_ioctx_create(Handle, *const c_char, *mut Handle) -> c_int;
    rados_ioctx_set_namespace(Handle, *const c_char) -> ();
    rados_ioctx_destroy(Handle) -> ();
    rbd_open(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
    rbd_open_read_only(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
    rbd_close(Handle) -> c_int;
    rbd_get_size(Handle, *mut u64) -> c_int;
    rbd_get_features(Handle, *mut u64) -> c_int;
    rbd_get_flags(Handle, *mut u64) -> c_int;
    rbd_get_id(Handle, *mut c_char, usize) -> c_int;
    rbd_lock_acquire(Handle, c_int) -> c_int;
    rbd_lock_get_owners(Handle, *mut c_int, *mut *mut c_char, *mut usize) -> c_int;
    rbd_lock_get_owners_cleanup(*mut *mut c_char, usize) -> ();
    rbd_lock_break(Handle, c_int, *const c_char) -> c_int;
    rbd_list_lockers(
        Handle, *mut c_int, *mut c_char, *mut usize, *mut c_char, *mut usize, *mut c_char, *mut usize, *mut c_char, *mut usize
    ) -> isize;
    rbd_watchers_list(Handle, *mut Watcher, *mut usize) -> c_int;
    rbd_watchers_list_cleanup(*mut Watcher, usize) -> ();
    rbd_update_watch(Handle, *mut u64, UpdateFn, *mut c_void) -> c_int;
    rbd_update_unwatch(Handle, u64) -> c_int;
    rbd_quiesce_watch(Handle, QuiesceFn, QuiesceFn, *mut c_void, *mut u64) -> c_int;
    rbd_quiesce_complete(Handle, u64, c_int) -> ();
    rbd_quiesce_unwatch(Handle, u64) -> c_int;
    rbd_config_image_list(Handle, *mut Setting, *mut c_int) -> c_int;
    rbd_config_image_list_cleanup(*mut Setting, c_int) -> ();
    rbd_diff_iterate2(Handle, *const c_char, u64, u64, u8, u8, ExtentFn, *mut c_void) -> c_int;
    rbd_aio_create_completion(*mut c_void, CompletionFn, *mut Handle) -> c_int;
    rbd_aio_get_return_value(Handle) -> isize;
    rbd_aio_release(Handle) -> ();
    rbd_aio_read(Handle, u64, usize, *mut c_char, Handle) -> c_int;
    rbd_aio_write(Handle, u64, usize, *const c_char, Handle) -> c_int;
    rbd_aio_flush(Handle, Handle) -> c_int;
    rbd_aio_discard(Handle, u64, u64, Handle) -> c_int;
    rbd_aio_write_zeroes(Handle, u64, usize, Handle, c_int, c_int) -> c_int;
}

/// `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`: space stays allocated.
const THICK: c_int = 1;
/// `RBD_LOCK_MODE_EXCLUSIVE`.
const EXCLUSIVE: c_int = 0;

/// Returns the libraries' functions, or `Open` with the package's name where the libraries are
/// missing.
fn calls() -> Result<&'static Calls> {
    static CALLS: OnceLock<std::result::Result<Calls, String>> = OnceLock::new();
    let loaded = CALLS.get_or_init(|| {
        let _quiet = BlockedSignals::begin();
        let load = |name: &str| {
            // SAFETY: the administrator who installed a library answers for its initialisers;
            // Ceph's set up their own data.
            unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) }
        };
        let (rados, rbd) = load("librados.so.2")
            .and_then(|rados| Ok((rados, load("librbd.so.1")?)))
            .map_err(|e| e.to_string())?;
        // SAFETY: these are the two libraries.
        let calls = unsafe { Calls::find(&rados, &rbd) }.map_err(|e| e.to_string());
        // The libraries are never unloaded.
        std::mem::forget((rados, rbd));
        calls
    });
    loaded.as_ref().map_err(|why| {
        let what =
            "images on Ceph need its library librbd.so.1, of Ceph 16 or later: install the package librbd1";
        Error::new(ErrorKind::Open, what).with_source(std::io::Error::other(why.clone()))
    })
}

/// The result of a call: a number, or the system's error number.
fn answer(result: impl Into<i64>) -> std::result::Result<u64, Errno> {
    let result = result.into();
    u64::try_from(result).map_err(|_| errno(result))
}

/// The error number of a negative result.
pub(super) fn errno(result: i64) -> Errno {
    i32::try_from(result.saturating_neg()).map_or(Errno::IO, Errno::from_raw_os_error)
}

/// A connection to a cluster.
pub(super) struct Cluster {
    calls: &'static Calls,
    handle: Handle,
}

impl Cluster {
    /// Makes an unconnected cluster. Returns `Open` where the libraries are missing, or have no
    /// memory.
    pub(super) fn new(id: Option<&CStr>) -> Result<Self> {
        let calls = calls()?;
        let mut handle = ptr::null_mut();
        let _quiet = BlockedSignals::begin();
        // SAFETY: the call writes the handle; a null pointer means the default name.
        let made = unsafe { (calls.rados_create)(&raw mut handle, id.map_or(ptr::null(), CStr::as_ptr)) };
        answer(made)
            .map_err(|e| Error::new(ErrorKind::Open, "the cluster's library cannot begin").with_source(e))?;
        Ok(Self { calls, handle })
    }

    /// Reads a configuration file; `None`: the library's default one.
    pub(super) fn read_file(&self, path: Option<&CStr>) -> std::result::Result<(), Errno> {
        // SAFETY: the handle is open; a null pointer means the default places.
        answer(unsafe {
            (self.calls.rados_conf_read_file)(self.handle, path.map_or(ptr::null(), CStr::as_ptr))
        })
        .map(drop)
    }

    /// Reads `CEPH_ARGS`.
    pub(super) fn read_environment(&self) -> std::result::Result<(), Errno> {
        // SAFETY: the handle is open; a null pointer means the default variable.
        answer(unsafe { (self.calls.rados_conf_parse_env)(self.handle, ptr::null()) }).map(drop)
    }

    pub(super) fn set(&self, option: &CStr, value: &CStr) -> std::result::Result<(), Errno> {
        // SAFETY: the handle is open, and both strings are only read.
        answer(unsafe { (self.calls.rados_conf_set)(self.handle, option.as_ptr(), value.as_ptr()) }).map(drop)
    }

    pub(super) fn get(&self, option: &CStr) -> Option<String> {
        let mut value = [0_u8; 256];
        // SAFETY: the call writes at most the buffer's length, with a zero at the end.
        let got = unsafe {
            (self.calls.rados_conf_get)(self.handle, option.as_ptr(), value.as_mut_ptr().cast(), value.len())
        };
        answer(got).ok()?;
        Some(CStr::from_bytes_until_nul(&value).ok()?.to_str().ok()?.to_owned())
    }

    pub(super) fn connect(&self) -> std::result::Result<(), Errno> {
        let _quiet = BlockedSignals::begin();
        // SAFETY: the handle is open, and this is called once.
        answer(unsafe { (self.calls.rados_connect)(self.handle) }).map(drop)
    }

    /// Opens a pool, or a namespace in one.
    pub(super) fn pool(self, name: &CStr, namespace: Option<&CStr>) -> std::result::Result<Pool, Errno> {
        let mut handle = ptr::null_mut();
        // SAFETY: the cluster is connected; the call writes the handle.
        answer(unsafe { (self.calls.rados_ioctx_create)(self.handle, name.as_ptr(), &raw mut handle) })?;
        if let Some(namespace) = namespace {
            // SAFETY: the handle was just made; the call copies the string.
            unsafe { (self.calls.rados_ioctx_set_namespace)(handle, namespace.as_ptr()) };
        }
        Ok(Pool { handle, cluster: self })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: no object of the cluster is open any more: each one owns the cluster.
        unsafe { (self.calls.rados_shutdown)(self.handle) };
    }
}

/// A pool of a cluster.
pub(super) struct Pool {
    handle: Handle,
    cluster: Cluster,
}

impl Pool {
    /// Opens an image.
    pub(super) fn image(
        self,
        name: &CStr,
        snapshot: Option<&CStr>,
        read_only: bool,
    ) -> std::result::Result<Image, Errno> {
        let calls = self.cluster.calls;
        let open = if read_only { calls.rbd_open_read_only } else { calls.rbd_open };
        let mut handle = ptr::null_mut();
        let _quiet = BlockedSignals::begin();
        // SAFETY: the pool is open; the call writes the handle; a null pointer means no snapshot.
        answer(unsafe {
            open(self.handle, name.as_ptr(), &raw mut handle, snapshot.map_or(ptr::null(), CStr::as_ptr))
        })?;
        Ok(Image { handle, calls, watch: None, changes: Arc::default(), asked: None, pool: self })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: no image in it is open any more.
        unsafe { (self.cluster.calls.rados_ioctx_destroy)(self.handle) };
    }
}
