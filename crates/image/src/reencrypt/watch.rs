//! The caller's progress between the steps of a closed volume.

use std::cell::{Cell, RefCell};
use std::ops::{ControlFlow, Range};

use underseal_volume::reencrypt::{Alone, Claim, Foreground, Pace};

/// The steps of a volume that no other program uses. The caller sees how far they are, and may stop
/// them.
pub(super) struct WatchedSteps<'p> {
    progress: RefCell<&'p mut dyn FnMut(u64, u64) -> ControlFlow<()>>,
    /// The caller's last numbers: the bytes that are done, all bytes.
    told: Cell<(u64, u64)>,
    is_stopped: Cell<bool>,
}

impl<'p> WatchedSteps<'p> {
    pub(super) fn new(progress: &'p mut dyn FnMut(u64, u64) -> ControlFlow<()>) -> Self {
        Self { progress: progress.into(), told: Cell::default(), is_stopped: Cell::default() }
    }

    /// Tells that all bytes are done.
    pub(super) fn finished(&self) {
        let (_, all) = self.told.get();
        self.tell((all, all));
    }

    fn tell(&self, (done, all): (u64, u64)) {
        self.told.set((done, all));
        if (*self.progress.borrow_mut())(done, all).is_break() {
            self.is_stopped.set(true);
        }
    }
}

impl Foreground for WatchedSteps<'_> {
    fn claim(&self, _range: Range<u64>) -> underseal_volume::Result<Box<dyn Claim + '_>> {
        Ok(Box::new(Alone))
    }

    fn claims_ahead(&self) -> bool {
        true
    }

    fn writes(&self) -> bool {
        false
    }

    fn waits_for_lock(&self) {
        self.tell(self.told.get());
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.get()
    }

    fn pace(&self, done: u64, left: u64) -> Pace {
        self.tell((done, done + left));
        if self.is_stopped.get() { Pace::Stop } else { Pace::Go }
    }
}
