//! The crowd: a mount's idle threads while several clients are busy.
//!
//! In a crowd an idle thread sleeps in the read of its descriptor, instead of in its queue's ring.
//! The kernel then wakes one thread for a request, on the processor of the client, and a request
//! costs two system calls: the read and the reply.
//!
//! The crowd has one thread for each processor, and the other threads rest: the kernel wakes
//! readers in turn, and two threads serve two clients twice as fast as four do.
//!
//! When the queue of such a thread receives a message, the sender calls the thread (the queue's
//! [outside wakeup](underseal_datapath::Queue::set_outside_wakeup)): the kernel is asked for a
//! request without an answer ([`FuseChannel::wake_reader`]), which wakes a reader. If that is
//! another thread, it asks again, until the called thread is awake.
//!
//! ```text
//!   thread: asleep --> looks for messages --> reads     sender: message --> asleep? called, asks
//!   reader of that request: is a thread still called? asks again
//! ```

use std::num::NonZero;
use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::thread;

use underseal_fuse::FuseChannel;

const AWAKE: u8 = 0;
const ASLEEP: u8 = 1;
/// The state of a thread that sleeps in a read, and that has been called since.
const CALLED: u8 = 2;

/// The threads of one mount, and whether they are a crowd.
pub(super) struct Crowd {
    is_on: AtomicBool,
    /// The number of threads whose descriptors block, and the most.
    members: AtomicUsize,
    room: usize,
    /// The caller of the last request.
    caller: Padded<AtomicU32>,
    threads: Box<[Padded<AtomicU8>]>,
}

/// A cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Padded<T>(T);

impl Crowd {
    pub(super) fn new(threads: u16) -> Self {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        Self::of(threads, processors)
    }

    fn of(threads: u16, processors: usize) -> Self {
        Self {
            is_on: AtomicBool::new(false),
            members: AtomicUsize::new(0),
            room: processors.min(threads.into()),
            caller: Padded::default(),
            threads: (0..threads).map(|_| Padded::default()).collect(),
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(SeqCst)
    }

    /// Notes the caller of a request. Returns true when the request before had the same one.
    pub(super) fn is_next(&self, caller: u32) -> bool {
        let same = self.caller.0.load(Relaxed) == caller;
        if !same {
            self.caller.0.store(caller, Relaxed);
        }
        same
    }

    /// Notes that there are several clients. Returns true when the crowd begins: not where the
    /// kernel cannot wake readers.
    pub(super) fn begins(&self, channel: &FuseChannel) -> bool {
        self.room > 1 && !self.is_on() && channel.wake_reader().is_ok() && !self.is_on.swap(true, SeqCst)
    }

    /// Notes that there is one client, and wakes the threads that sleep in reads.
    pub(super) fn ends(&self, channel: &FuseChannel) {
        if self.is_on() && self.is_on.swap(false, SeqCst) {
            (0..).take(self.threads.len()).for_each(|thread| self.call(thread, channel));
        }
    }

    /// Returns true when the calling thread is one of the crowd from now on.
    pub(super) fn enter(&self) -> bool {
        let more = |members| (members < self.room).then_some(members + 1);
        self.members.fetch_update(SeqCst, SeqCst, more).is_ok()
    }

    pub(super) fn leave(&self) {
        self.members.fetch_sub(1, SeqCst);
    }

    /// Returns true when the crowd has all its threads: the others rest.
    pub(super) fn is_full(&self) -> bool {
        self.is_on() && self.members.load(SeqCst) >= self.room
    }

    /// Notes that the thread is going to sleep in a read. The thread then looks for messages once
    /// more.
    pub(super) fn sleeps(&self, thread: u16) {
        self.state(thread).store(ASLEEP, SeqCst);
    }

    pub(super) fn wakes(&self, thread: u16) {
        self.state(thread).store(AWAKE, SeqCst);
    }

    /// Wakes the thread if it sleeps in a read: the outside wakeup of its queue.
    pub(super) fn call(&self, thread: u16, channel: &FuseChannel) {
        if self.state(thread).compare_exchange(ASLEEP, CALLED, SeqCst, SeqCst).is_ok() {
            wake_reader(channel);
        }
    }

    /// Asks the kernel again for a called thread that is still asleep: another thread has read the
    /// request that was to wake it.
    pub(super) fn pass_on(&self, channel: &FuseChannel) {
        if self.threads.iter().any(|state| state.0.load(SeqCst) == CALLED) {
            wake_reader(channel);
        }
    }

    fn state(&self, thread: u16) -> &AtomicU8 {
        &self.threads[usize::from(thread)].0
    }
}

fn wake_reader(channel: &FuseChannel) {
    if let Err(e) = channel.wake_reader() {
        log::error!("a thread of a mount cannot be woken before its next request: {e}");
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSliceMut;

    use underseal_fuse::ReceivedRequest;
    use underseal_fuse::script::KernelScript;

    use super::*;
    use crate::Error;

    /// Runs `act` with a crowd of two threads, and returns how many times the kernel was asked for
    /// a wakeup.
    fn asked(act: impl FnOnce(&Crowd, &FuseChannel) + Send + 'static) -> usize {
        let script = KernelScript::<Error>::start(true, move |channel| {
            act(&Crowd::of(2, 2), &channel);
            Ok(())
        });
        let script = script.unwrap();
        let count = std::iter::from_fn(|| script.receive().ok().filter(|asked| !asked.is_empty())).count();
        script.end().unwrap();
        count
    }

    #[test]
    fn only_a_thread_that_sleeps_is_called_and_once() {
        assert_eq!(asked(|crowd, channel| crowd.call(1, channel)), 0);
        let twice = |crowd: &Crowd, channel: &FuseChannel| {
            crowd.sleeps(1);
            (0..2).for_each(|_| crowd.call(1, channel));
        };
        assert_eq!(asked(twice), 1);
        let awake = |crowd: &Crowd, channel: &FuseChannel| {
            crowd.sleeps(1);
            crowd.wakes(1);
            crowd.call(1, channel);
        };
        assert_eq!(asked(awake), 0);
    }

    #[test]
    fn a_call_is_passed_on_until_the_called_thread_is_awake() {
        let called = |crowd: &Crowd, channel: &FuseChannel| {
            crowd.sleeps(0);
            crowd.sleeps(1);
            crowd.pass_on(channel);
            crowd.call(1, channel);
            (0..3).for_each(|_| crowd.pass_on(channel));
            crowd.wakes(1);
            crowd.pass_on(channel);
        };
        assert_eq!(asked(called), 4);
    }

    #[test]
    fn the_end_of_a_crowd_wakes_all_threads() {
        let ends = |crowd: &Crowd, channel: &FuseChannel| {
            assert!(crowd.begins(channel) && !crowd.begins(channel));
            (0..2).for_each(|thread| crowd.sleeps(thread));
            crowd.ends(channel);
            crowd.ends(channel);
        };
        assert_eq!(asked(ends), 3);
    }

    #[test]
    fn one_thread_is_no_crowd_and_neither_are_threads_that_cannot_be_woken() {
        asked(|_, channel| assert!(!Crowd::of(1, 8).begins(channel) && !Crowd::of(8, 1).begins(channel)));
        let script = KernelScript::<Error>::start(true, |channel| {
            assert_eq!(channel.receive(&mut [IoSliceMut::new(&mut [0])])?, ReceivedRequest::Ended);
            let crowd = Crowd::of(2, 2);
            assert!(!crowd.begins(&channel) && !crowd.is_on());
            Ok(())
        });
        script.unwrap().end().unwrap();
    }

    #[test]
    fn a_caller_is_the_next_one_if_the_request_before_was_its_own() {
        let crowd = Crowd::of(2, 2);
        let callers = [7, 7, 8, 7, 7];
        assert_eq!(callers.map(|caller| crowd.is_next(caller)), [false, true, false, false, true]);
    }

    #[test]
    fn a_crowd_has_as_many_threads_as_processors() {
        let crowd = Crowd::of(4, 2);
        crowd.is_on.store(true, SeqCst);
        assert!(crowd.enter() && !crowd.is_full());
        assert!(crowd.enter() && crowd.is_full() && !crowd.enter());
        crowd.leave();
        assert!(!crowd.is_full() && crowd.enter());
        crowd.is_on.store(false, SeqCst);
        assert!(!crowd.is_full(), "no thread rests because of a crowd that is over");
    }
}
