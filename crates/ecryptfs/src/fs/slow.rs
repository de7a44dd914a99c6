//! Requests that may take long, and the threads that do them, so that the threads that take
//! requests are free for others.
//!
//! Slow are growth, cuts, fsync and fallocate, and whatever asks for the bytes of a file while one
//! of those runs in it. The kernel takes a reply only the way that the request came, so that goes
//! along. When all threads are at work, one more is started for the next request.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::dispatch::ReplyPath;
use super::locked;

/// Threads for slow requests that are there from the beginning.
pub(super) const THREADS: usize = 8;
/// The most threads for slow requests. More slow requests than these wait for each other, and for
/// nothing else.
const MOST: usize = 64;

/// A request as it arrived.
pub(super) struct SlowRequest {
    pub(super) back: ReplyPath,
    pub(super) bytes: Vec<u8>,
}

/// What the threads share.
struct Queue<T> {
    state: Mutex<State<T>>,
    comes: Condvar,
}

struct State<T> {
    requests: VecDeque<T>,
    /// Threads that wait for a request.
    idle: usize,
    /// Those that have not ended, and those that are being started.
    threads: usize,
    senders: usize,
    /// Threads that were started later.
    later: Vec<JoinHandle<io::Result<()>>>,
}

/// Gives slow requests away.
pub(super) struct Slow<T = SlowRequest>(Arc<Queue<T>>);

/// Where a thread gets its slow requests from. All of them end when nobody can send any more.
pub(super) struct SlowRequests<T = SlowRequest>(Arc<Queue<T>>);

/// Looks after the threads that were started later.
pub(super) struct Later<T = SlowRequest>(Arc<Queue<T>>);

impl<T> Slow<T> {
    pub(super) fn new() -> Self {
        let (requests, later) = (VecDeque::new(), Vec::new());
        let state = State { requests, idle: 0, threads: 0, senders: 1, later };
        Self(Arc::new(Queue { state: Mutex::new(state), comes: Condvar::new() }))
    }

    /// A thread's end of it.
    pub(super) fn requests(&self) -> SlowRequests<T> {
        locked(&self.0.state).threads += 1;
        SlowRequests(self.0.clone())
    }

    pub(super) fn later(&self) -> Later<T> {
        Later(self.0.clone())
    }

    /// Gives a request to a thread. Where all are at work, and there may be one more, `start`
    /// starts it.
    ///
    /// # Errors
    /// When there are no threads any more.
    pub(super) fn send(
        &self,
        request: T,
        start: impl FnOnce(SlowRequests<T>) -> io::Result<JoinHandle<io::Result<()>>>,
    ) -> io::Result<()> {
        let mut state = locked(&self.0.state);
        if state.threads == 0 {
            return Err(io::Error::other("the threads for slow requests have ended"));
        }
        state.requests.push_back(request);
        self.0.comes.notify_one();
        if state.requests.len() > state.idle && state.threads < MOST {
            drop(state);
            // Without another thread it waits for those that there are.
            match start(self.requests()) {
                Ok(thread) => locked(&self.0.state).later.push(thread),
                Err(e) => log::warn!("no other thread for slow requests: {e}"),
            }
        }
        Ok(())
    }
}

impl<T> Clone for Slow<T> {
    fn clone(&self) -> Self {
        locked(&self.0.state).senders += 1;
        Self(self.0.clone())
    }
}

impl<T> Drop for Slow<T> {
    fn drop(&mut self) {
        let mut state = locked(&self.0.state);
        state.senders -= 1;
        if state.senders == 0 {
            self.0.comes.notify_all();
        }
    }
}

impl<T> Iterator for SlowRequests<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        let mut state = locked(&self.0.state);
        state.idle += 1;
        while state.requests.is_empty() && state.senders > 0 {
            state = self.0.comes.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.idle -= 1;
        state.requests.pop_front()
    }
}

impl<T> Drop for SlowRequests<T> {
    fn drop(&mut self) {
        locked(&self.0.state).threads -= 1;
    }
}

impl<T> Later<T> {
    /// The threads that were started later, when nobody sends any more.
    pub(super) fn threads(&self) -> Vec<JoinHandle<io::Result<()>>> {
        std::mem::take(&mut locked(&self.0.state).later)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn requests_that_wait_for_each_other_all_go_on_up_to_a_number() {
        // Each waits until all are under way; one thread is there at the beginning.
        let (slow, met) = (Slow::new(), Arc::new(Barrier::new(MOST)));
        let done = Arc::new(AtomicUsize::new(0));
        let work = |requests: SlowRequests<usize>| {
            let (met, done) = (met.clone(), done.clone());
            thread::Builder::new().spawn(move || {
                for request in requests {
                    if request < MOST {
                        met.wait();
                    }
                    done.fetch_add(1, Ordering::SeqCst);
                }
                Ok(())
            })
        };
        let first = work(slow.requests()).unwrap();
        let (later, last) = (slow.later(), slow.clone());
        (0..MOST + 20).for_each(|number| slow.send(number, work).unwrap());
        drop(slow);
        let threads = later.threads();
        assert!(threads.len() < MOST, "{}", threads.len());
        drop(last);
        threads.into_iter().chain([first]).for_each(|thread| thread.join().unwrap().unwrap());
        assert_eq!(done.load(Ordering::SeqCst), MOST + 20);
    }
}
