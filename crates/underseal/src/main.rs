//! The command `underseal`.
//!
//! ```text
//!   cli/         the program's arguments, and the groups of options that several commands share
//!     |          (help, manual pages and completions are made from these definitions)
//!     |
//!   commands/    format  open  info  read  write  table  token ..: arguments and action of each
//!     |             |      |           |    control/  list  status  policy  suspend  close  top ..
//!     |          passphrase/  from a file, a descriptor or the terminal, into locked memory
//!     |          integrity    the layer between an authenticated volume and its image
//!     |          tokens       secrets of hardware, servers, the kernel: tried before the terminal
//!     |          volume       image and key -> a mapping that is ready for requests
//!     |          foreign      the same for other systems' formats; part: a partition of a disk
//!     |          volumes/     /etc/underseal/volumes, for host/: up  down  ps
//!     |          daemon, pid_file, logging, notify      background processes and services
//!     |          transfer/, progress          the plain bytes, many requests in flight
//!     v
//!   dm/          device mapper's ioctls on kernels without it: back end, a process for each table
//!   front/       the persona `cryptsetup`: its verbs and options, as the same commands
//!   generator    the list of volumes as units, when systemd calls the program by that name
//!   error, exit  a line with the event, a line with the remedy, a stable exit status
//! ```

#![deny(unsafe_code)]

mod cli;
mod commands;
mod daemon;
mod descriptors;
mod dm;
mod error;
mod exit;
mod foreign;
mod front;
mod generator;
mod integrity;
mod local_time;
mod logging;
mod loop_file;
mod lower;
mod memory;
mod notify;
mod output;
mod part;
mod passphrase;
mod persona;
mod pid_file;
mod policy;
mod progress;
mod reencryption;
mod signals;
mod size;
mod time_limit;
mod tokens;
mod transfer;
mod volume;
mod volumes;

use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    descriptors::find_folders();
    signals::file_size_limit_is_an_error();
    let protected = underseal_cipher::protect_process();
    signals::hear_of_children();
    if front::is_called() {
        return front::run(protected);
    }
    if generator::is_called() {
        return generator::run();
    }
    let mut cli = match cli::Cli::of_words(std::env::args_os()) {
        Ok(cli) => cli,
        Err(help) if !help.use_stderr() => return print_help(&help),
        Err(refusal) => refusal.exit(),
    };
    cli.started_with(std::env::args_os().skip(1).collect());
    start(protected, cli.verbosity.level());
    match commands::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(),
    }
}

/// Prints the help or the version. A reader that has seen enough, like head(1), may close the pipe.
fn print_help(help: &clap::Error) -> ExitCode {
    match help.print().and_then(|()| std::io::stdout().flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            error::Error::new(exit::Exit::Failed, "cannot write to stdout").because(&e).report()
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Starts logging, and warns of memory that is not protected.
fn start(protected: std::io::Result<()>, level: log::LevelFilter) {
    logging::start(level);
    if let Err(e) = protected {
        log::warn!("core dumps and debuggers of the same user may see keys: {e}");
    }
    underseal_cipher::when_not_locked(|e| {
        log::warn!("memory for keys cannot be locked and may reach swap: {e}; `ulimit -l` shows the limit");
    });
}
