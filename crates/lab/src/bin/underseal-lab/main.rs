//! The laboratory: measurements of Underseal beside its limits and its peers, and the published
//! experiments. The program that serves volumes contains no part of the laboratory.
//!
//! ```text
//!   cli/     arguments and their help
//!   bench    `bench ..`              the interleaved measurements of the crate underseal-bench
//!   lab      `list  run  report`     the experiments of this crate's library
//!   failure  one line for the failure, one line for the remedy, the exit status
//! ```

mod bench;
mod cli;
mod failure;
mod lab;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use serde::Serialize;
use underseal_bench::DriveOptions;

use cli::{LabCli, LabCommand};
use failure::{ProgramFailure, Result};

fn main() -> ExitCode {
    match run(LabCli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run(cli: LabCli) -> Result<()> {
    let quiet = cli.quiet;
    let progress = |text: &str| {
        if !quiet {
            // A closed stderr leaves no place for the message.
            let _ = writeln!(io::stderr().lock(), "underseal-lab: {text}");
        }
    };
    match cli.command {
        LabCommand::Bench(args) => bench::run(args, cli.underseal, progress),
        LabCommand::List(args) => lab::list(&args),
        LabCommand::Run(args) => lab::measure(&args, &progress),
        LabCommand::Report(args) => lab::report(&args, progress),
        LabCommand::Spin => {
            underseal_lab::spin();
            Ok(())
        }
        LabCommand::ServeMemory(args) => Ok(underseal_bench::serve_memory(args.size, &args.nbd)?),
        LabCommand::ServeBareMount(args) => {
            Ok(underseal_bench::serve_bare_mount(&args.lower, &args.mountpoint, args.threads)?)
        }
        LabCommand::ServeFuseMemory(args) => {
            Ok(underseal_bench::serve_fuse_memory(args.size, &args.fuse, args.threads.into())?)
        }
        LabCommand::ServeFuseNull(args) => {
            let io_uring = !args.no_io_uring;
            Ok(underseal_bench::serve_null_memory(args.size, &args.fuse, args.threads, io_uring)?)
        }
        LabCommand::DriveRbd(args) => {
            let cli::DriveRbdArgs { driven, image, conf, passphrase_file, size } = args;
            Ok(underseal_bench::drive_rbd(&DriveOptions { driven, image, conf, passphrase_file, size })?)
        }
    }
}

/// Writes text to stdout, all of it or a failure: a pipe that was closed is one.
fn print(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    written.map_err(|e| ProgramFailure::new("cannot write to stdout").because(&e))
}

/// A report for programs: its fields, and the version of their meaning.
#[derive(Serialize)]
struct Versioned<T> {
    json_version: u32,
    #[serde(flatten)]
    report: T,
}

fn print_json(report: &impl Serialize) -> Result<()> {
    print(&versioned(report)?)
}

fn versioned(report: &impl Serialize) -> Result<String> {
    json(&Versioned { json_version: 1, report })
}

/// Returns a report as JSON.
fn json(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value);
    Ok(text.map_err(|e| ProgramFailure::new("the report cannot be JSON-encoded").because(&e))? + "\n")
}
