//! librbd's calls, as a client without an encryption layer uses them: with librbd's encryption, or
//! without.

#![expect(unsafe_code, reason = "librbd's C functions")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;
use std::sync::mpsc;

use libloading::os::unix::Library;
use rustix::io::Errno;

use super::drive::{Drive, NextOffset};
use super::{BenchError, Workload};

type Handle = *mut c_void;
type Over = unsafe extern "C" fn(Handle, *mut c_void);

/// `RBD_ENCRYPTION_FORMAT_LUKS2`, `RBD_ENCRYPTION_ALGORITHM_AES256`.
const LUKS2: c_int = 1;
const AES256: c_int = 1;

/// `rbd_encryption_luks2_format_options_t`.
#[repr(C)]
struct Encryption {
    algorithm: c_int,
    passphrase: *const c_char,
    len: usize,
}

macro_rules! calls {
    ($($name:ident($($argument:ty),*) -> $result:ty;)*) => {
        struct Calls {
            $($name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Calls {
            fn load() -> Result<Self, libloading::Error> {
                // SAFETY: Ceph's libraries set up their own data when they are loaded.
                let (rados, rbd) = unsafe { (Library::new("librados.so.2")?, Library::new("librbd.so.1")?) };
                let this = Self {
                    $($name: {
                        let name = stringify!($name);
                        let library = if name.starts_with("rados_") { &rados } else { &rbd };
                        // SAFETY: the signature of Ceph 16's header, unchanged in later versions.
                        unsafe { *library.get(name.as_bytes())? }
                    },)*
                };
                // The libraries are never unloaded.
                std::mem::forget((rados, rbd));
                Ok(this)
            }
        }
    };
}

calls! {
    rados_create(*mut Handle, *const c_char) -> c_int;
    rados_conf_read_file(Handle, *const c_char) -> c_int;
    rados_conf_set(Handle, *const c_char, *const c_char) -> c_int;
    rados_connect(Handle) -> c_int;
    rados_ioctx_create(Handle, *const c_char, *mut Handle) -> c_int;
    rados_ioctx_destroy(Handle) -> ();
    rados_shutdown(Handle) -> ();
    rbd_open(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
    rbd_close(Handle) -> c_int;
    rbd_encryption_load(Handle, c_int, *mut c_void, usize) -> c_int;
    rbd_aio_create_completion(*mut c_void, Over, *mut Handle) -> c_int;
    rbd_aio_get_return_value(Handle) -> isize;
    rbd_aio_release(Handle) -> ();
    rbd_aio_read(Handle, u64, usize, *mut c_char, Handle) -> c_int;
    rbd_aio_write(Handle, u64, usize, *const c_char, Handle) -> c_int;
}

pub(super) struct Librbd {
    calls: Calls,
    cluster: Handle,
    pool: Handle,
    image: Handle,
}

impl Librbd {
    /// An image by its path, `POOL/IMAGE`; with a passphrase the image is one that librbd has
    /// encrypted.
    pub(super) fn open(
        path: &str,
        conf: Option<&Path>,
        passphrase: Option<&[u8]>,
    ) -> Result<Self, BenchError> {
        let failed = |e: Errno| BenchError::because(format!("librbd cannot open {path}"), e);
        let string = |text: &str| CString::new(text).map_err(|_| failed(Errno::INVAL));
        let (pool, image) = path.split_once('/').ok_or_else(|| failed(Errno::INVAL))?;
        let (pool, image) = (string(pool)?, string(image)?);
        let conf = conf.map(|conf| string(&conf.to_string_lossy())).transpose()?;
        let conf = conf.as_ref().map_or(ptr::null(), |conf| conf.as_ptr());
        let calls =
            Calls::load().map_err(|e| BenchError::because("librbd is not there: install librbd1", e))?;
        let null = ptr::null_mut();
        let mut this = Self { calls, cluster: null, pool: null, image: null };
        let Self { calls, cluster, pool: in_pool, image: opened } = &mut this;
        // SAFETY: each handle is written by the call that makes it before another one uses it;
        // strings are read only.
        unsafe {
            answer((calls.rados_create)(cluster, ptr::null())).map_err(failed)?;
            answer((calls.rados_conf_read_file)(*cluster, conf)).map_err(failed)?;
            // No write may be acknowledged before it is stored.
            answer((calls.rados_conf_set)(*cluster, c"rbd_cache".as_ptr(), c"false".as_ptr()))
                .map_err(failed)?;
            answer((calls.rados_connect)(*cluster)).map_err(failed)?;
            answer((calls.rados_ioctx_create)(*cluster, pool.as_ptr(), in_pool)).map_err(failed)?;
            answer((calls.rbd_open)(*in_pool, image.as_ptr(), opened, ptr::null())).map_err(failed)?;
        }
        if let Some(passphrase) = passphrase {
            let (at, len) = (passphrase.as_ptr().cast(), passphrase.len());
            let mut how = Encryption { algorithm: AES256, passphrase: at, len };
            // SAFETY: the image is open; the structure is the one of this format, and read only.
            answer(unsafe {
                (calls.rbd_encryption_load)(*opened, LUKS2, (&raw mut how).cast(), size_of_val(&how))
            })
            .map_err(failed)?;
        }
        Ok(this)
    }

    fn begin(&self, slot: &mut Slot, workload: Workload, offset: u64) -> Result<(), Errno> {
        let (mut completion, memory) = (ptr::null_mut(), slot.memory.as_mut_ptr().cast::<c_char>());
        let slot: *mut Slot = slot;
        // SAFETY: a slot stays where it is until all that was begun is over, which `drive` waits
        // for; its memory is as long as a request.
        unsafe {
            answer((self.calls.rbd_aio_create_completion)(slot.cast(), over, &raw mut completion))?;
            (*slot).completion = completion;
            answer(if workload.writes {
                (self.calls.rbd_aio_write)(self.image, offset, workload.block, memory, completion)
            } else {
                (self.calls.rbd_aio_read)(self.image, offset, workload.block, memory, completion)
            })
            .inspect_err(|_| (self.calls.rbd_aio_release)(completion))
        }
    }
}

impl Drop for Librbd {
    fn drop(&mut self) {
        // SAFETY: everything opened is closed once, in reverse order; nothing is in flight.
        unsafe {
            if !self.image.is_null() {
                (self.calls.rbd_close)(self.image);
            }
            if !self.pool.is_null() {
                (self.calls.rados_ioctx_destroy)(self.pool);
            }
            if !self.cluster.is_null() {
                (self.calls.rados_shutdown)(self.cluster);
            }
        }
    }
}

/// A slot for one request in flight, with its memory.
struct Slot {
    number: usize,
    memory: Vec<u8>,
    completion: Handle,
    tell: mpsc::Sender<usize>,
}

/// A completion callback on a thread of librbd's, which sends the slot's number to the waiting
/// thread.
unsafe extern "C" fn over(_: Handle, slot: *mut c_void) {
    let (number, tell) = {
        // SAFETY: the slot that was passed to librbd, which no thread touches until the number
        // arrives; from then on the slot may be freed.
        let slot = unsafe { &*slot.cast::<Slot>() };
        (slot.number, slot.tell.clone())
    };
    let _ = tell.send(number);
}

impl Drive for Librbd {
    fn drive(&mut self, workload: Workload, _: bool, places: NextOffset<'_>) -> Result<u64, BenchError> {
        let failed = |e: Errno| BenchError::because("a request of librbd's failed", e);
        let (tell, told) = mpsc::channel();
        let slot = |number| {
            let memory = vec![u8::try_from(number).unwrap_or(1); workload.block];
            Box::new(Slot { number, memory, completion: ptr::null_mut(), tell: tell.clone() })
        };
        let mut slots: Vec<_> = (0..workload.depth).map(slot).collect();
        let (mut requests, mut in_flight, mut result) = (0, 0, Ok(()));
        let mut begin = |slot: &mut Slot, result: &mut Result<(), Errno>| {
            let offset = if result.is_ok() { places() } else { None };
            let begun = offset.map(|offset| self.begin(slot, workload, offset));
            if let Some(Err(e)) = begun {
                *result = Err(e);
            }
            u64::from(matches!(begun, Some(Ok(()))))
        };
        for slot in &mut slots {
            in_flight += begin(slot, &mut result);
        }
        while in_flight > 0 {
            let number = told.recv().map_err(|_| failed(Errno::IO))?;
            let slot = &mut slots[number];
            // SAFETY: it is over, and released once.
            let ended = unsafe {
                let ended = (self.calls.rbd_aio_get_return_value)(slot.completion);
                (self.calls.rbd_aio_release)(slot.completion);
                ended
            };
            if ended < 0 && result.is_ok() {
                result = Err(errno(ended as i64));
            }
            requests += 1;
            in_flight -= 1;
            in_flight += begin(slot, &mut result);
        }
        result.map(|()| requests).map_err(failed)
    }
}

fn answer(result: c_int) -> Result<(), Errno> {
    if result < 0 { Err(errno(result.into())) } else { Ok(()) }
}

fn errno(result: i64) -> Errno {
    i32::try_from(-result).map_or(Errno::IO, Errno::from_raw_os_error)
}
