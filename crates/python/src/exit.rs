//! The end of the interpreter. CPython ends a daemon thread that takes its lock after that, before
//! version 3.14 by unwinding the thread's stack: in a callback it passes through this module, which
//! may end the process with a signal.
//!
//! ```text
//!   callback ----- enter() --> counted in INSIDE until it returns; Err once ENDING is set
//!   atexit ------- end() ----> sets ENDING, waits until INSIDE is 0, but not for ever
//! ```
//!
//! The thread that ends the interpreter has callbacks until the last object is gone: it may close
//! volumes.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{io, process, thread};

use pyo3::prelude::*;

/// The longest wait for callbacks of other threads. A method may wait for a network, or for ever.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// The time that a refused flush takes. An image keeps its error, and the thread that ends the
/// interpreter would flush no more; that thread is done before.
pub(crate) const REFUSED_FLUSH: Duration = Duration::from_secs(10);
/// The pause between two looks at [`INSIDE`].
const PAUSE: Duration = Duration::from_millis(1);

/// Whether the interpreter ends.
static ENDING: AtomicBool = AtomicBool::new(false);
/// The number of callbacks that run, and in the upper half the process that they run in: a child of
/// a fork has none of its parent's threads.
static INSIDE: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Whether this thread ends the interpreter.
    static IS_LAST: Cell<bool> = const { Cell::new(false) };
}

/// A callback that runs.
pub(crate) struct Callback(());

/// Has Python call [`end`] before it ends.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    ENDING.store(false, Ordering::SeqCst);
    let end = wrap_pyfunction!(end, module)?;
    module.py().import("atexit")?.call_method1("register", (end,)).map(drop)
}

/// Lets no other thread begin a callback, and waits for those that run.
#[pyfunction]
fn end(py: Python<'_>) {
    IS_LAST.set(true);
    ENDING.store(true, Ordering::SeqCst);
    py.detach(|| {
        let start = Instant::now();
        while running(INSIDE.load(Ordering::SeqCst)) > 0 && start.elapsed() < PATIENCE {
            thread::sleep(PAUSE);
        }
    });
}

/// Returns true from the moment on when other threads have no callbacks any more.
pub(crate) fn is_ending() -> bool {
    ENDING.load(Ordering::SeqCst)
}

/// Begins a callback, before the thread waits for anything. Fails once the interpreter ends.
pub(crate) fn enter() -> io::Result<Callback> {
    count(|running| running + 1);
    let callback = Callback(());
    if is_ending() && !IS_LAST.get() {
        return Err(io::Error::other("Python ends"));
    }
    Ok(callback)
}

impl Drop for Callback {
    fn drop(&mut self) {
        count(|running| running.saturating_sub(1));
    }
}

/// The callbacks of this process that a value of [`INSIDE`] counts.
fn running(inside: u64) -> u64 {
    if inside >> 32 == u64::from(process::id()) { inside & u64::from(u32::MAX) } else { 0 }
}

fn count(change: impl Fn(u64) -> u64) {
    let change = |inside| Some((u64::from(process::id()) << 32) | change(running(inside)));
    // The function always returns a value.
    let _ = INSIDE.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change);
}

/// Runs Python code in a callback. A thread that Python ends there sleeps until the process is gone
/// instead of unwinding further: Python's objects are not this thread's any more.
pub(crate) fn calling<T>(call: impl FnOnce() -> T) -> T {
    struct EndedThread;

    impl Drop for EndedThread {
        fn drop(&mut self) {
            while is_ending() && !thread::panicking() {
                thread::park();
            }
        }
    }

    let ended = EndedThread;
    let result = call();
    std::mem::forget(ended);
    result
}
