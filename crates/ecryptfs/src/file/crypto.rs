//! The threads that run a request's crypto: the thread of the request, and workers for parts of it.
//!
//! ```text
//!   run of extents --inline--> one call
//!                  --shared--> | part 0: this thread | part 1: a worker | ..   then it waits
//! ```
//! Adaptive is inline until sharing saves more time than twice a worker's reaction time; both are
//! measured while the mount runs. So small requests never wait for a worker, and large requests use
//! workers only when a processor is idle.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rayon_core::{ThreadPool, ThreadPoolBuilder};

use crate::{Contents, EXTENT, Error, ErrorKind};

/// How the crypto of requests is dispatched; the names are those of volumes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CryptoPolicy {
    /// On the request's own thread.
    Inline,
    /// Large requests are shared with workers.
    Workers,
    /// Large requests are shared when that is measured to save time.
    #[default]
    Adaptive,
}

/// The crypto of a mount's files.
pub struct Crypto {
    policy: CryptoPolicy,
    /// Created when the first request is shared. `None` when the system has no threads left.
    pool: OnceLock<Option<ThreadPool>>,
    /// Picoseconds a byte, encryption and decryption; 0 before the first request.
    costs: [AtomicU64; 2],
    /// Nanoseconds from waking a worker until it begins.
    reaction: AtomicU64,
}

#[derive(Debug, Clone, Copy)]
enum Direction {
    Encrypt,
    Decrypt,
}

/// The smallest part worth a worker: some ten microseconds of AES.
const PART: usize = 64 << 10;

/// The assumed reaction time of a worker before the first measurement, in nanoseconds.
const FIRST_REACTION: u64 = 30_000;

impl Crypto {
    /// Returns the crypto under a policy. No thread is created yet.
    pub fn new(policy: CryptoPolicy) -> Self {
        Self { policy, pool: OnceLock::new(), costs: Default::default(), reaction: FIRST_REACTION.into() }
    }

    /// Encrypts extents in place, from the file's extent `first` on.
    pub(super) fn encrypt(&self, contents: &Contents, first: u64, run: &mut [u8]) {
        self.crypt(Direction::Encrypt, contents, first, run);
    }

    /// Decrypts extents in place, from the file's extent `first` on.
    pub(super) fn decrypt(&self, contents: &Contents, first: u64, run: &mut [u8]) {
        self.crypt(Direction::Decrypt, contents, first, run);
    }

    fn crypt(&self, direction: Direction, contents: &Contents, first: u64, run: &mut [u8]) {
        let parts = self.parts(direction, run.len());
        match self.workers().filter(|_| parts > 1) {
            Some(workers) => self.share(workers, parts, direction, contents, first, run),
            None if run.len() < PART => direction.crypt(contents, first, run),
            None => {
                let began = Instant::now();
                direction.crypt(contents, first, run);
                self.has_cost(direction, run.len(), began.elapsed());
            }
        }
    }

    /// Returns the number of parts of a run.
    fn parts(&self, direction: Direction, len: usize) -> usize {
        let most = processors().min(len / PART);
        if most < 2 {
            return 1;
        }
        let saves = || {
            let cost = self.costs[direction as usize].load(Relaxed).saturating_mul(len as u64) / 1000;
            let reaction = self.reaction.load(Relaxed);
            // So that a slow worker gets another chance later.
            self.reaction.store(reaction - reaction / 256, Relaxed);
            cost - cost / most as u64 > reaction.saturating_mul(2)
        };
        match self.policy {
            CryptoPolicy::Inline => 1,
            CryptoPolicy::Workers => most,
            CryptoPolicy::Adaptive => {
                if saves() {
                    most
                } else {
                    1
                }
            }
        }
    }

    fn share(
        &self,
        workers: &ThreadPool,
        parts: usize,
        direction: Direction,
        contents: &Contents,
        first: u64,
        run: &mut [u8],
    ) {
        let extents = (run.len() / EXTENT).div_ceil(parts);
        let (mine, theirs) = run.split_at_mut(extents * EXTENT);
        let asked = Instant::now();
        workers.in_place_scope(|scope| {
            for (part, number) in theirs.chunks_mut(extents * EXTENT).zip(1..) {
                scope.spawn(move |_| {
                    self.came_after(asked.elapsed());
                    direction.crypt(contents, first + number * extents as u64, part);
                });
            }
            let began = Instant::now();
            direction.crypt(contents, first, mine);
            self.has_cost(direction, mine.len(), began.elapsed());
        });
    }

    fn workers(&self) -> Option<&ThreadPool> {
        let make = || {
            let threads = processors().saturating_sub(1).max(1);
            let named = ThreadPoolBuilder::new().num_threads(threads).thread_name(|n| format!("crypto {n}"));
            named.build().inspect_err(|e| log::warn!("no workers for the crypto: {e}")).ok()
        };
        (self.policy != CryptoPolicy::Inline).then(|| self.pool.get_or_init(make).as_ref())?
    }

    fn has_cost(&self, direction: Direction, len: usize, took: Duration) {
        let now = nanos(took).saturating_mul(1000) / len.max(1) as u64;
        let cost = &self.costs[direction as usize];
        cost.store(blend(cost.load(Relaxed), now), Relaxed);
    }

    fn came_after(&self, took: Duration) {
        self.reaction.store(blend(self.reaction.load(Relaxed), nanos(took)), Relaxed);
    }
}

impl Direction {
    fn crypt(self, contents: &Contents, first: u64, run: &mut [u8]) {
        match self {
            Self::Encrypt => contents.encrypt(first, run),
            Self::Decrypt => contents.decrypt(first, run),
        }
    }
}

/// Averages a measured value: each new measurement counts an eighth. Of two simultaneous threads
/// one measurement is lost, which is fine for an estimate.
fn blend(before: u64, now: u64) -> u64 {
    if before == 0 { now } else { before - before / 8 + now / 8 }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn processors() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

impl FromStr for CryptoPolicy {
    type Err = Error;

    fn from_str(text: &str) -> crate::Result<Self> {
        match text {
            "inline" => Ok(Self::Inline),
            "workers" => Ok(Self::Workers),
            "adaptive" => Ok(Self::Adaptive),
            _ => {
                let context = format!("\"{text}\" is no policy: inline, workers, adaptive");
                Err(Error::new(ErrorKind::BadOption, context))
            }
        }
    }
}

impl fmt::Debug for Crypto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Crypto({:?})", self.policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cipher, FileKey};

    #[test]
    fn every_policy_makes_the_same_bytes() {
        let contents = FileKey::random(Cipher::DEFAULT).unwrap().contents().unwrap();
        for extents in [1, 15, 16, 31, 32, 33, 47, 100, 256] {
            let plain: Vec<u8> = (0..251_u8).cycle().take(extents * EXTENT).collect();
            let mut expected = plain.clone();
            contents.encrypt(9, &mut expected);
            for policy in [CryptoPolicy::Inline, CryptoPolicy::Workers, CryptoPolicy::Adaptive] {
                let crypto = Crypto::new(policy);
                for _ in 0..3 {
                    let mut run = plain.clone();
                    crypto.encrypt(&contents, 9, &mut run);
                    assert!(run == expected, "{policy:?}, {extents} extents");
                    crypto.decrypt(&contents, 9, &mut run);
                    assert!(run == plain, "{policy:?}, {extents} extents");
                }
            }
        }
    }

    #[test]
    fn adaptive_shares_when_that_saves_twice_what_a_worker_takes() {
        let crypto = Crypto::new(CryptoPolicy::Adaptive);
        let parts = |cost: u64, reaction: u64| {
            crypto.costs[Direction::Decrypt as usize].store(cost, Relaxed);
            crypto.reaction.store(reaction, Relaxed);
            crypto.parts(Direction::Decrypt, 1 << 20)
        };
        // In all 105 us, at least half of which is saved.
        assert_eq!(parts(100, 60_000), 1);
        assert_eq!(parts(100, 10_000), processors().min(16));
        assert_eq!(parts(0, 10_000), 1, "nothing is known yet");
        assert_eq!(Crypto::new(CryptoPolicy::Inline).parts(Direction::Encrypt, 1 << 20), 1);
        assert_eq!(Crypto::new(CryptoPolicy::Workers).parts(Direction::Encrypt, PART), 1);
    }
}
