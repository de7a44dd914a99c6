//! The processors for a thread that serves the queues of some processors.
//!
//! A caller that waits for its request leaves its processor idle: a thread on that processor needs
//! no other processor to be woken, which costs more than a short request. Many requests at a time
//! come from a caller that does not wait: then the thread runs anywhere, beside its caller. So does
//! a thread with long answers, which the kernel's readahead asks for while the caller takes the
//! bytes before them.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::ring::RingShare;

/// The number of simultaneous requests that shows callers which do not wait.
const CROWD: usize = 5;
/// An answer of this many bytes takes much longer than waking another processor.
const LONG: usize = 256 << 10;
/// The thread moves after this many wakeups of one kind. A wakeup of the opposite kind counts less
/// when few requests arrive together.
const SURE: i32 = 64;
const STEP: i32 = 8;

/// The processors of one thread's queues.
#[derive(Debug)]
pub struct HomeProcessors {
    /// The processors. `None` when the thread may always run anywhere.
    home: Option<CpuSet>,
    all: CpuSet,
    is_home: bool,
    score: i32,
    /// A long answer was given since the last wakeup.
    was_long: bool,
}

impl HomeProcessors {
    /// Returns the processors of the calling thread, which serves this share.
    pub fn of(share: &RingShare) -> Self {
        let all = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        let mut home = CpuSet::new();
        let own = share.queues.iter().map(|queue| usize::from(*queue));
        own.filter(|&processor| processor < CpuSet::MAX_CPU && all.is_set(processor))
            .for_each(|processor| home.set(processor));
        let differs = home.count() > 0 && home.count() < all.count();
        Self { home: differs.then_some(home), all, is_home: false, score: 0, was_long: false }
    }

    /// Records the length of an answer's payload in bytes.
    pub fn answered(&mut self, len: usize) {
        self.was_long |= len >= LONG;
    }

    /// Records how many requests have arrived together.
    pub fn arrived(&mut self, together: usize) {
        let was_long = std::mem::take(&mut self.was_long);
        let Some(home) = &self.home else { return };
        let crowd = together >= CROWD || was_long;
        self.score = (self.score + if crowd { -STEP } else { 1 }).clamp(-SURE, SURE);
        let wanted = match self.score {
            SURE => true,
            score if score == -SURE => false,
            _ => return,
        };
        if wanted != self.is_home {
            self.is_home = wanted;
            // A processor that was removed since, or a sandbox: the thread runs where it may.
            let _ = sched_setaffinity(None, if wanted { home } else { &self.all });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_at_home_while_its_callers_wait() {
        let before = sched_getaffinity(None).unwrap();
        let Some(first) = (0..CpuSet::MAX_CPU).find(|&processor| before.is_set(processor)) else { return };
        let queues = vec![u16::try_from(first).unwrap()];
        let mut home = HomeProcessors::of(&RingShare { queues, each: 4, payload: 4096 });
        let allowed = || sched_getaffinity(None).unwrap().count();
        (1..SURE).for_each(|_| home.arrived(1));
        assert_eq!(allowed(), before.count());
        home.arrived(1);
        assert_eq!(allowed(), 1);
        home.arrived(CROWD);
        home.arrived(1);
        assert_eq!(allowed(), 1, "one crowd may be chance");
        (0..2 * SURE / STEP).for_each(|_| home.arrived(CROWD));
        assert_eq!(allowed(), before.count());
        let mut answers = |len| {
            for _ in 0..2 * SURE {
                home.answered(len);
                home.answered(0);
                home.arrived(1);
            }
        };
        answers(LONG - 1);
        assert_eq!(allowed(), 1);
        answers(LONG);
        assert_eq!(allowed(), before.count(), "the kernel reads ahead");
    }
}
