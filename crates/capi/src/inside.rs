//! The calls that a thread is in. A callback that uses the handle that called it would wait for
//! itself, or call itself for ever.

use std::cell::RefCell;
use std::io;
use std::marker::PhantomData;

use underseal_image::{Error, ErrorKind, Result};

use crate::handle::Handle;

/// The errno of a call that would wait for itself.
const EDEADLK: i32 = 35;

thread_local! {
    /// The handles of the calls that this thread is in, by their addresses.
    static INSIDE: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The mark that this thread is in a call on a handle. It stays in its thread.
pub(crate) struct CallMark {
    handle: usize,
    _of_this_thread: PhantomData<*const ()>,
}

impl CallMark {
    /// Begins a call. Fails in a callback of the same handle.
    pub(crate) fn enter(handle: &Handle) -> Result<Self> {
        let handle = std::ptr::from_ref(handle).addr();
        let begin = |inside: &mut Vec<usize>| {
            let is_inside = inside.contains(&handle);
            if !is_inside {
                inside.push(handle);
            }
            is_inside
        };
        if changed(begin) == Some(true) {
            let cause = io::Error::from_raw_os_error(EDEADLK);
            let what = "a callback uses the handle that it is a callback of";
            return Err(Error::new(ErrorKind::Io, what).with_source(cause));
        }
        Ok(Self { handle, _of_this_thread: PhantomData })
    }
}

impl Drop for CallMark {
    fn drop(&mut self) {
        changed(|inside| inside.retain(|handle| *handle != self.handle));
    }
}

/// Changes the marks of this thread. `None` in a thread that ends, which may use a handle while its
/// own data are cleared.
fn changed<T>(change: impl FnOnce(&mut Vec<usize>) -> T) -> Option<T> {
    INSIDE.try_with(|inside| change(&mut inside.borrow_mut())).ok()
}

/// Runs a function of the program that may use the handle of the call that it is in.
pub(crate) fn outside<T>(handle: &Handle, run: impl FnOnce() -> T) -> T {
    let handle = std::ptr::from_ref(handle).addr();
    changed(|inside| inside.retain(|each| *each != handle));
    let result = run();
    changed(|inside| inside.push(handle));
    result
}
