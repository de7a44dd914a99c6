//! The search for the key of one header: key derivations in parallel, cheapest first, and all
//! chains under each.
//!
//! No plaintext tells how a header was derived. Each block of PBKDF2's output is a separate task,
//! so that tasks are short enough to keep all processors busy to the end; the blocks that single
//! ciphers need come first. Counts of rounds of one function are stops of one run. A wrong password
//! runs through all tasks, regardless of the failing check.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use underseal_cipher::Key;
use underseal_volume::{KdfLimits, pbkdf2_marks};

use super::header::Parsed;
use super::{Chain, Derivation, HEADER, Header, Password, Prf, SALT, SEALED};
use crate::{Error, Result};

/// Bytes of key from the first tasks of a derivation: the keys of single ciphers.
const NARROW: usize = 64;
/// Bytes of key from a whole derivation: the keys of the longest chain.
pub(super) const DERIVED: usize = 192;

/// The passphrases, key files and parameters to try on a header.
pub(super) struct Search<'a> {
    pub(super) password: &'a Password,
    pub(super) derivations: Vec<Derivation>,
    /// Chains under TrueCrypt's derivations, and under VeraCrypt's.
    pub(super) chains: [Vec<Chain>; 2],
    pub(super) limits: KdfLimits,
    pub(super) threads: usize,
}

/// The outcome of a search.
pub(super) struct Found {
    pub(super) header: Header,
    pub(super) derivation: Derivation,
    pub(super) chain: Chain,
}

/// How a search ended.
pub(super) enum Outcome {
    Found(Found),
    /// A key that fits, and a header that is damaged.
    Damaged(&'static str),
    Nothing,
}

/// Derivations of one function, of which each is a stop of the next.
struct Run {
    prf: Prf,
    /// In ascending order of rounds.
    stops: Vec<Derivation>,
    /// The bytes that its chains need at most.
    need: usize,
    keys: Mutex<Vec<Partial>>,
}

/// A derived key in the making.
struct Partial {
    key: Key,
    /// Bytes from the beginning that single ciphers wait for, blocks of them that are there; the
    /// same of all bytes.
    narrow: usize,
    wide: usize,
}

/// A task: a run, and the block of its output that is made; none for Argon2id.
#[derive(Clone, Copy)]
struct Task {
    run: usize,
    block: Option<u32>,
    order: (u8, u64),
}

impl Search<'_> {
    /// Tries everything on the 512 bytes of a header.
    ///
    /// Returns `Memory` or `TooCostly`.
    pub(super) fn run(&self, header: &[u8; HEADER]) -> Result<Outcome> {
        let runs = self.runs()?;
        let mut tasks: Vec<Task> =
            runs.iter().enumerate().flat_map(|(number, run)| run.tasks(number)).collect();
        tasks.sort_by_key(|task| task.order);
        let shared = Shared {
            search: self,
            runs: &runs,
            salt: &header[..SALT],
            sealed: header[SALT..].try_into().unwrap_or(&[0; SEALED]),
            next: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            outcome: Mutex::new(Ok(Outcome::Nothing)),
        };
        let threads = self.threads.clamp(1, tasks.len().max(1));
        thread::scope(|scope| {
            // This thread works too, also where no other can be started.
            for _ in 1..threads {
                if thread::Builder::new().spawn_scoped(scope, || shared.work_and_wipe(&tasks)).is_err() {
                    break;
                }
            }
            shared.work(&tasks);
        });
        shared.outcome.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// The derivations by function; TrueCrypt's, which are short, apart from VeraCrypt's.
    fn runs(&self) -> Result<Vec<Run>> {
        let mut runs: Vec<Run> = Vec::new();
        for &derivation in &self.derivations {
            let chains = &self.chains[usize::from(derivation.veracrypt)];
            let Some(need) = chains.iter().map(|chain| chain.material()).max() else { continue };
            let same = runs
                .iter_mut()
                .find(|run| run.prf == derivation.prf && run.stops[0].veracrypt == derivation.veracrypt);
            match same {
                Some(run) => run.stops.push(derivation),
                None => runs.push(Run {
                    prf: derivation.prf,
                    stops: vec![derivation],
                    need: need.min(DERIVED),
                    keys: Mutex::default(),
                }),
            }
        }
        for run in &mut runs {
            run.stops.sort_by_key(|stop| stop.rounds);
            run.stops.dedup_by_key(|stop| stop.rounds);
            let partial = || Ok(Partial { key: Key::zeroed(run.need)?, narrow: 0, wide: 0 });
            let keys = run.stops.iter().map(|_| partial()).collect::<Result<_>>()?;
            run.keys = Mutex::new(keys);
        }
        Ok(runs)
    }
}

impl Run {
    /// The bytes of one task's block.
    fn block_len(&self) -> usize {
        self.prf.hash().map_or(self.need, |hash| hash.output_len())
    }

    fn blocks(&self, bytes: usize) -> usize {
        bytes.min(self.need).div_ceil(self.block_len())
    }

    /// Blocks of single ciphers come before others, TrueCrypt's before VeraCrypt's, cheap ones
    /// before costly ones.
    fn tasks(&self, run: usize) -> Vec<Task> {
        let last = self.stops[self.stops.len() - 1];
        let veracrypt = u8::from(last.veracrypt);
        if self.prf.hash().is_none() {
            let order = (veracrypt, u64::from(last.rounds) * u64::from(last.memory_kib) * 400);
            return vec![Task { run, block: None, order }];
        }
        let cost = self.prf.cost() * u64::from(last.rounds);
        let (narrow, wide) = (self.blocks(NARROW), self.blocks(DERIVED));
        let task = |block: usize| Task {
            run,
            block: u32::try_from(block + 1).ok(),
            order: (veracrypt + u8::from(block >= narrow && last.veracrypt), cost),
        };
        (0..wide).map(task).collect()
    }

    fn keys(&self) -> MutexGuard<'_, Vec<Partial>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state that the threads of a search share.
struct Shared<'a> {
    search: &'a Search<'a>,
    runs: &'a [Run],
    salt: &'a [u8],
    sealed: &'a [u8; SEALED],
    next: AtomicUsize,
    stop: AtomicBool,
    outcome: Mutex<Result<Outcome>>,
}

/// Stack that a derivation and the trial of a chain may have used.
const TRACES: usize = 96 << 10;

impl Shared<'_> {
    /// Runs `work` and wipes its traces from the stack, which the system keeps for later threads.
    fn work_and_wipe(&self, tasks: &[Task]) {
        self.work(tasks);
        underseal_cipher::wipe_traces::<TRACES>();
    }

    #[inline(never)]
    fn work(&self, tasks: &[Task]) {
        while !self.stop.load(Ordering::Relaxed) {
            let Some(task) = tasks.get(self.next.fetch_add(1, Ordering::Relaxed)) else { return };
            if let Err(error) = self.task(task) {
                self.end(Err(error));
            }
        }
    }

    fn task(&self, task: &Task) -> Result<()> {
        let run = &self.runs[task.run];
        let (Some(hash), Some(block)) = (run.prf.hash(), task.block) else {
            for (stop, derivation) in run.stops.iter().enumerate() {
                let kdf = derivation.kdf(self.salt);
                let key = kdf.derive(self.search.password.as_bytes(), DERIVED, &self.search.limits)?;
                self.arrived(run, stop, 0, &key.as_bytes()[..run.need])?;
            }
            return Ok(());
        };
        let of = (self.search.password.as_bytes(), self.salt, block);
        let rounds: Vec<u32> = run.stops.iter().map(|stop| stop.rounds).collect();
        let nth = block as usize - 1;
        let mut result = Ok(());
        pbkdf2_marks(hash, of, &rounds, &self.stop, &mut |stop, bytes| {
            if result.is_ok() {
                result = self.arrived(run, stop, nth, bytes);
            }
        });
        result
    }

    /// Stores a block of output, and tries the chains whose keys are then complete.
    fn arrived(&self, run: &Run, stop: usize, nth: usize, bytes: &[u8]) -> Result<()> {
        let (narrow, wide) = (run.blocks(NARROW), run.blocks(DERIVED));
        let (key, is_narrow, is_wide) = {
            let mut keys = run.keys();
            let partial = &mut keys[stop];
            let at = nth * run.block_len();
            let len = bytes.len().min(run.need - at);
            partial.key.as_mut_bytes()[at..at + len].copy_from_slice(&bytes[..len]);
            partial.narrow += usize::from(nth < narrow);
            partial.wide += 1;
            let is_narrow = nth < narrow && partial.narrow == narrow;
            let is_wide = partial.wide == wide;
            if !is_narrow && !is_wide {
                return Ok(());
            }
            (Key::new(partial.key.as_bytes())?, is_narrow, is_wide)
        };
        let derivation = run.stops[stop];
        for &chain in &self.search.chains[usize::from(derivation.veracrypt)] {
            if if chain.material() <= NARROW { is_narrow } else { is_wide } {
                self.try_chain(derivation, chain, &key)?;
            }
        }
        Ok(())
    }

    fn try_chain(&self, derivation: Derivation, chain: Chain, key: &Key) -> Result<()> {
        let plain = chain.open_header(key.as_bytes(), self.sealed)?;
        match Header::parse(plain.as_bytes())? {
            Parsed::Nothing => {}
            // A wrong key reaches this arm once in 2^32 trials, so the search continues.
            Parsed::Damaged(what) => {
                let mut outcome = self.outcome();
                if matches!(*outcome, Ok(Outcome::Nothing)) {
                    *outcome = Ok(Outcome::Damaged(what));
                }
            }
            Parsed::Header(header) => self.end(Ok(Outcome::Found(Found { header, derivation, chain }))),
        }
        Ok(())
    }

    fn end(&self, with: std::result::Result<Outcome, Error>) {
        let mut outcome = self.outcome();
        if !matches!(*outcome, Ok(Outcome::Found(_)) | Err(_)) {
            *outcome = with;
        }
        self.stop.store(true, Ordering::Relaxed);
    }

    fn outcome(&self) -> MutexGuard<'_, Result<Outcome>> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
