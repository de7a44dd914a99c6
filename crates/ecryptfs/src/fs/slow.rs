//! Requests that may take long, and the threads that serve them, so that the threads that receive
//! requests are free for others.
//!
//! Slow requests are growth, cuts, fsync and fallocate, every request for a file's bytes while one
//! of those runs in it, and requests that may use the files of long names. The kernel accepts a
//! reply only by the way of its request, so the way is stored with the request. When all threads
//! are busy, another thread is started for the next request.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::dispatch::ReplyPath;
use super::locked;

/// The number of threads for slow requests that are started with the mount.
pub(super) const THREADS: usize = 8;
/// The largest number of threads for slow requests. Further slow requests wait for each other only.
const MOST: usize = 64;

/// A request as it was received.
pub(super) struct SlowRequest {
    pub(super) back: ReplyPath,
    pub(super) bytes: Vec<u8>,
}

/// The shared state of the threads.
struct Queue<T> {
    state: Mutex<State<T>>,
    comes: Condvar,
}

struct State<T> {
    requests: VecDeque<T>,
    /// The number of threads that wait for a request.
    idle: usize,
    /// The number of threads that have not ended, including threads that are being started.
    threads: usize,
    senders: usize,
    /// The threads that were started later.
    later: Vec<JoinHandle<io::Result<()>>>,
}

/// The sending end of slow requests.
pub(super) struct Slow<T = SlowRequest>(Arc<Queue<T>>);

/// The receiving end of slow requests. It ends when no sender is left.
pub(super) struct SlowRequests<T = SlowRequest>(Arc<Queue<T>>);

/// Access to the threads that were started later.
pub(super) struct Later<T = SlowRequest>(Arc<Queue<T>>);

impl<T> Slow<T> {
    pub(super) fn new() -> Self {
        let (requests, later) = (VecDeque::new(), Vec::new());
        let state = State { requests, idle: 0, threads: 0, senders: 1, later };
        Self(Arc::new(Queue { state: Mutex::new(state), comes: Condvar::new() }))
    }

    /// Returns a receiving end for a thread.
    pub(super) fn requests(&self) -> SlowRequests<T> {
        locked(&self.0.state).threads += 1;
        SlowRequests(self.0.clone())
    }

    pub(super) fn later(&self) -> Later<T> {
        Later(self.0.clone())
    }

    /// Sends a request to a thread. If all threads are busy, and their number is below the limit,
    /// `start` starts another thread.
    ///
    /// Fails when no thread is left.
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
            // Without another thread the request waits for the present threads.
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
    /// Returns the threads that were started later, once no sender is left.
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
        // Each request waits until all are in progress; one thread exists at the beginning.
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
