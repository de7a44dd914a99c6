//! The primitives that threads meet through. `tests/injector.rs` and `tests/locks.rs` put a model
//! checker's in their place.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
