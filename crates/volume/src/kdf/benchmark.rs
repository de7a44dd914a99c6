//! A measurement of how much work this machine does in the time of an unlock.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::{Argon2Variant, Kdf, KdfLimits, PbkdfKind};
use crate::{Error, ErrorKind, Hash, Result};

/// The key derivation of a new keyslot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pbkdf {
    /// The algorithm.
    pub kind: PbkdfKind,
    /// The cost of an unlock.
    pub cost: Cost,
    /// Argon2: the most memory in KiB with a time, exactly this much with forced passes.
    pub memory_kib: u32,
    /// Argon2: the most lanes.
    pub lanes: u32,
}

/// The work of an unlock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cost {
    /// The work that this machine does in this time.
    Time(Duration),
    /// This many PBKDF2 rounds or Argon2 passes.
    Iterations(u32),
}

/// The fewest PBKDF2 rounds, of keyslots and digests: cryptsetup's floor.
pub(crate) const MIN_ITERATIONS: u32 = 1000;
/// The fewest Argon2 passes and the least memory that a benchmark chooses: cryptsetup's floors.
const MIN_PASSES: u32 = 4;
const MIN_MEMORY_KIB: u32 = 32 << 10;
/// The most memory with which cryptsetup opens a keyslot.
const MAX_MEMORY_KIB: u32 = 4 << 20;
const MAX_LANES: u32 = 4;
/// The memory of the run that is measured to predict other runs.
const PROBE_KIB: u32 = 16 << 10;

impl Pbkdf {
    /// The default of cryptsetup for LUKS2: Argon2id for two seconds with at most 1 GiB (or half of
    /// this machine's memory) and four lanes (or the number of processors).
    pub fn argon2id() -> Self {
        Self {
            kind: PbkdfKind::Argon2id,
            cost: Cost::Time(Duration::from_secs(2)),
            memory_kib: (1 << 20).min(physical_memory_kib() / 2),
            lanes: std::thread::available_parallelism()
                .map_or(1, |n| u32::try_from(n.get()).map_or(MAX_LANES, |n| n.min(MAX_LANES))),
        }
    }

    /// The default of cryptsetup for LUKS1: PBKDF2 for two seconds.
    pub fn pbkdf2() -> Self {
        Self { kind: PbkdfKind::Pbkdf2, ..Self::argon2id() }
    }

    /// Returns the parameters of a new keyslot whose derived key has `len` bytes, measured on this
    /// machine if they are not forced, with a fresh salt.
    ///
    /// # Errors
    /// `BadOption` for values out of range, `Memory` when no memory is left for the measurement.
    pub fn settle(&self, hash: Hash, len: usize) -> Result<Kdf> {
        let bad = |why: String| Err(Error::new(ErrorKind::BadOption, why));
        if let Cost::Time(time) = self.cost
            && !(Duration::from_millis(1)..=Duration::from_secs(3600)).contains(&time)
        {
            return bad(format!("an unlock time of {time:?} is not within 1 ms and an hour"));
        }
        let salt = crate::random::bytes::<32>()?.to_vec();
        let variant = match self.kind {
            PbkdfKind::Pbkdf2 => {
                let iterations = match self.cost {
                    Cost::Time(time) => pbkdf2_iterations(hash, len, time),
                    Cost::Iterations(n) if n < MIN_ITERATIONS => {
                        return bad(format!("{n} PBKDF2 iterations are too few: at least {MIN_ITERATIONS}"));
                    }
                    Cost::Iterations(n) => n,
                };
                return Ok(Kdf::Pbkdf2 { hash, iterations, salt });
            }
            PbkdfKind::Argon2i => Argon2Variant::Argon2i,
            PbkdfKind::Argon2id => Argon2Variant::Argon2id,
        };
        if !(1..=MAX_LANES).contains(&self.lanes) {
            return bad(format!("{} Argon2 lanes: from 1 to {MAX_LANES}", self.lanes));
        }
        if !(32..=MAX_MEMORY_KIB).contains(&self.memory_kib) {
            return bad(format!("{} KiB of Argon2 memory: from 32 to {MAX_MEMORY_KIB}", self.memory_kib));
        }
        let (passes, memory_kib) = match self.cost {
            Cost::Iterations(n) if n < MIN_PASSES => {
                return bad(format!("{n} Argon2 passes are too few: at least {MIN_PASSES}"));
            }
            Cost::Iterations(n) => (n, self.memory_kib),
            Cost::Time(time) => argon2_cost(variant, self.memory_kib, self.lanes, time)?,
        };
        Ok(Kdf::Argon2 { variant, passes, memory_kib, lanes: self.lanes, salt })
    }

    /// Returns the rounds of a digest of `len` bytes over the volume key: an eighth of a second, or
    /// the floor with forced costs.
    ///
    /// The volume key is random, so these rounds need not slow a guess down.
    pub(crate) fn digest_iterations(&self, hash: Hash, len: usize) -> u32 {
        match self.cost {
            Cost::Iterations(_) => MIN_ITERATIONS,
            Cost::Time(time) => pbkdf2_iterations(hash, len, time.min(Duration::from_millis(125))),
        }
    }
}

/// Estimates the time of a derivation of `len` bytes on this machine, from a short run.
pub(crate) fn estimate(kdf: &Kdf, len: usize) -> Result<Duration> {
    const SHORT: Duration = Duration::from_millis(100);
    let per_unit = |units: f64| SHORT.as_secs_f64() / units;
    let seconds = match kdf {
        Kdf::Pbkdf2 { hash, iterations, .. } => {
            f64::from(*iterations) * per_unit(pbkdf2_iterations(*hash, len, SHORT).into())
        }
        Kdf::Argon2 { variant, passes, memory_kib, lanes, .. } => {
            // A small run fits the caches: the whole one takes longer, never less.
            let probe_kib = (*memory_kib).min(PROBE_KIB.max(8 * lanes));
            let probe = Kdf::Argon2 {
                variant: *variant,
                passes: 1,
                memory_kib: probe_kib,
                lanes: *lanes,
                salt: vec![0; 32],
            };
            let start = Instant::now();
            probe.derive(b"foobar", 32, &KdfLimits::NONE)?;
            let work = f64::from(*passes) * f64::from(*memory_kib);
            start.elapsed().as_secs_f64() * work / f64::from(probe_kib)
        }
    };
    Ok(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

/// Returns the PBKDF2 rounds that take `time` for `len` bytes, scaled from a shorter run.
fn pbkdf2_iterations(hash: Hash, len: usize, time: Duration) -> u32 {
    let mut out = vec![0; len];
    let mut rounds = MIN_ITERATIONS;
    loop {
        // The processor time is measured, not the wall clock: other work on the machine must not
        // make the key easier to guess.
        let start = processor_time();
        hash.pbkdf2(b"foobarfo", b"0123456789abcdef", rounds, &mut out);
        let took = processor_time().saturating_sub(start);
        if took >= Duration::from_millis(50) || rounds >= 1 << 27 {
            let per_second = f64::from(rounds) / took.as_secs_f64().max(1e-9);
            // A float above u32::MAX saturates.
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "saturates, positive"
            )]
            return ((per_second * time.as_secs_f64()) as u32).max(MIN_ITERATIONS);
        }
        rounds *= 4;
    }
}

/// Returns the processor time that this thread has used.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Returns the passes and the memory that take `time`: first as much memory as permitted, then
/// passes.
///
/// Measured twice: a small run finds how much memory fits the time, and a run with that memory
/// corrects it, since beyond the caches each block costs more.
fn argon2_cost(variant: Argon2Variant, max_kib: u32, lanes: u32, time: Duration) -> Result<(u32, u32)> {
    let floor = MIN_MEMORY_KIB.min(max_kib);
    let (mut passes, mut memory_kib) = (MIN_PASSES, floor);
    for _ in 0..2 {
        let limits = KdfLimits { memory_kib, lanes, argon2_work_kib: u64::MAX, rounds: 0, time: None };
        let probe = Kdf::Argon2 { variant, passes, memory_kib, lanes, salt: vec![0; 32] };
        let start = Instant::now();
        probe.derive(b"foobar", 32, &limits)?;
        let per_second = f64::from(passes) * f64::from(memory_kib) / start.elapsed().as_secs_f64().max(1e-9);
        let work = per_second * time.as_secs_f64();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, positive")]
        {
            memory_kib = ((work / f64::from(MIN_PASSES)) as u32).clamp(floor, max_kib);
            passes = ((work / f64::from(memory_kib)) as u32).max(MIN_PASSES);
        }
    }
    Ok((passes, memory_kib))
}

/// Returns this machine's memory in bytes, saturating.
pub(crate) fn physical_memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(info.mem_unit.into())
}

/// Returns this machine's memory in KiB.
pub(crate) fn physical_memory_kib() -> u32 {
    u32::try_from(physical_memory() >> 10).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Cost = Cost::Time(Duration::from_millis(30));

    #[test]
    fn a_benchmark_stays_within_its_bounds_and_salts_differ() {
        let argon2 = Pbkdf { cost: SHORT, memory_kib: 64 << 10, lanes: 2, ..Pbkdf::argon2id() };
        let Kdf::Argon2 { passes, memory_kib, lanes, salt, .. } = argon2.settle(Hash::Sha256, 64).unwrap()
        else {
            panic!("asked for Argon2");
        };
        assert!(passes >= MIN_PASSES && (MIN_MEMORY_KIB..=64 << 10).contains(&memory_kib) && lanes == 2);
        assert!(argon2.settle(Hash::Sha256, 64).unwrap().salt() != salt);
        let small = Pbkdf { memory_kib: 64, ..argon2 };
        assert!(matches!(small.settle(Hash::Sha256, 64).unwrap(), Kdf::Argon2 { memory_kib: 64, .. }));
    }

    #[test]
    fn more_time_buys_more_iterations() {
        let pbkdf2 = |ms| Pbkdf { cost: Cost::Time(Duration::from_millis(ms)), ..Pbkdf::pbkdf2() };
        let iterations = |ms| match pbkdf2(ms).settle(Hash::Sha256, 32).unwrap() {
            Kdf::Pbkdf2 { iterations, .. } => iterations,
            Kdf::Argon2 { .. } => panic!("asked for PBKDF2"),
        };
        assert!(iterations(1) >= MIN_ITERATIONS);
        // The time is a hundred times as long; caches and clock rates do not distort a measurement
        // that much.
        assert!(iterations(1000) > iterations(10));
    }

    #[test]
    fn forced_costs_are_taken_as_they_are() {
        let forced = Pbkdf { cost: Cost::Iterations(7), memory_kib: 100, lanes: 1, ..Pbkdf::argon2id() };
        let kdf = forced.settle(Hash::Sha256, 64).unwrap();
        assert!(matches!(kdf, Kdf::Argon2 { passes: 7, memory_kib: 100, lanes: 1, .. }), "{kdf:?}");
        assert_eq!(forced.digest_iterations(Hash::Sha256, 32), MIN_ITERATIONS);
    }
}
