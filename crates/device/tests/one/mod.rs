//! Runs single requests, with access to the operations that they are made of.

#![allow(dead_code, reason = "each test uses a part")]

use underseal_device::{Arena, Channel, Finished, Io, Ring, Started};

pub(crate) struct One {
    pub(crate) ring: Ring,
    pub(crate) arena: Arena,
}

impl One {
    pub(crate) fn new() -> Self {
        Self { ring: Ring::new(8).unwrap(), arena: Arena::new(1 << 20).unwrap() }
    }

    /// Runs a request to its end.
    pub(crate) fn run(&mut self, channel: &mut dyn Channel, io: Io) -> Finished {
        self.run_with(channel, io, &[])
    }

    /// Runs a request; the kernel's first results are replaced by these error numbers.
    pub(crate) fn run_with(&mut self, channel: &mut dyn Channel, io: Io, errors: &[i32]) -> Finished {
        let mut errors = errors.iter();
        let over = |finished, mut errors: std::slice::Iter<'_, i32>| {
            assert_eq!(errors.next(), None, "it ends too soon");
            finished
        };
        if let Started::Finished(finished) = channel.start(&mut self.ring, 0, io) {
            return over(finished, errors);
        }
        loop {
            self.ring.wait().unwrap();
            while let Some(done) = self.ring.next_completion() {
                let result = errors.next().map_or(done.result, |errno| -errno);
                if let Some(finished) = channel.finish(&mut self.ring, done.token, result) {
                    return over(finished, errors);
                }
            }
        }
    }
}
