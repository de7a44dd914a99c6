//! Synchronisation primitives. `tests/mailbox.rs` replaces them with those of a model checker.

pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};
pub(crate) use std::sync::{Mutex, MutexGuard};
