//! Wakes a channel that waits in its ring for what another thread sees end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

use crate::{Error, ErrorKind, Result};

pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let none = |e| Error::new(ErrorKind::Memory, "no event descriptor for a channel").with_source(e);
        fd.map(Self).map_err(none)
    }

    pub(crate) fn ring(&self) {
        // A bell that cannot count further rings already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    pub(crate) fn heard(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
