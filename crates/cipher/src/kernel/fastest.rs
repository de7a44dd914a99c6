//! The CPU path that encrypts fastest with AES-CBC on this processor.
//!
//! The widest vectors are not always the fastest: CBC encrypts one block of each sector at a time,
//! and gathers and scatters them. So the paths are tried when AES-CBC is first used, 128 KiB a
//! call, eight calls each by turns: about 0.4 milliseconds, once in a process for each size of
//! keys. A forced path is not tried. CBC's decryption and XTS take the widest vectors: on a Zen 4
//! `vaes256` is up to 5% faster than `avx512` in XTS of 64 KiB, and 14% slower in that of 4 KiB.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::CryptDirection;
use super::schedule::{RoundKey, Schedule};
use super::table::{FunctionTable, Functions, SectorsFn};
use crate::CpuPath;

/// The functions of each direction, encryption first.
#[derive(Clone, Copy)]
pub(super) struct DirectedFunctions(pub(super) [(CpuPath, &'static Functions); 2]);

impl DirectedFunctions {
    /// The functions of one path.
    pub(super) fn of(path: CpuPath, functions: &'static Functions) -> Self {
        Self([(path, functions); 2])
    }

    pub(super) fn get(&self, direction: CryptDirection) -> &'static Functions {
        self.0[usize::from(direction == CryptDirection::Decrypt)].1
    }
}

/// Bytes of a try: enough sectors for all lanes of the widest vectors.
const TRIED: usize = 128 << 10;
/// Calls of a path.
const CALLS: usize = 8;
/// The percentage by which a narrower path must be faster.
const MARGIN: u128 = 5;

/// The chosen path, by size of keys, and by whether sectors are whole pages.
static FOUND: [[OnceLock<CpuPath>; 2]; 3] = [const { [const { OnceLock::new() }; 2] }; 3];

/// The functions of AES-CBC for the `nth` size of keys and sectors of `bytes` bytes: decryption of
/// the path `widest`, and encryption of the fastest path up to that width.
pub(super) fn cbc(
    widest: CpuPath,
    nth: usize,
    bytes: usize,
    table: impl Fn(CpuPath) -> Option<&'static FunctionTable>,
) -> Option<DirectedFunctions> {
    let pages = bytes.is_multiple_of(4096);
    let found = FOUND[nth][usize::from(pages)].get_or_init(|| try_paths(widest, nth, pages, &table));
    let of = |path: CpuPath| Some((path, &table(path)?[nth]));
    Some(DirectedFunctions([of(*found)?, of(widest)?]))
}

fn try_paths(
    widest: CpuPath,
    nth: usize,
    pages: bool,
    table: &impl Fn(CpuPath) -> Option<&'static FunctionTable>,
) -> CpuPath {
    let narrower = CpuPath::ALL.into_iter().rev().filter(|path| *path <= widest);
    let mut tried: Vec<(CpuPath, SectorsFn, Duration)> =
        narrower.filter_map(|path| Some((path, table(path)?[nth].cbc_encrypt, Duration::MAX))).collect();
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
            // SAFETY: `table` has only paths of this processor; there are as many keys as any size
            // needs, an IV for each sector, and the sectors are in one buffer.
            unsafe { run(keys, ivs.as_ptr().cast(), TRIED / sector, sector, at, at) }
            *best = (*best).min(began.elapsed());
        }
    }
    let (_, _, first) = tried[0];
    let better = tried.iter().skip(1).min_by_key(|(_, _, time)| *time);
    let wins = |time: Duration| time.as_nanos() * (100 + MARGIN) < first.as_nanos() * 100;
    better.filter(|(_, _, time)| wins(*time)).map_or(widest, |(path, _, _)| *path)
}
