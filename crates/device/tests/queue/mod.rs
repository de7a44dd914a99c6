//! A queue for tests.

#![allow(dead_code, reason = "each test uses a part")]

use std::time::{Duration, Instant};

use underseal_device::{Arena, Channel, Device, Finished, Io, Ring, RingCompletion, Started};

const MEMORY: usize = 4 << 20;

/// A queue in the style of the data path.
pub(crate) struct Queue {
    channel: Box<dyn Channel>,
    ring: Ring,
    pub(crate) arena: Arena,
    over: Vec<Finished>,
    pub(crate) in_flight: usize,
}

impl Queue {
    pub(crate) fn new(device: &dyn Device, depth: u32) -> Self {
        let (ring, arena) = (Ring::new(depth).unwrap(), Arena::new(MEMORY).unwrap());
        Self { channel: device.channel(depth).unwrap(), ring, arena, over: Vec::new(), in_flight: 0 }
    }

    pub(crate) fn start(&mut self, slot: u32, io: Io) {
        match self.channel.start(&mut self.ring, slot, io) {
            Started::Finished(done) => {
                assert_eq!(done.slot, slot);
                self.over.push(done);
            }
            Started::Pending => self.in_flight += 1,
        }
    }

    /// Waits up to `limit`, and takes completed requests.
    pub(crate) fn turn(&mut self, limit: Duration) -> Vec<Finished> {
        if self.in_flight > 0 && self.over.is_empty() {
            self.ring.wait_until(Some(Instant::now() + limit)).unwrap();
        }
        self.reap();
        std::mem::take(&mut self.over)
    }

    /// Waits until all requests are over.
    pub(crate) fn drain(&mut self) -> Vec<Finished> {
        while self.in_flight > 0 {
            self.ring.wait().unwrap();
            self.reap();
        }
        std::mem::take(&mut self.over)
    }

    fn reap(&mut self) {
        let before = self.over.len();
        while let Some(RingCompletion { token, result }) = self.ring.next_completion() {
            let Some(slot) = token.as_lower() else {
                self.channel.woken(&mut self.ring, token, result, &mut self.over);
                continue;
            };
            if let Some(done) = self.channel.finish(&mut self.ring, token, result) {
                assert_eq!(done.slot, slot, "the token tells the slot");
                self.over.push(done);
            }
        }
        self.in_flight -= self.over.len() - before;
    }
}
