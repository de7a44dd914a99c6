//! `underseal bench`.

use std::fmt::Display;
use std::time::Duration;

use serde::Serialize;
use underseal_bench::{Effort, NbdOptions, cipher, nbd, serve_memory};

use crate::cli::{Bench, BenchArgs};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::print;

pub(super) fn run(args: BenchArgs, quiet: bool) -> Result<()> {
    let failed = |e: &dyn std::error::Error| {
        let error = Error::new(Exit::Failed, e.to_string());
        e.source().map_or(error, |cause| Error::new(Exit::Failed, e.to_string()).because(cause))
    };
    match args.what {
        Bench::Cipher(args) => {
            let effort = if args.quick { Effort::QUICK } else { Effort::FULL };
            show(&cipher(effort).map_err(|e| failed(&e))?, args.json)
        }
        Bench::Nbd(args) => {
            let underseal = std::env::current_exe().map_err(|e| {
                Error::new(Exit::Failed, "this program's own file is not to be found").because(&e)
            })?;
            let options = NbdOptions {
                underseal,
                directory: args.directory,
                size: args.size,
                rounds: args.rounds.into(),
                runtime: Duration::from_secs(args.runtime.into()),
                only: args.only,
            };
            let progress = |text: &str| {
                if !quiet {
                    log::warn!("{text}");
                }
            };
            show(&nbd(&options, progress).map_err(|e| failed(&e))?, args.json)
        }
        Bench::ServeMemory(args) => serve_memory(args.size, &args.nbd).map_err(|e| failed(&e)),
    }
}

fn show(report: &(impl Serialize + Display), json: bool) -> Result<()> {
    if !json {
        return print(&report.to_string());
    }
    let text = serde_json::to_string_pretty(report)
        .map_err(|e| Error::new(Exit::Failed, "the report cannot be said in JSON").because(&e))?;
    print(&(text + "\n"))
}
