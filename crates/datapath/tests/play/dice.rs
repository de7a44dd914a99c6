//! Random numbers from a seed.

/// The splitmix64 generator (Steele, Lea and Flood, 2014).
#[derive(Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Independent dice for one of several threads.
    pub(crate) fn of(seed: u64, number: u64) -> Self {
        Self(mix(seed ^ mix(number.wrapping_add(1))))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// True once in `times` times, in the mean.
    pub(crate) fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn pick<T: Clone>(&mut self, all: &[T]) -> T {
        all[usize::try_from(self.below(all.len() as u64)).unwrap()].clone()
    }

    /// A length from 1 to `most`, mostly small.
    pub(crate) fn length(&mut self, most: u64) -> u64 {
        let shift = self.below(u64::from(most.max(1).ilog2()) + 1);
        1 + self.below((most >> shift).max(1))
    }
}

pub(crate) fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A random seed.
pub(crate) fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    mix(u64::try_from(now.as_nanos() & u128::from(u64::MAX)).unwrap() ^ u64::from(std::process::id()))
}
