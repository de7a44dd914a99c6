//! The primitives that threads meet through. `tests/mailbox.rs` puts a model checker's in their
//! place.

pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};
pub(crate) use std::sync::{Mutex, MutexGuard};
