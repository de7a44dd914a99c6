//! A Python file object as lower device: anything with `read` and `seek`.

use std::io;
use std::os::fd::RawFd;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::{self, ThreadId};

use pyo3::exceptions::{PyAttributeError, PyException};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use underseal_image::LowerDevice;

/// A file object. Its position is shared, so one thread uses it at a time.
pub(crate) struct FileObject {
    object: Py<PyAny>,
    size: u64,
    descriptor: Option<RawFd>,
    user: Mutex<Option<ThreadId>>,
    free: Condvar,
}

impl FileObject {
    /// Asks the object for its size by seeking to its end.
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        object.call_method1("seek", (0, 2))?;
        let size = object.call_method0("tell")?.extract()?;
        let (descriptor, object) = (fileno(object)?, object.clone().unbind());
        Ok(Self { object, size, descriptor, user: Mutex::default(), free: Condvar::new() })
    }

    /// Runs a call on the object alone. The caller does not hold Python's lock, which the user
    /// before this one may need.
    fn alone<T>(&self, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> io::Result<T> {
        let me = thread::current().id();
        let mut user = self.user.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(other) = *user {
            if other == me {
                let what = "the file object reads from the volume that lies on it";
                return Err(io::Error::new(io::ErrorKind::Deadlock, what));
            }
            user = self.free.wait(user).unwrap_or_else(PoisonError::into_inner);
        }
        *user = Some(me);
        drop(user);
        let result = Python::attach(|py| call(self.object.bind(py)).map_err(|e| cause(py, &e)));
        *self.user.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.free.notify_one();
        result
    }
}

/// The system's error of an OSError, else the exception's text. An exception that is no error, as
/// KeyboardInterrupt, is kept for the caller.
fn cause(py: Python<'_>, e: &PyErr) -> io::Error {
    if !e.is_instance_of::<PyException>(py) {
        crate::error::keep(e.clone_ref(py));
    }
    let number = e.value(py).getattr("errno").ok().and_then(|number| number.extract::<i32>().ok());
    match number {
        Some(number) if number > 0 => io::Error::from_raw_os_error(number),
        _ => io::Error::other(e.to_string()),
    }
}

/// The descriptor of an object that has one.
fn fileno(object: &Bound<'_, PyAny>) -> PyResult<Option<RawFd>> {
    let py = object.py();
    match object.call_method0("fileno") {
        Ok(number) => number.extract().map(Some),
        // A file in memory, as io.IOBase says it; an object that is no file.
        Err(e) if e.is_instance_of::<PyAttributeError>(py) => Ok(None),
        Err(e) if e.is_instance(py, &py.import("io")?.getattr("UnsupportedOperation")?) => Ok(None),
        Err(e) => Err(e),
    }
}

impl LowerDevice for FileObject {
    fn size(&self) -> io::Result<u64> {
        Ok(self.size)
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.alone(|object| {
            object.call_method1("seek", (offset,))?;
            let mut filled = 0;
            while filled < bytes.len() {
                let part = object.call_method1("read", (bytes.len() - filled,))?;
                let part = part.cast::<PyBytes>()?.as_bytes();
                let room = &mut bytes[filled..];
                if part.is_empty() || part.len() > room.len() {
                    return Ok(false);
                }
                room[..part.len()].copy_from_slice(part);
                filled += part.len();
            }
            Ok(true)
        })
        .and_then(|whole| if whole { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) })
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.alone(|object| {
            object.call_method1("seek", (offset,))?;
            let mut written = 0;
            while written < bytes.len() {
                let part = PyBytes::new(object.py(), &bytes[written..]);
                let count: Option<usize> = object.call_method1("write", (part,))?.extract()?;
                match count {
                    Some(count) if count > 0 && count <= bytes.len() - written => written += count,
                    _ => return Ok(false),
                }
            }
            Ok(true)
        })
        .and_then(|whole| if whole { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) })
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.descriptor
    }

    /// The object's buffer goes to its file, and the file to the disk. An object without a file is
    /// as durable as its `flush`.
    fn sync(&self) -> io::Result<()> {
        self.alone(|object| {
            object.call_method0("flush")?;
            match fileno(object)? {
                Some(number) => object.py().import("os")?.call_method1("fsync", (number,)).map(drop),
                None => Ok(()),
            }
        })
    }
}
