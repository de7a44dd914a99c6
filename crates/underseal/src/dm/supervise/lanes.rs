//! The threads that answer calls. A call's path may lie in a mapped file whose server never answers
//! (FUSE), and the thread that looks at it waits with the caller, so each user has a lane of
//! threads.
//!
//! ```text
//!   the listener's thread   receives, and touches nothing of the callers
//!     |- give                 -> a lane: up to 16 threads, and calls that wait for one
//!   late                    lets waiting calls go where a lane has not moved for 5 s
//! ```
//!
//! A call that is let go is made by the kernel, as one of a program without a supervisor: the
//! caller waits there for its own server, if at all.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How many calls of one user are answered at a time.
const LANE: usize = 16;
/// How many calls of all other users than the back end's are answered at a time.
const OTHERS: usize = 64;
/// The time after which a lane in which nothing has begun or ended counts as stuck.
const STUCK: Duration = Duration::from_secs(5);

/// Lanes for calls of the type `C`. A call that is dropped is left to the kernel.
pub(super) struct Lanes<C> {
    /// The back end's user, whose lane the others' number does not limit.
    own: u32,
    answer: Box<dyn Fn(C) + Send + Sync>,
    state: Mutex<LaneState<C>>,
    /// Wakes idle threads.
    given: Condvar,
    /// Wakes the thread that lets calls go.
    queued: Condvar,
}

struct LaneState<C> {
    lanes: BTreeMap<u32, Lane<C>>,
    /// How many calls of other users than the back end's are being answered.
    others: usize,
    /// Calls for idle threads, and the number of idle threads that none of these is for.
    given: VecDeque<(u32, C)>,
    idle: usize,
}

/// The calls of one user. A lane exists while calls in it are being answered.
struct Lane<C> {
    busy: usize,
    /// When an answer last began or ended.
    moved: Instant,
    waiting: VecDeque<C>,
}

impl<C: Send + 'static> Lanes<C> {
    /// Lanes whose threads call `answer`; `own` is the back end's user.
    pub(super) fn new(own: u32, answer: impl Fn(C) + Send + Sync + 'static) -> io::Result<Arc<Self>> {
        let state = LaneState { lanes: BTreeMap::new(), others: 0, given: VecDeque::new(), idle: 0 };
        let lanes = Arc::new(Self {
            own,
            answer: Box::new(answer),
            state: Mutex::new(state),
            given: Condvar::new(),
            queued: Condvar::new(),
        });
        let late = lanes.clone();
        thread::Builder::new().name("late".into()).spawn(move || late.let_go())?;
        Ok(lanes)
    }

    /// Has a call of a user answered, soon or never. Returns at once.
    pub(super) fn give(self: &Arc<Self>, user: u32, call: C) {
        let now = Instant::now();
        let is_other = user != self.own;
        let mut state = self.lock();
        let has_room = !is_other || state.others < OTHERS;
        let lane = state.lanes.entry(user).or_insert_with(|| Lane::new(now));
        if lane.busy >= LANE || !has_room {
            if lane.busy == 0 {
                state.lanes.remove(&user);
            } else if !lane.is_stuck(now) {
                lane.waiting.push_back(call);
                self.queued.notify_one();
                return;
            }
            // Neither has the lane a thread, nor will it have one soon.
            drop(state);
            return drop(call);
        }
        lane.busy += 1;
        lane.moved = now;
        state.others += usize::from(is_other);
        if state.idle > 0 {
            state.idle -= 1;
            state.given.push_back((user, call));
            self.given.notify_one();
            return;
        }
        drop(state);
        let lanes = self.clone();
        if let Err(e) = thread::Builder::new().name("answer".into()).spawn(move || lanes.run(user, call)) {
            log::error!("no thread for a call: {e}");
            self.give_up(user);
        }
    }

    /// Leaves the calls to the kernel that a thread would have answered which there is not.
    fn give_up(&self, user: u32) {
        loop {
            let next = self.lock().ended(user, user != self.own);
            if next.is_none() {
                return;
            }
        }
    }

    /// Answers one call after the other.
    fn run(&self, mut user: u32, mut call: C) {
        loop {
            (self.answer)(call);
            (user, call) = self.next(user);
        }
    }

    /// Returns the next call of the same lane, or of any when that has none.
    fn next(&self, user: u32) -> (u32, C) {
        let mut state = self.lock();
        if let Some(call) = state.ended(user, user != self.own) {
            return (user, call);
        }
        state.idle += 1;
        loop {
            if let Some(given) = state.given.pop_front() {
                return given;
            }
            state = self.given.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets calls go that wait in stuck lanes, for ever.
    fn let_go(&self) {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            let stuck = state.lanes.values_mut().filter(|lane| lane.is_stuck(now));
            let calls: Vec<_> = stuck.flat_map(|lane| lane.waiting.drain(..)).collect();
            if !calls.is_empty() {
                drop(state);
                log::warn!("{} calls are left to the kernel: earlier ones of their user hang", calls.len());
                drop(calls);
                state = self.lock();
                continue;
            }
            let waiting = state.lanes.values().filter(|lane| !lane.waiting.is_empty());
            let next = waiting.map(|lane| STUCK.saturating_sub(now - lane.moved)).min();
            state = match next {
                Some(rest) => self.queued.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner).0,
                None => self.queued.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, LaneState<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C> LaneState<C> {
    /// Notes the end of an answer. Returns the lane's next call, which the same thread answers.
    fn ended(&mut self, user: u32, is_other: bool) -> Option<C> {
        let lane = self.lanes.get_mut(&user)?;
        lane.moved = Instant::now();
        let next = lane.waiting.pop_front();
        if next.is_none() {
            lane.busy -= 1;
            self.others -= usize::from(is_other);
            if lane.busy == 0 {
                self.lanes.remove(&user);
            }
        }
        next
    }
}

impl<C> Lane<C> {
    fn new(now: Instant) -> Self {
        Self { busy: 0, moved: now, waiting: VecDeque::new() }
    }

    fn is_stuck(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.moved) >= STUCK
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

    use super::*;

    const SOON: Duration = Duration::from_secs(30);

    /// A call that is answered, or dropped.
    struct Call {
        /// Answered at once when there is nothing to wait for.
        waits: Option<Receiver<()>>,
        answered: bool,
        user: u32,
        ends: Sender<(u32, bool)>,
    }

    impl Drop for Call {
        fn drop(&mut self) {
            let _ = self.ends.send((self.user, self.answered));
        }
    }

    #[test]
    fn a_user_whose_calls_hang_holds_up_no_other_and_leaves_the_rest_to_the_kernel() {
        let lanes = Lanes::new(0, |mut call: Call| {
            call.answered = call.waits.take().is_none_or(|waits| waits.recv().is_ok());
        })
        .unwrap();
        let (ends, ended) = channel();
        let give = |user: u32, waits| {
            lanes.give(user, Call { waits, answered: false, user, ends: ends.clone() });
        };
        let mut held = Vec::new();
        let hang = |user: u32, held: &mut Vec<_>| {
            let (holds, waits) = channel();
            held.push(holds);
            give(user, Some(waits));
        };
        // More than the lane has threads; the last wait for one.
        (0..=LANE).for_each(|_| hang(1, &mut held));
        give(0, None);
        give(2, None);
        let mut two = [(); 2].map(|()| ended.recv_timeout(SOON).unwrap());
        two.sort_unstable();
        assert_eq!(two, [(0, true), (2, true)]);
        // The waiting one is let go, and a further one at once.
        assert_eq!(ended.recv_timeout(SOON), Ok((1, false)));
        let begun = Instant::now();
        give(1, None);
        assert_eq!(ended.recv_timeout(SOON), Ok((1, false)));
        assert!(begun.elapsed() < STUCK / 2);
        // All threads for others hang; the back end's user has some still.
        (2..).take(OTHERS / LANE - 1).for_each(|user| (0..LANE).for_each(|_| hang(user, &mut held)));
        give(99, None);
        assert_eq!(ended.recv_timeout(SOON), Ok((99, false)));
        give(0, None);
        assert_eq!(ended.recv_timeout(SOON), Ok((0, true)));
        assert_eq!(ended.recv_timeout(Duration::from_millis(50)), Err(RecvTimeoutError::Timeout));
        // Calls that hung are answered, and all lanes are there again.
        for holds in &held {
            let _ = holds.send(());
        }
        assert!((0..OTHERS).all(|_| ended.recv_timeout(SOON).unwrap().1));
        let until = Instant::now() + SOON;
        while !lanes.lock().lanes.is_empty() {
            assert!(Instant::now() < until, "a lane stays");
            thread::yield_now();
        }
        (0..OTHERS).for_each(|_| give(99, None));
        assert!((0..OTHERS).all(|_| ended.recv_timeout(SOON) == Ok((99, true))));
    }
}
