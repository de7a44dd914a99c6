//! The laboratory's arguments and options. The help comes out of these types.

mod bench;
mod lab;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

pub(crate) use bench::{
    Bench, BenchArgs, DriveRbdArgs, Interleaved, ServeBareMountArgs, ServeFuseArgs, ServeMemoryArgs,
};
pub(crate) use lab::{ListExperimentsArgs, ReportArgs, RunArgs};

/// Measures Underseal on this machine: beside its limits and its peers, and in the experiments that
/// others published.
#[derive(Debug, Parser)]
#[command(name = "underseal-lab", version, propagate_version = true, max_term_width = 100, after_help = EXAMPLES)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct LabCli {
    /// Tell of errors only
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// The program that is measured; the one beside this one, or that of the PATH, if it is not
    /// given
    #[arg(long, global = true, value_name = "PROGRAM")]
    pub(crate) underseal: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: LabCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    Bench(BenchArgs),
    List(ListExperimentsArgs),
    Run(RunArgs),
    Report(ReportArgs),
    /// Keeps a processor busy until stdin ends, for `run tail`.
    #[command(hide = true)]
    Spin,
    ServeMemory(ServeMemoryArgs),
    ServeBareMount(ServeBareMountArgs),
    ServeFuseMemory(ServeFuseArgs),
    ServeFuseNull(ServeFuseArgs),
    DriveRbd(DriveRbdArgs),
}

const EXAMPLES: &str = "\
Examples:
  underseal-lab bench nbd                 the server beside qemu-nbd and nbdkit
  underseal-lab run --quick               does every experiment run here? some seconds
  underseal-lab run && underseal-lab report -o lab.html

Exit status: 0 it worked, 1 it failed, 2 an argument was refused, 130 it was interrupted.";

/// A number of bytes as users write it: 4096, 64K, 1G (powers of 1024).
fn size(text: &str) -> Result<u64, String> {
    parse_size::Config::new().with_binary().parse_size(text).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn definition_is_consistent() {
        LabCli::command().debug_assert();
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        assert_eq!((size("64K"), size("1G"), size("4096")), (Ok(64 << 10), Ok(1 << 30), Ok(4096)));
        assert!(size("many").is_err());
    }
}
