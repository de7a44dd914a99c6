//! A volume that is reencrypted from one key to another and back, any number of times.

use std::cell::Cell;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use underseal_cipher::{CipherSpec, Key, SectorSize};
use underseal_datapath::{Mapping, Pace, Policy, Rate, ServedVolume};
use underseal_volume::reencrypt::state::{Keys, StateLedger};
use underseal_volume::reencrypt::{self, Direction, Mode, Plan, Protection};
use underseal_volume::{CipherParameters, Hash, Stored};

use super::ServedRun;
use crate::load::{self, Load, LoadTarget};
use crate::volumes::{self, XTS};
use crate::{Error, ErrorKind, Result};

/// The size of a sector in bytes.
const SECTOR: u32 = 4096;
/// Bytes of a key of AES-256-XTS.
const KEY: usize = 64;
/// The area for the checksums of a step of 64 MiB.
const AREA: u64 = 1 << 20;
/// Rounds of PBKDF2 over a key that is no passphrase.
const ITERATIONS: u32 = 1000;
/// The longest wait for an operation before it counts as hung.
const LIMIT: Duration = Duration::from_secs(10);

/// The variant of a reencryption.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReencryptionVariant {
    pub(super) rate: Rate,
    /// The longest step.
    pub(super) hot_zone: u64,
}

pub(super) struct ExperimentDisk {
    file: File,
    mapping: Arc<Mapping>,
    keys: [Key; 2],
    forms: [Stored; 2],
    /// The index of its present key.
    now: Cell<usize>,
}

impl ExperimentDisk {
    pub(super) fn new(bytes: u64) -> Result<Self> {
        let (file, device) = volumes::memory(bytes)?;
        let form = |first| -> Result<(Key, Stored)> {
            let spec: CipherSpec = XTS.parse()?;
            let cipher = volumes::keyed(&spec, KEY, first, SECTOR)?;
            let sector_size = SectorSize::new(SECTOR)?;
            let cipher_parameters = CipherParameters::new(&spec, sector_size, KEY);
            let (key, cipher_parameters) = (volumes::key(KEY, first)?, Some(Arc::new(cipher_parameters)));
            Ok((key, Stored { device: 0, lower: 0, iv_offset: 0, cipher, cipher_parameters }))
        };
        let [(old, first), (new, second)] = [form(0)?, form(1)?];
        let mapping = volumes::over(first.cipher.clone(), &device)?;
        Ok(Self { file, mapping, keys: [old, new], forms: [first, second], now: Cell::new(0) })
    }

    /// Runs a load, and reencrypts the volume meanwhile.
    pub(super) fn beside(&self, how: Option<ReencryptionVariant>, load: &Load) -> Result<ServedRun> {
        let target = LoadTarget::Volume(self.mapping.clone(), Policy::ADAPTIVE);
        let Some(ReencryptionVariant { rate, hot_zone }) = how else {
            return Ok(ServedRun { users: load::run(&target, load)?, moved: 0.0 });
        };
        let (is_over, before) = (AtomicBool::new(false), AtomicU64::new(0));
        let pace = Arc::new(Pace::new(rate));
        let begun = Instant::now();
        thread::scope(|scope| {
            let users = scope.spawn(|| {
                let seen = load::run(&target, load);
                let moved = before.load(Ordering::Relaxed) + pace.advance().done;
                let moved = moved as f64 / 1e6 / begun.elapsed().as_secs_f64();
                is_over.store(true, Ordering::Relaxed);
                pace.set_rate(Rate::Full);
                seen.map(|users| ServedRun { users, moved })
            });
            while !is_over.load(Ordering::Relaxed) {
                self.reencrypt(&pace, hot_zone)?;
                before.fetch_add(self.mapping.size(), Ordering::Relaxed);
                pace.set_position(0, self.mapping.size());
            }
            users
                .join()
                .unwrap_or_else(|_| Err(Error::new(ErrorKind::Wrong, "a thread of the load panicked")))
        })
    }

    /// Reencrypts the whole disk to the other key.
    fn reencrypt(&self, pace: &Arc<Pace>, hot_zone: u64) -> Result<()> {
        let (old, new) = (self.now.get(), 1 - self.now.get());
        let plan = Plan {
            mode: Mode::Reencrypt,
            direction: Direction::Forward,
            size: self.mapping.size(),
            old: self.forms[old].clone(),
            new: self.forms[new].clone(),
            moved: None,
            protection: Protection::Checksum { hash: Hash::Sha256, block: SECTOR.into() },
            area: AREA,
            hot_zone,
            alignment: SECTOR.into(),
        };
        let keys = Keys { old: Some(&self.keys[old]), new: Some(&self.keys[new]) };
        let state = volumes::memory(0)?.0;
        let mut ledger = StateLedger::create(&state, plan, keys, self.mapping.size(), ITERATIONS)?;
        let users = ServedVolume::new(self.mapping.clone(), SectorSize::new(SECTOR)?, pace.clone(), LIMIT)?;
        reencrypt::run(&self.file, &mut ledger, &users, &reencrypt::Options::default())?;
        self.now.set(new);
        Ok(())
    }
}
