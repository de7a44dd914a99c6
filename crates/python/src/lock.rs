//! Python's global lock: calls without it, and how they take it back.
//!
//! A thread that finds the lock taken sleeps in the kernel, and the thread that releases it wakes
//! that one. Both together take longer than reads of 4 KiB from memory, so that two threads would
//! be slower than one. Threads that return from calls of this module wait for each other here
//! first, without sleeping and for a bounded time: between two reads a thread has the lock for less
//! than a microsecond. The lock itself stays Python's, and a wrong guess here costs time only.
//!
//! ```text
//!   FREE ---- a call returns ---> CLAIMED ---- Python's lock is taken ---> HELD
//!     ^                                                                      |
//!     +------------- the same thread releases the lock for a call -----------+
//! ```

use std::cell::Cell;
use std::hint;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use pyo3::prelude::*;

/// The longest wait, in nanoseconds, for a thread that has the lock: it may do something else than
/// reading.
const HELD: u64 = 5_000;
/// The longest wait, in nanoseconds, for a thread that is about to take the lock: it may have to be
/// woken.
const CLAIMED: u64 = 100_000;

/// Whether threads wait here. Python without a global lock has none to wait for.
static HAS_LOCK: AtomicBool = AtomicBool::new(false);

/// The time, in nanoseconds since [`START`], until which others wait for the thread that has
/// written it here; zero when there is none.
static UNTIL: AtomicU64 = AtomicU64::new(0);
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

thread_local! {
    /// The value of [`UNTIL`] that this thread has written.
    static OWN: Cell<u64> = const { Cell::new(0) };
}

/// Learns whether this Python has a global lock.
pub(crate) fn start(py: Python<'_>) -> PyResult<()> {
    let has_lock = match py.import("sys")?.getattr("_is_gil_enabled") {
        Ok(asks) => asks.call0()?.extract()?,
        Err(_) => true,
    };
    HAS_LOCK.store(has_lock, Ordering::Relaxed);
    // A child of a fork would wait for the thread that makes it.
    LazyLock::force(&START);
    Ok(())
}

/// Runs a call without Python's global lock.
pub(crate) fn released<T: Send>(py: Python<'_>, call: impl FnOnce() -> T + Send) -> T {
    if !HAS_LOCK.load(Ordering::Relaxed) {
        return py.detach(call);
    }
    let result = py.detach(|| {
        replace_own(0);
        let result = call();
        claim();
        result
    });
    replace_own(now() + HELD);
    result
}

fn now() -> u64 {
    u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Waits until no other thread is likely to have the lock, and has others wait for this one.
fn claim() {
    loop {
        let (now, until) = (now(), UNTIL.load(Ordering::Acquire));
        let own = now + CLAIMED;
        if until <= now && UNTIL.compare_exchange(until, own, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            OWN.set(own);
            return;
        }
        hint::spin_loop();
    }
}

/// Replaces what this thread has written, unless another has given up waiting for it.
fn replace_own(until: u64) {
    if UNTIL.compare_exchange(OWN.get(), until, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        OWN.set(until);
    }
}
