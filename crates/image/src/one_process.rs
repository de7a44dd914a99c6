//! A value of one process: its threads, its connection or its ring do not follow a fork.

use std::{io, mem, process};

use crate::{Error, ErrorKind};

/// A value that only the process that made it uses. A child of a fork gets an error instead, and
/// leaves the value alone when it drops it: the child would wait for the parent's threads, or end
/// the parent's connection.
pub(crate) struct OneProcess<T> {
    /// `None` while it is dropped.
    value: Option<Box<T>>,
    process: u32,
}

impl<T> OneProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Some(Box::new(value)), process: process::id() }
    }

    /// Returns the value. Fails in another process than the one that made it.
    pub(crate) fn get(&self) -> io::Result<&T> {
        refuse_child(self.process)?;
        self.value.as_deref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl<T> Drop for OneProcess<T> {
    fn drop(&mut self) {
        if self.process != process::id() {
            mem::forget(self.value.take());
        }
    }
}

/// Fails in another process than `process`.
pub(crate) fn refuse_child(process: u32) -> io::Result<()> {
    if process == process::id() {
        return Ok(());
    }
    Err(io::Error::other("another process has opened it before a fork; open it again in this one"))
}

/// The error of an image that a child of the process that opened it uses.
pub(crate) fn forked(e: io::Error) -> Error {
    Error::new(ErrorKind::Busy, "this process cannot use the image").with_source(e)
}
