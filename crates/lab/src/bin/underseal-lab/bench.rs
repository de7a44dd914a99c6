//! `underseal-lab bench`.

mod rows;

use std::env;
use std::fmt::{self, Display};
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use underseal_bench::{
    Effort, FormatsBenchOptions, FuseOptions, IntegrityBenchOptions, InterleavedRounds, MountBenchOptions,
    NbdOptions, Observer, RbdOptions, ReencryptOptions, UblkOptions, UnlockBenchOptions, VhostUserOptions,
};
use underseal_bench::{
    aead, cipher, ecryptfs, ecryptfs_mount, formats, fuse, integrity, nbd, rbd, reencrypt, ublk, unlock,
    vhost_user,
};

use self::rows::RowReader;
use crate::cli::{Bench, BenchArgs, Interleaved};
use crate::failure::{ProgramFailure, Result};

pub(crate) fn run(args: BenchArgs, underseal: Option<PathBuf>, progress: impl Fn(&str)) -> Result<()> {
    let mut reader = RowReader::new(args.json, progress)?;
    let measured = measure(args.what, underseal, &mut reader);
    reader.finish(measured)
}

fn measure(what: Bench, underseal: Option<PathBuf>, reader: &mut impl Observer) -> Result<()> {
    let turns = |effort: Interleaved| -> Result<InterleavedRounds> {
        Ok(InterleavedRounds {
            underseal: underseal.clone().map_or_else(measured, Ok)?,
            rounds: effort.rounds.into(),
            runtime: Duration::from_secs(effort.runtime.into()),
            only: effort.only,
            before: None,
        })
    };
    match what {
        Bench::Cipher(args) => {
            let effort = if args.quick { Effort::QUICK } else { Effort::FULL };
            Ok(cipher(effort, reader)?)
        }
        Bench::Aead(args) => {
            let effort = if args.quick { Effort::QUICK } else { Effort::FULL };
            Ok(aead(effort, reader)?)
        }
        Bench::Nbd(args) => {
            let options = NbdOptions {
                turns: turns(args.effort)?.with(args.earlier.before),
                directory: args.directory,
                size: args.size,
                over_nbd: args.over_nbd,
            };
            Ok(nbd(&options, reader)?)
        }
        Bench::Fuse(args) => {
            let options = FuseOptions {
                turns: turns(args.effort)?.with(args.earlier.before),
                directory: args.directory,
                size: args.size,
                threads: args.threads,
            };
            Ok(fuse(&options, reader)?)
        }
        Bench::Integrity(args) => {
            let options = IntegrityBenchOptions {
                turns: turns(args.effort)?,
                directory: args.directory,
                size: args.size,
            };
            Ok(integrity(&options, reader)?)
        }
        Bench::Ublk(args) => {
            let by_default = || (0..5).map(|n| format!("/dev/ram{n}").into()).collect();
            let options = UblkOptions {
                turns: turns(args.effort)?,
                devices: if args.devices.is_empty() { by_default() } else { args.devices },
            };
            Ok(ublk(&options, reader)?)
        }
        Bench::Unlock(args) => {
            let options = UnlockBenchOptions {
                underseal: underseal.map_or_else(measured, Ok)?,
                rounds: args.rounds.into(),
                directory: args.directory,
                memory_kib: args.memory,
                passes: args.passes,
            };
            Ok(unlock(&options, reader)?)
        }
        Bench::Formats(args) => {
            let effort = if args.quick { Effort::QUICK } else { Effort::FULL };
            let rounds = if args.quick { 1 } else { args.rounds.into() };
            Ok(formats(&FormatsBenchOptions { effort, rounds, pim: args.pim }, reader)?)
        }
        Bench::Reencrypt(args) => {
            let options = ReencryptOptions {
                underseal: underseal.map_or_else(measured, Ok)?,
                rounds: args.rounds.into(),
                directory: args.directory,
                size: args.size,
            };
            Ok(reencrypt(&options, reader)?)
        }
        Bench::Rbd(args) => {
            let mut turns = turns(args.effort)?;
            let mut size = args.size;
            if args.quick {
                (turns.rounds, turns.runtime, size) = (2, Duration::from_millis(300), 64 << 20);
            }
            Ok(rbd(&RbdOptions { turns, conf: args.conf, pool: args.pool, size }, reader)?)
        }
        Bench::VhostUser(args) => {
            let options = VhostUserOptions {
                turns: turns(args.effort)?.with(args.earlier.before),
                directory: args.directory,
                size: args.size,
            };
            Ok(vhost_user(&options, reader)?)
        }
        Bench::Ecryptfs(args) => {
            let effort = if args.quick { Effort::QUICK } else { Effort::FULL };
            let crypto = ecryptfs(effort, &mut Halves { reader, crypto: None::<String> })?;
            if args.quick || reader.is_stopped() {
                return Ok(());
            }
            let options = MountBenchOptions {
                turns: turns(args.effort)?.with(args.earlier.before),
                directory: args.directory,
                size: args.size,
                files: args.files,
                threads: args.threads,
            };
            Ok(ecryptfs_mount(&options, &mut Halves { reader, crypto: Some(crypto) })?)
        }
    }
}

/// Both halves of `bench ecryptfs`: the crypto alone, and a mount, which is measured later.
#[derive(Serialize)]
struct Ecryptfs<'a, C, M> {
    crypto: &'a C,
    #[serde(skip_serializing_if = "Option::is_none")]
    mount: Option<&'a M>,
}

impl<C: Display, M: Display> Display for Ecryptfs<'_, C, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.crypto)?;
        self.mount.map_or(Ok(()), |mount| write!(f, "\n{mount}"))
    }
}

/// Combines both halves in one report.
struct Halves<'a, O, C> {
    reader: &'a mut O,
    /// The first half, after its measurement.
    crypto: Option<C>,
}

impl<O: Observer, C: Serialize + Display> Observer for Halves<'_, O, C> {
    fn progress(&mut self, text: &str) {
        self.reader.progress(text);
    }

    fn rows(&mut self, so_far: &(impl Serialize + Display)) {
        match &self.crypto {
            Some(crypto) => self.reader.rows(&Ecryptfs { crypto, mount: Some(so_far) }),
            None => self.reader.rows(&Ecryptfs { crypto: so_far, mount: None::<&String> }),
        }
    }

    fn is_stopped(&self) -> bool {
        self.reader.is_stopped()
    }
}

/// Returns this program's own file, which also serves as the server without a cipher.
pub(crate) fn this_program() -> Result<PathBuf> {
    env::current_exe()
        .map_err(|e| ProgramFailure::new("this program's own file is not to be found").because(&e))
}

/// Returns `underseal` beside this program, or in the PATH.
fn measured() -> Result<PathBuf> {
    let beside = this_program()?.with_file_name("underseal");
    let path = env::var_os("PATH").unwrap_or_default();
    let places =
        std::iter::once(beside).chain(env::split_paths(&path).map(|folder| folder.join("underseal")));
    places.into_iter().find(|program| program.is_file()).ok_or_else(|| {
        ProgramFailure::new("there is no program underseal, beside this one or in the PATH")
            .with_remedy("--underseal PROGRAM; `cargo build --release -p underseal` makes it")
    })
}
