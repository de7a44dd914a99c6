//! An image as other programs use it: its release, its snapshots, its loss.

use std::sync::{Arc, PoisonError, mpsc};

use rustix::io::Errno;

use super::{RbdDevice, snapshots};
use crate::{LossHandler, SharedImage, SnapshotPause};

impl SharedImage for RbdDevice {
    fn let_go(&self) {
        // Closing takes time, during which a query for the size need not wait.
        let image = self.shared.image.write().unwrap_or_else(PoisonError::into_inner).take();
        drop(image);
        drop(self.shared.holder.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn when_snapshot(&self, pause: Arc<dyn SnapshotPause>) {
        if self.shared.geometry.read_only {
            return;
        }
        let (tell, told) = mpsc::channel();
        let watched = match &mut *self.shared.image.write().unwrap_or_else(PoisonError::into_inner) {
            Some(image) => image.watch_snapshots(tell),
            None => return,
        };
        let shared = Arc::downgrade(&self.shared);
        let attends = move || {
            snapshots::attend(&told, &*pause, snapshots::LONGEST, |rests| {
                let answer = if rests { Ok(()) } else { Err(Errno::BUSY) };
                if let Some(shared) = shared.upgrade() {
                    // A snapshot of an image that is being closed is answered by the close.
                    let _ = shared.with_image(|image| {
                        image.rests(answer);
                        Ok(())
                    });
                }
            });
        };
        let thread = || {
            // Without this thread a snapshot would wait for an answer that never comes.
            let spawned = std::thread::Builder::new().name("snapshots".into()).spawn(attends);
            spawned.map(drop).inspect_err(|_| self.shared.hear_no_snapshots())
        };
        if let Err(e) = watched.map_err(std::io::Error::from).and_then(|()| thread()) {
            log::warn!("{}: its snapshots do not wait for requests in flight: {e}", self.shared.name);
        }
    }

    fn when_lost(&self, act: LossHandler) {
        // The first handler serves all; the device may be lost already.
        let _ = self.shared.when_lost.set(act);
        if self.shared.was_shut_out() {
            self.shared.tell();
        }
    }
}
