//! The lock of an image's reads and writes. A program's own device that uses the image that lies on
//! it is refused: it would wait for the request that it is answering.

use std::cell::RefCell;
use std::io;
use std::marker::PhantomData;
use std::process;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::one_process::{forked, refuse_child};
use crate::traces::RequestTraces;
use crate::{Error, ErrorKind, Result};

/// The errno of a request that would wait for itself.
const EDEADLK: i32 = 35;

thread_local! {
    /// The images that this thread reads or writes just now, by the addresses of their locks.
    static INSIDE: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Lets reads run side by side, and a write alone.
pub(crate) struct ImageLock {
    /// A read-only image has none: its reads need not wait for each other, and counting them would
    /// cost threads on several processors more than the lock is worth.
    lock: Option<RwLock<()>>,
    /// The process with the threads that hold the lock. A child of a fork would wait for them for
    /// ever.
    process: u32,
}

/// A request that runs.
pub(crate) struct RunningCall<G> {
    // Dropped in this order: waiting threads get the lock first.
    _guard: G,
    _inside: Inside,
    _traces: RequestTraces,
}

impl ImageLock {
    pub(crate) fn new(writable: bool) -> Self {
        Self { lock: writable.then(RwLock::default), process: process::id() }
    }

    /// Waits for writes of other threads. A child of a fork needs no lock: it writes nothing.
    pub(crate) fn to_read(&self) -> Result<RunningCall<Option<RwLockReadGuard<'_, ()>>>> {
        let _inside = self.enter()?;
        let lock = self.lock.as_ref().filter(|_| self.refuse_child().is_ok());
        let _guard = lock.map(|lock| lock.read().unwrap_or_else(PoisonError::into_inner));
        Ok(RunningCall { _guard, _inside, _traces: RequestTraces })
    }

    /// Waits for all requests of other threads. Refuses a child of a fork.
    pub(crate) fn to_write(&self) -> Result<RunningCall<Option<RwLockWriteGuard<'_, ()>>>> {
        self.refuse_child()?;
        let _inside = self.enter()?;
        let _guard = self.lock.as_ref().map(|lock| lock.write().unwrap_or_else(PoisonError::into_inner));
        Ok(RunningCall { _guard, _inside, _traces: RequestTraces })
    }

    /// Waits for no other request. Refuses a child of a fork.
    pub(crate) fn to_flush(&self) -> Result<impl Sized> {
        self.refuse_child()?;
        self.enter()
    }

    /// Fails in another process than the one that opened the image.
    fn refuse_child(&self) -> Result<()> {
        refuse_child(self.process).map_err(forked)
    }

    fn enter(&self) -> Result<Inside> {
        let lock = std::ptr::from_ref(self).addr();
        let begin = |inside: &mut Vec<usize>| {
            let is_inside = inside.contains(&lock);
            if !is_inside {
                inside.push(lock);
            }
            is_inside
        };
        if changed(begin) == Some(true) {
            let what = "the lower device uses the volume that lies on it";
            let cause = io::Error::from_raw_os_error(EDEADLK);
            return Err(Error::new(ErrorKind::Io, what).with_source(cause));
        }
        Ok(Inside { lock, _of_this_thread: PhantomData })
    }
}

/// The thread's mark that it is in a request. It stays in its thread.
struct Inside {
    lock: usize,
    _of_this_thread: PhantomData<*const ()>,
}

impl Drop for Inside {
    fn drop(&mut self) {
        changed(|inside| {
            if let Some(at) = inside.iter().rposition(|lock| *lock == self.lock) {
                inside.swap_remove(at);
            }
        });
    }
}

/// Changes the marks of this thread. `None` in a thread that ends, which may use an image while its
/// own data are cleared.
fn changed<T>(change: impl FnOnce(&mut Vec<usize>) -> T) -> Option<T> {
    INSIDE.try_with(|inside| change(&mut inside.borrow_mut())).ok()
}
