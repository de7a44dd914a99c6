//! A Python object as lower device: anything with `read`, `seek` and `tell`.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::RawFd;
use std::process;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, ThreadId};

use pyo3::exceptions::{PyAttributeError, PyException};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use underseal_image::{Error, ErrorKind, LowerDevice};

use crate::error::exception;
use crate::exit::{self, Callback};

/// A file object. Its position is shared, so one thread uses it at a time, and a child of a fork
/// does not: it would move the position of its parent's, and wait for its parent's threads.
pub(crate) struct FileObject {
    object: Py<PyAny>,
    size: u64,
    descriptor: Option<RawFd>,
    turn: Arc<Turn>,
    process: u32,
}

/// The right to use an object: all devices on the same object share it.
#[derive(Default)]
struct Turn {
    user: Mutex<Option<ThreadId>>,
    free: Condvar,
}

impl Turn {
    /// Returns the turn of an object, by its address: it lives as long as a device on it does. A
    /// child of a fork has turns of its own: a thread of its parent's would never end one.
    fn of(object: &Bound<'_, PyAny>) -> Arc<Self> {
        static TURNS: Mutex<BTreeMap<(u32, usize), Weak<Turn>>> = Mutex::new(BTreeMap::new());
        let mut turns = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = turns.entry((process::id(), object.as_ptr().addr())).or_default();
        turn.upgrade().unwrap_or_else(|| {
            let new = Arc::new(Self::default());
            *turn = Arc::downgrade(&new);
            new
        })
    }

    /// Waits for the user before this one. While Python ends, that may be a thread of which nothing
    /// comes any more.
    fn wait<'u>(&'u self, user: User<'u>) -> io::Result<User<'u>> {
        if !exit::is_ending() {
            return Ok(self.free.wait(user).unwrap_or_else(PoisonError::into_inner));
        }
        let waited = self.free.wait_timeout(user, exit::PATIENCE);
        match waited.unwrap_or_else(PoisonError::into_inner) {
            (_, ended) if ended.timed_out() => Err(io::ErrorKind::ResourceBusy.into()),
            (user, _) => Ok(user),
        }
    }
}

type User<'u> = MutexGuard<'u, Option<ThreadId>>;

/// The error of an object that uses what lies on it.
fn deadlock() -> io::Error {
    let cause = io::Error::from_raw_os_error(EDEADLK);
    let what = "the file object reads from the volume that lies on it";
    io::Error::new(io::ErrorKind::Deadlock, Error::new(ErrorKind::Io, what).with_source(cause))
}

/// The errno of a call that would wait for itself.
const EDEADLK: i32 = 35;

impl FileObject {
    /// Asks the object for its size by seeking to its end.
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (descriptor, turn) = (fileno(object)?, Turn::of(object));
        let mut this =
            Self { object: object.clone().unbind(), size: 0, descriptor, turn, process: process::id() };
        let size = |object: &Bound<'_, PyAny>| {
            object.call_method1("seek", (0, 2))?;
            object.call_method0("tell")?.extract()
        };
        let asked = object.py().detach(|| this.alone(|object| Ok(size(object))));
        let failed = |e| Error::new(ErrorKind::Io, "cannot find the file object's size").with_source(e);
        this.size = asked.map_err(|e| exception(&failed(e)))??;
        Ok(this)
    }

    /// Runs a call on the object alone. The caller does not hold Python's lock, which the user
    /// before this one may need.
    fn alone<T>(&self, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> io::Result<T> {
        self.alone_in(exit::enter(), call)
    }

    fn alone_in<T>(
        &self,
        callback: io::Result<Callback>,
        call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>,
    ) -> io::Result<T> {
        if self.process != process::id() {
            let what = "another process has opened the file object before a fork; open it again in this one";
            return Err(io::Error::other(what));
        }
        let _callback = callback?;
        let (me, turn) = (thread::current().id(), &*self.turn);
        let mut user = turn.user.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(other) = *user {
            if other == me {
                return Err(deadlock());
            }
            user = turn.wait(user)?;
        }
        *user = Some(me);
        drop(user);
        let result =
            Python::attach(|py| exit::calling(|| call(self.object.bind(py)).map_err(|e| cause(py, &e))));
        *turn.user.lock().unwrap_or_else(PoisonError::into_inner) = None;
        turn.free.notify_one();
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
                    _ => return Ok(Some("the file object has not written all bytes")),
                }
            }
            let end: u64 = object.call_method0("tell")?.extract()?;
            // An object that appends has written elsewhere.
            let elsewhere = "the file object writes at another place than the one that was asked for";
            Ok((end != offset + bytes.len() as u64).then_some(elsewhere))
        })
        .and_then(|fault| fault.map_or(Ok(()), |fault| Err(io::Error::other(fault))))
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.descriptor
    }

    /// The object's buffer goes to its file, and the file to the disk. An object without a file is
    /// as durable as its `flush`.
    fn sync(&self) -> io::Result<()> {
        let callback = exit::enter().inspect_err(|_| thread::sleep(exit::REFUSED_FLUSH));
        self.alone_in(callback, |object| {
            object.call_method0("flush")?;
            match fileno(object)? {
                Some(number) => object.py().import("os")?.call_method1("fsync", (number,)).map(drop),
                None => Ok(()),
            }
        })
    }
}
