//! A C program's own lower device.

#![expect(unsafe_code, reason = "the C interface")]

use std::ffi::{c_int, c_void};
use std::io;

use underseal_image::{LowerDevice, Result};

use crate::edge::bad;

/// `struct underseal_callbacks`. Functions return 0 or -errno, and are called from any thread that
/// uses the handle.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Callbacks {
    /// Given to each function.
    argument: *mut c_void,
    /// The size in bytes.
    size: u64,
    /// Fills `len` bytes from `offset` on.
    pread: Option<unsafe extern "C" fn(*mut c_void, *mut u8, usize, u64) -> c_int>,
    /// Writes `len` bytes at `offset`; null where the device is read only.
    pwrite: Option<unsafe extern "C" fn(*mut c_void, *const u8, usize, u64) -> c_int>,
    /// Returns when everything is on stable storage; null where that is always so.
    flush: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
}

pub(crate) struct Device(Callbacks);

// SAFETY: the header says that the functions are called from any thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    pub(crate) fn new(callbacks: &Callbacks) -> Result<Self> {
        if callbacks.pread.is_none() {
            return Err(bad("callbacks without pread"));
        }
        Ok(Self(*callbacks))
    }
}

fn result(code: c_int) -> io::Result<()> {
    match code {
        0 => Ok(()),
        code if code < 0 && code > -4096 => Err(io::Error::from_raw_os_error(-code)),
        code => Err(io::Error::other(format!("a callback returned {code}, which is neither 0 nor -errno"))),
    }
}

impl LowerDevice for Device {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.size)
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let pread = self.0.pread.ok_or(io::ErrorKind::Unsupported)?;
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > self.0.size) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // SAFETY: the program gave the function and its argument, and the buffer is the call's.
        result(unsafe { pread(self.0.argument, bytes.as_mut_ptr(), bytes.len(), offset) })
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let pwrite = self.0.pwrite.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: as above.
        result(unsafe { pwrite(self.0.argument, bytes.as_ptr(), bytes.len(), offset) })
    }

    fn sync(&self) -> io::Result<()> {
        // SAFETY: as above.
        self.0.flush.map_or(Ok(()), |flush| result(unsafe { flush(self.0.argument) }))
    }
}
