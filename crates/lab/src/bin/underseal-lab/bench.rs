//! `underseal-lab bench`.

use std::env;
use std::fmt::{self, Display};
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use underseal_bench::{Effort, FuseOptions, MountOptions, NbdOptions, UblkOptions, VhostUserOptions};
use underseal_bench::{cipher, ecryptfs, ecryptfs_mount, fuse, nbd, ublk, vhost_user};

use crate::cli::{Bench, BenchArgs};
use crate::failure::{Failure, Result};
use crate::{json, print};

pub(crate) fn run(args: BenchArgs, underseal: Option<PathBuf>, progress: impl Fn(&str)) -> Result<()> {
    let shown = args.json;
    let underseal = || underseal.map_or_else(measured, Ok);
    match args.what {
        Bench::Cipher(args) => {
            let effort = if args.quick { Effort::QUICK } else { Effort::FULL };
            show(&cipher(effort)?, shown)
        }
        Bench::Nbd(args) => {
            let options = NbdOptions {
                underseal: underseal()?,
                directory: args.directory,
                size: args.size,
                rounds: args.effort.rounds.into(),
                runtime: Duration::from_secs(args.effort.runtime.into()),
                only: args.effort.only,
                over_nbd: args.over_nbd,
            };
            show(&nbd(&options, progress)?, shown)
        }
        Bench::Fuse(args) => {
            let options = FuseOptions {
                underseal: underseal()?,
                directory: args.directory,
                size: args.size,
                threads: args.threads,
                rounds: args.effort.rounds.into(),
                runtime: Duration::from_secs(args.effort.runtime.into()),
                only: args.effort.only,
            };
            show(&fuse(&options, progress)?, shown)
        }
        Bench::Ublk(args) => {
            let by_default = || (0..5).map(|n| format!("/dev/ram{n}").into()).collect();
            let options = UblkOptions {
                underseal: underseal()?,
                devices: if args.devices.is_empty() { by_default() } else { args.devices },
                rounds: args.effort.rounds.into(),
                runtime: Duration::from_secs(args.effort.runtime.into()),
                only: args.effort.only,
            };
            show(&ublk(&options, progress)?, shown)
        }
        Bench::VhostUser(args) => {
            let options = VhostUserOptions {
                underseal: underseal()?,
                directory: args.directory,
                size: args.size,
                rounds: args.effort.rounds.into(),
                runtime: Duration::from_secs(args.effort.runtime.into()),
                only: args.effort.only,
            };
            show(&vhost_user(&options, progress)?, shown)
        }
        Bench::Ecryptfs(args) => {
            let effort = if args.quick { Effort::QUICK } else { Effort::FULL };
            let crypto = ecryptfs(effort)?;
            if args.quick {
                return show(&crypto, shown);
            }
            let options = MountOptions {
                underseal: underseal()?,
                directory: args.directory,
                size: args.size,
                files: args.files,
                threads: args.threads,
                rounds: args.effort.rounds.into(),
                runtime: Duration::from_secs(args.effort.runtime.into()),
                only: args.effort.only,
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
    env::current_exe().map_err(|e| Failure::new("this program's own file is not to be found").because(&e))
}

/// `underseal` beside this program, or in the PATH.
fn measured() -> Result<PathBuf> {
    let beside = this_program()?.with_file_name("underseal");
    let path = env::var_os("PATH").unwrap_or_default();
    let places =
        std::iter::once(beside).chain(env::split_paths(&path).map(|folder| folder.join("underseal")));
    places.into_iter().find(|program| program.is_file()).ok_or_else(|| {
        Failure::new("there is no program underseal, beside this one or in the PATH")
            .with_remedy("--underseal PROGRAM; `cargo build --release -p underseal` makes it")
    })
}

fn show(report: &(impl Serialize + Display), as_json: bool) -> Result<()> {
    print(&if as_json { json(report)? } else { report.to_string() })
}
