//! The cost of the key derivation, for an attacker who guesses passphrases.

use std::time::Duration;

use clap::Args;
use underseal_volume::{Cost, Hash, Pbkdf, PbkdfKind};

use crate::error::{Error, Result};

/// The key derivation of a new keyslot.
#[derive(Debug, Args)]
#[command(next_help_heading = "Passphrase cost")]
pub(crate) struct PbkdfArgs {
    /// How a passphrase becomes a key: argon2id (LUKS2's default), argon2i, pbkdf2 (LUKS1's only)
    #[arg(long, value_name = "NAME", value_parser = kind)]
    pbkdf: Option<PbkdfKind>,
    /// The time that an unlock takes on this machine
    #[arg(long, value_name = "MS", default_value_t = 2000, conflicts_with = "pbkdf_force_iterations")]
    iter_time: u64,
    /// Rounds (pbkdf2) or passes (argon2), unmeasured
    #[arg(long, value_name = "N")]
    pbkdf_force_iterations: Option<u32>,
    /// Argon2: the most memory; exactly this much when iterations are forced. "low" is 32 MiB, for
    /// volumes that are opened where memory is short, as in containers: the same time, spent on
    /// more passes
    #[arg(long, value_name = "KiB", value_parser = memory)]
    pbkdf_memory: Option<u32>,
    /// Argon2: the most threads
    #[arg(long, value_name = "N")]
    pbkdf_parallel: Option<u32>,
    /// The hash of pbkdf2, keyslot splitter and digest: sha256 by default; the keyslots of a LUKS1
    /// volume have its own
    #[arg(long, value_name = "HASH")]
    pub(crate) hash: Option<Hash>,
}

impl PbkdfArgs {
    /// Returns the number of iterations, if it is given.
    pub(crate) fn iterations(&self) -> Option<u32> {
        self.pbkdf_force_iterations
    }

    /// Returns the derivation of the options, over the defaults of a format. Fails with `Usage` for
    /// options that contradict each other.
    pub(crate) fn over(&self, defaults: Pbkdf) -> Result<Pbkdf> {
        let kind = self.pbkdf.unwrap_or(defaults.kind);
        if kind == PbkdfKind::Pbkdf2 && (self.pbkdf_memory.is_some() || self.pbkdf_parallel.is_some()) {
            return Err(
                Error::usage("pbkdf2 takes neither memory nor threads").with_remedy("--pbkdf argon2id")
            );
        }
        let time = Cost::Time(Duration::from_millis(self.iter_time));
        Ok(Pbkdf {
            kind,
            cost: self.pbkdf_force_iterations.map_or(time, Cost::Iterations),
            memory_kib: self.pbkdf_memory.unwrap_or(defaults.memory_kib),
            lanes: self.pbkdf_parallel.unwrap_or(defaults.lanes),
        })
    }
}

/// The least memory of a measured keyslot by default, in cryptsetup, too: every machine that opens
/// volumes has it.
const LOW_KIB: u32 = 32 << 10;

fn memory(text: &str) -> std::result::Result<u32, String> {
    match text {
        "low" => Ok(LOW_KIB),
        _ => text.parse().map_err(|_| "want a number of KiB, or low".into()),
    }
}

fn kind(name: &str) -> std::result::Result<PbkdfKind, String> {
    let kinds = [PbkdfKind::Argon2id, PbkdfKind::Argon2i, PbkdfKind::Pbkdf2];
    let known = kinds.into_iter().find(|kind| kind.name() == name);
    known.ok_or_else(|| "want argon2id, argon2i or pbkdf2".into())
}
