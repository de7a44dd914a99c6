//! Requests that may take long, and the threads that do them, so that the threads that take requests are free for others.
//!
//! Slow are growth, cuts, fsync and fallocate, and whatever asks for the bytes of a file while one of those runs in it. The kernel
//! takes a reply only through the channel that the request came by, so the channel goes along.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use underseal_fuse::FuseChannel;

use super::locked;

/// Threads for slow requests. More slow requests than these wait for each other, and for nothing else.
pub(super) const THREADS: usize = 8;

/// A request as it arrived.
pub(super) struct SlowRequest {
    pub(super) channel: Arc<FuseChannel>,
    pub(super) bytes: Vec<u8>,
}

/// Where a thread gets its slow requests from. All of them end when nobody can send any more.
#[derive(Clone)]
pub(super) struct SlowRequests {
    receiver: Arc<Mutex<Receiver<SlowRequest>>>,
}

impl SlowRequests {
    pub(super) fn new() -> (Sender<SlowRequest>, Self) {
        let (sender, receiver) = channel();
        (sender, Self { receiver: Arc::new(Mutex::new(receiver)) })
    }
}

impl Iterator for SlowRequests {
    type Item = SlowRequest;

    fn next(&mut self) -> Option<SlowRequest> {
        locked(&self.receiver).recv().ok()
    }
}
