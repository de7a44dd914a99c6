//! The processors for a thread that serves the queues of some processors.
//!
//! A caller that waits for its request leaves its processor idle: a thread on that processor needs
//! no other processor to be woken, which costs more than a short request. Many requests at a time
//! come from a caller that does not wait: then the thread runs anywhere, beside its caller. So does
//! a thread with long reads into the page cache, which the kernel's readahead asks for while the
//! caller takes the bytes before them.

use rustix::fs::OFlags;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::ring::{EntryRequest, RingShare};
use crate::wire::op;

/// The number of simultaneous requests that shows callers which do not wait.
const CROWD: usize = 5;
/// A read of this many bytes takes longer than waking another processor.
const LONG: u32 = 64 << 10;
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
    /// The kernel has read ahead since the last wakeup.
    has_read_ahead: bool,
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
        Self { home: differs.then_some(home), all, is_home: false, score: 0, has_read_ahead: false }
    }

    /// Records a request that begins.
    pub fn begins(&mut self, request: &EntryRequest<'_>) {
        self.has_read_ahead |= is_readahead(request.header, request.arguments).unwrap_or(false);
    }

    /// Records how many requests have arrived together.
    pub fn arrived(&mut self, together: usize) {
        let has_read_ahead = std::mem::take(&mut self.has_read_ahead);
        let Some(home) = &self.home else { return };
        let crowd = together >= CROWD || has_read_ahead;
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

/// Whether a request (`fuse_in_header` and `fuse_read_in`, include/uapi/linux/fuse.h) is a long
/// read into the page cache. `None` for one that is too short for a read.
fn is_readahead(header: &[u8], arguments: &[u8]) -> Option<bool> {
    let word = |bytes: &[u8], at| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let (opcode, size, flags) = (word(header, 4)?, word(arguments, 16)?, word(arguments, 32)?);
    let is_direct = OFlags::from_bits_retain(flags).contains(OFlags::DIRECT);
    Some(opcode == op::READ && size >= LONG && !is_direct)
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
        let mut reads = |size: u32, flags: OFlags| {
            let (mut header, mut arguments) = ([0; 40], [0; 40]);
            header[4..8].copy_from_slice(&op::READ.to_ne_bytes());
            arguments[16..20].copy_from_slice(&size.to_ne_bytes());
            arguments[32..36].copy_from_slice(&flags.bits().to_ne_bytes());
            for _ in 0..2 * SURE {
                home.begins(&EntryRequest { header: &header, arguments: &arguments, payload: &[] });
                home.begins(&EntryRequest { header: &header[..30], arguments: &[], payload: &[] });
                home.arrived(1);
            }
            allowed()
        };
        assert_eq!(reads(LONG - 1, OFlags::empty()), 1);
        assert_eq!(reads(LONG, OFlags::empty()), before.count());
        assert_eq!(reads(LONG, OFlags::DIRECT), 1);
    }
}
