//! `underseal-lab bench`.

use std::env;
use std::fmt::{self, Display};
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use underseal_bench::{
    Effort, FuseOptions, IntegrityBenchOptions, InterleavedRounds, MountBenchOptions, NbdOptions, RbdOptions,
    ReencryptOptions, UblkOptions, UnlockBenchOptions, VhostUserOptions,
};
use underseal_bench::{
    aead, cipher, ecryptfs, ecryptfs_mount, fuse, integrity, nbd, rbd, reencrypt, ublk, unlock, vhost_user,
};

use crate::cli::{Bench, BenchArgs, Interleaved};
use crate::failure::{ProgramFailure, Result};
use crate::{print, print_json};

pub(crate) fn run(args: BenchArgs, underseal: Option<PathBuf>, progress: impl Fn(&str)) -> Result<()> {
    let shown = args.json;
    let turns = |effort: Interleaved| -> Result<InterleavedRounds> {
        Ok(InterleavedRounds {
            underseal: underseal.clone().map_or_else(measured, Ok)?,
            rounds: effort.rounds.into(),
            runtime: Duration::from_secs(effort.runtime.into()),
            only: effort.only,
        })
    };
    match args.what {
        Bench::Cipher(args) => {
            let effort = if args.quick { Effort::QUICK } else { Effort::FULL };
            show(&cipher(effort)?, shown)
        }
        Bench::Aead(args) => {
            let effort = if args.quick { Effort::QUICK } else { Effort::FULL };
            show(&aead(effort)?, shown)
        }
        Bench::Nbd(args) => {
            let options = NbdOptions {
                turns: turns(args.effort)?,
                directory: args.directory,
                size: args.size,
                over_nbd: args.over_nbd,
            };
            show(&nbd(&options, progress)?, shown)
        }
        Bench::Fuse(args) => {
            let options = FuseOptions {
                turns: turns(args.effort)?,
                directory: args.directory,
                size: args.size,
                threads: args.threads,
            };
            show(&fuse(&options, progress)?, shown)
        }
        Bench::Integrity(args) => {
            let options = IntegrityBenchOptions {
                turns: turns(args.effort)?,
                directory: args.directory,
                size: args.size,
            };
            show(&integrity(&options, progress)?, shown)
        }
        Bench::Ublk(args) => {
            let by_default = || (0..5).map(|n| format!("/dev/ram{n}").into()).collect();
            let options = UblkOptions {
                turns: turns(args.effort)?,
                devices: if args.devices.is_empty() { by_default() } else { args.devices },
            };
            show(&ublk(&options, progress)?, shown)
        }
        Bench::Unlock(args) => {
            let options = UnlockBenchOptions {
                underseal: underseal.map_or_else(measured, Ok)?,
                rounds: args.rounds.into(),
                directory: args.directory,
                memory_kib: args.memory,
                passes: args.passes,
            };
            show(&unlock(&options, progress)?, shown)
        }
        Bench::Reencrypt(args) => {
            let options = ReencryptOptions {
                underseal: underseal.map_or_else(measured, Ok)?,
                rounds: args.rounds.into(),
                directory: args.directory,
                size: args.size,
            };
            show(&reencrypt(&options, progress)?, shown)
        }
        Bench::Rbd(args) => {
            let mut turns = turns(args.effort)?;
            let mut size = args.size;
            if args.quick {
                (turns.rounds, turns.runtime, size) = (2, Duration::from_millis(300), 64 << 20);
            }
            show(&rbd(&RbdOptions { turns, conf: args.conf, pool: args.pool, size }, progress)?, shown)
        }
        Bench::VhostUser(args) => {
            let options =
                VhostUserOptions { turns: turns(args.effort)?, directory: args.directory, size: args.size };
            show(&vhost_user(&options, progress)?, shown)
        }
        Bench::Ecryptfs(args) => {
            let effort = if args.quick { Effort::QUICK } else { Effort::FULL };
            let crypto = ecryptfs(effort)?;
            if args.quick {
                return show(&crypto, shown);
            }
            let options = MountBenchOptions {
                turns: turns(args.effort)?,
                directory: args.directory,
                size: args.size,
                files: args.files,
                threads: args.threads,
            };
            show(&Ecryptfs { crypto, mount: ecryptfs_mount(&options, progress)? }, shown)
        }
    }
}

/// Both halves of `bench ecryptfs`.
#[derive(Serialize)]
struct Ecryptfs<C, M> {
    crypto: C,
    mount: M,
}

impl<C: Display, M: Display> Display for Ecryptfs<C, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.crypto, self.mount)
    }
}

/// This program's own file: it also plays the servers without a cipher.
pub(crate) fn this_program() -> Result<PathBuf> {
    env::current_exe()
        .map_err(|e| ProgramFailure::new("this program's own file is not to be found").because(&e))
}

/// `underseal` beside this program, or in the PATH.
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

fn show(report: &(impl Serialize + Display), as_json: bool) -> Result<()> {
    if as_json { print_json(report) } else { print(&report.to_string()) }
}
