//! Notifications that wait in the kernel: for the pages of a file, which a read under way holds.
//!
//! The read may wait here in turn, or in the kernel, until a request has been answered. So no
//! request waits for a notification without end: it is sent by a thread of its own, and a request
//! that has waited for long is answered otherwise.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use underseal_fuse::FuseChannel;

use super::nodes::FileNode;
use super::{Fs, locked};

/// How long a request waits for its notification, which takes some microseconds where no read is
/// under way.
const LIMIT: Duration = Duration::from_millis(50);
/// The thread makes one system call.
const STACK: usize = 64 << 10;

impl Fs {
    /// Sends a notification about a file. Returns false when the kernel does not take it, or not
    /// soon. Then it may take it at any later time, and until then every other one about this file
    /// is answered with false at once.
    pub(super) fn notify(
        &self,
        node: &Arc<FileNode>,
        call: impl FnOnce(&FuseChannel, u64) -> io::Result<()> + Send + 'static,
    ) -> bool {
        let Some(kernel) = self.kernel.get().cloned() else { return false };
        if std::mem::replace(&mut locked(&node.file).is_notified, true) {
            return false;
        }
        let (done, answer) = sync_channel(1);
        let of = node.clone();
        let send = move || {
            let is_taken = call(&kernel, of.id).is_ok();
            locked(&of.file).is_notified = false;
            // The request may have been answered already.
            let _ = done.send(is_taken);
        };
        let thread = thread::Builder::new().name("ecryptfs-pages".into()).stack_size(STACK);
        if let Err(e) = thread.spawn(send) {
            locked(&node.file).is_notified = false;
            log::warn!("{}: the kernel keeps its pages: no thread: {e}", node.path());
            return false;
        }
        answer.recv_timeout(LIMIT).unwrap_or(false)
    }
}
