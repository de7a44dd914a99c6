//! `underseal bench`.

use std::fmt::{self, Display};
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use underseal_bench::{Effort, FuseOptions, MountOptions, NbdOptions, UblkOptions, VhostUserOptions};
use underseal_bench::{cipher, ecryptfs, ecryptfs_mount, fuse, nbd, ublk, vhost_user};
use underseal_bench::{serve_bare_mount, serve_fuse_memory, serve_memory, serve_null_memory};

use crate::cli::{Bench, BenchArgs};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::print;

pub(super) fn run(args: BenchArgs, quiet: bool) -> Result<()> {
    let failed = |e: &dyn std::error::Error| {
        let error = Error::new(Exit::Failed, e.to_string());
        e.source().map_or(error, |cause| Error::new(Exit::Failed, e.to_string()).because(cause))
    };
    let progress = |text: &str| {
        if !quiet {
            log::warn!("{text}");
        }
    };
    let json = args.json;
    match args.what {
        Bench::Cipher(args) => {
            let effort = if args.quick { Effort::QUICK } else { Effort::FULL };
            show(&cipher(effort).map_err(|e| failed(&e))?, json)
        }
        Bench::Nbd(args) => {
            let options = NbdOptions {
                underseal: this_program()?,
                directory: args.directory,
                size: args.size,
                rounds: args.effort.rounds.into(),
                runtime: Duration::from_secs(args.effort.runtime.into()),
                only: args.effort.only,
                over_nbd: args.over_nbd,
            };
            show(&nbd(&options, progress).map_err(|e| failed(&e))?, json)
        }
        Bench::Fuse(args) => {
            let options = FuseOptions {
                underseal: this_program()?,
                directory: args.directory,
                size: args.size,
                threads: args.threads,
                rounds: args.effort.rounds.into(),
                runtime: Duration::from_secs(args.effort.runtime.into()),
                only: args.effort.only,
            };
            show(&fuse(&options, progress).map_err(|e| failed(&e))?, json)
        }
        Bench::Ublk(args) => {
            let by_default = || (0..5).map(|n| format!("/dev/ram{n}").into()).collect();
            let options = UblkOptions {
                underseal: this_program()?,
                devices: if args.devices.is_empty() { by_default() } else { args.devices },
                rounds: args.effort.rounds.into(),
                runtime: Duration::from_secs(args.effort.runtime.into()),
                only: args.effort.only,
            };
            show(&ublk(&options, progress).map_err(|e| failed(&e))?, json)
        }
        Bench::VhostUser(args) => {
            let options = VhostUserOptions {
                underseal: this_program()?,
                directory: args.directory,
                size: args.size,
                rounds: args.effort.rounds.into(),
                runtime: Duration::from_secs(args.effort.runtime.into()),
                only: args.effort.only,
            };
            show(&vhost_user(&options, progress).map_err(|e| failed(&e))?, json)
        }
        Bench::ServeFuseMemory(args) => {
            serve_fuse_memory(args.size, &args.fuse, args.threads.into()).map_err(|e| failed(&e))
        }
        Bench::ServeFuseNull(args) => {
            serve_null_memory(args.size, &args.fuse, args.threads).map_err(|e| failed(&e))
        }
        Bench::Ecryptfs(args) => {
            let effort = if args.quick { Effort::QUICK } else { Effort::FULL };
            let crypto = ecryptfs(effort).map_err(|e| failed(&e))?;
            if args.quick {
                return show(&crypto, json);
            }
            let options = MountOptions {
                underseal: this_program()?,
                directory: args.directory,
                size: args.size,
                files: args.files,
                threads: args.threads,
                rounds: args.effort.rounds.into(),
                runtime: Duration::from_secs(args.effort.runtime.into()),
                only: args.effort.only,
            };
            let mount = ecryptfs_mount(&options, progress).map_err(|e| failed(&e))?;
            show(&Ecryptfs { crypto, mount }, json)
        }
        Bench::ServeBareMount(args) => {
            serve_bare_mount(&args.lower, &args.mountpoint, args.threads).map_err(|e| failed(&e))
        }
        Bench::ServeMemory(args) => serve_memory(args.size, &args.nbd).map_err(|e| failed(&e)),
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

fn this_program() -> Result<PathBuf> {
    std::env::current_exe()
        .map_err(|e| Error::new(Exit::Failed, "this program's own file is not to be found").because(&e))
}

fn show(report: &(impl Serialize + Display), json: bool) -> Result<()> {
    if !json {
        return print(&report.to_string());
    }
    let text = serde_json::to_string_pretty(report)
        .map_err(|e| Error::new(Exit::Failed, "the report cannot be said in JSON").because(&e))?;
    print(&(text + "\n"))
}
