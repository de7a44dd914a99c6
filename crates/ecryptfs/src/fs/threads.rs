//! The threads of a mount: the first that fails ends the whole mount, as its requests would wait
//! for ever.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

type Outcome = io::Result<()>;

pub(super) struct MountThreads {
    threads: Vec<JoinHandle<()>>,
    ends: Sender<Outcome>,
    ended: Receiver<Outcome>,
}

/// Sends a thread's outcome, also after a panic.
struct End {
    ends: Sender<Outcome>,
    outcome: Option<Outcome>,
}

impl Drop for End {
    fn drop(&mut self) {
        let outcome = self.outcome.take();
        // The receiver is gone once another thread has failed.
        let _ = self.ends.send(outcome.unwrap_or_else(|| Err(io::Error::other("a thread panicked"))));
    }
}

impl MountThreads {
    pub(super) fn new() -> Self {
        let (ends, ended) = channel();
        Self { threads: Vec::new(), ends, ended }
    }

    pub(super) fn spawn(
        &mut self,
        name: String,
        run: impl FnOnce() -> Outcome + Send + 'static,
    ) -> io::Result<()> {
        let end = End { ends: self.ends.clone(), outcome: None };
        let thread = thread::Builder::new().name(name).spawn(move || {
            let mut end = end;
            end.outcome = Some(run());
        });
        self.threads.push(thread?);
        Ok(())
    }

    /// Waits until all threads have ended.
    ///
    /// Fails with the first failure, without waiting for the other threads.
    pub(super) fn join(self) -> Outcome {
        let Self { threads, ends, ended } = self;
        drop(ends);
        for outcome in ended {
            outcome?;
        }
        // All threads have sent their outcomes.
        threads.into_iter().for_each(|thread| drop(thread.join()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_fails_ends_the_wait() {
        for panics in [false, true] {
            let mut threads = MountThreads::new();
            let (hold, held) = channel::<()>();
            threads.spawn("waits".into(), move || held.recv().map_err(io::Error::other)).unwrap();
            threads
                .spawn("fails".into(), move || match panics {
                    true => panic!("as it should"),
                    false => Err(io::Error::other("as it should")),
                })
                .unwrap();
            let said = threads.join().unwrap_err().to_string();
            assert_eq!(said, if panics { "a thread panicked" } else { "as it should" });
            drop(hold);
        }
    }

    #[test]
    fn all_are_waited_for() {
        let mut threads = MountThreads::new();
        let (done, all) = channel();
        for number in 0..4 {
            let done = done.clone();
            threads.spawn("one".into(), move || done.send(number).map_err(io::Error::other)).unwrap();
        }
        threads.join().unwrap();
        assert_eq!(all.try_iter().count(), 4);
    }
}
