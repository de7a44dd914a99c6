//! Which CPU path runs a mode of AES fastest here, in each direction.
//!
//! The widest vectors are not always the fastest: CBC encrypts one block of each sector at a time, and gathers and scatters them. So
//! the paths are tried when a mode is first used, 64 KiB a call, a few calls each by turns: about 0.2 milliseconds for a mode and
//! direction, once in a process. A forced path is not tried.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::CryptDirection;
use super::schedule::{RoundKey, Schedule};
use super::table::{FunctionTable, Functions, SectorsFn};
use crate::CpuPath;

/// A mode whose path is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AesMode {
    Xts,
    Cbc,
}

/// The functions of each direction, encryption first.
#[derive(Clone, Copy)]
pub(super) struct DirectedFunctions(pub(super) [(CpuPath, &'static Functions); 2]);

impl DirectedFunctions {
    /// Those of one path.
    pub(super) fn of(path: CpuPath, functions: &'static Functions) -> Self {
        Self([(path, functions); 2])
    }

    pub(super) fn get(&self, direction: CryptDirection) -> &'static Functions {
        self.0[usize::from(direction == CryptDirection::Decrypt)].1
    }
}

/// Bytes of a try: sectors enough for all lanes of the widest vectors.
const TRIED: usize = 128 << 10;
/// Calls of a path.
const CALLS: usize = 4;
/// A narrower path must take so many percent less.
const MARGIN: u128 = 4;

/// By mode, direction, size of keys, and whether sectors are whole pages.
static FOUND: [[[[OnceLock<CpuPath>; 2]; 3]; 2]; 2] =
    [const { [const { [const { [const { OnceLock::new() }; 2] }; 3] }; 2] }; 2];

/// The functions for the `nth` size of keys that are fastest in sectors of `bytes` bytes, of the path `widest` and narrower ones.
pub(super) fn fastest(
    mode: AesMode,
    widest: CpuPath,
    nth: usize,
    bytes: usize,
    table: impl Fn(CpuPath) -> Option<&'static FunctionTable>,
) -> Option<DirectedFunctions> {
    let pages = usize::from(bytes.is_multiple_of(4096));
    let choose = |direction: CryptDirection| {
        let at = usize::from(direction == CryptDirection::Decrypt);
        let found = &FOUND[usize::from(mode == AesMode::Cbc)][at][nth][pages];
        let path = *found.get_or_init(|| try_paths(mode, direction, widest, nth, pages == 1, &table));
        Some((path, &table(path)?[nth]))
    };
    Some(DirectedFunctions([choose(CryptDirection::Encrypt)?, choose(CryptDirection::Decrypt)?]))
}

fn try_paths(
    mode: AesMode,
    direction: CryptDirection,
    widest: CpuPath,
    nth: usize,
    pages: bool,
    table: &impl Fn(CpuPath) -> Option<&'static FunctionTable>,
) -> CpuPath {
    let narrower = CpuPath::ALL.into_iter().rev().filter(|path| *path <= widest);
    let mut tried: Vec<(CpuPath, SectorsFn, Duration)> = narrower
        .filter_map(|path| Some((path, function(mode, direction, &table(path)?[nth]), Duration::MAX)))
        .collect();
    if tried.len() < 2 {
        return widest;
    }
    let sector = if pages { 4096 } else { 512 };
    // Keys of zeros: time does not depend on them.
    let schedule = Schedule::EMPTY;
    let keys: *const RoundKey = schedule.encrypt.as_ptr();
    let (mut data, ivs) = (vec![0u8; TRIED], vec![[0u8; 16]; TRIED / sector]);
    for _ in 0..CALLS {
        for (_, run, best) in &mut tried {
            let began = Instant::now();
            let at = data.as_mut_ptr();
            // SAFETY: `table` has only paths of this processor; there are as many keys as any size has, an IV for each sector, and the
            // sectors are in one buffer.
            unsafe { run(keys, ivs.as_ptr().cast(), TRIED / sector, sector, at, at) }
            *best = (*best).min(began.elapsed());
        }
    }
    let (_, _, first) = tried[0];
    let better = tried.iter().skip(1).min_by_key(|(_, _, time)| *time);
    let wins = |time: Duration| time.as_nanos() * (100 + MARGIN) < first.as_nanos() * 100;
    better.filter(|(_, _, time)| wins(*time)).map_or(widest, |(path, _, _)| *path)
}

fn function(mode: AesMode, direction: CryptDirection, functions: &Functions) -> SectorsFn {
    let nth = usize::from(direction == CryptDirection::Decrypt);
    match (mode, direction) {
        (AesMode::Xts, _) => functions.xts(TRIED).0[nth],
        (AesMode::Cbc, CryptDirection::Encrypt) => functions.cbc_encrypt,
        (AesMode::Cbc, CryptDirection::Decrypt) => functions.cbc_decrypt,
    }
}
