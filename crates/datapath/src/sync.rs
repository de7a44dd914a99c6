//! Synchronisation primitives. `tests/injector.rs` and `tests/locks.rs` replace them with those of
//! a model checker.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
