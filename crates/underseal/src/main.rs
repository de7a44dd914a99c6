//! The command: what it is asked for, what it does, how it ends.
//!
//! ```text
//!   cli/         arguments and their help      man, completions: out of the same definition
//!     |
//!   commands/    format  open  info  read  write  table  token
//!     |             |      |           |               control/  list  status  policy  suspend  message  close  top
//!     |          passphrase/  from a file, a descriptor, a key file or the terminal, straight into locked memory
//!     |          integrity    what lies between an authenticated volume and its image
//!     |          tokens       what hardware, servers and the kernel keep: asked before anybody is
//!     |          volume       image and key -> a mapping that is ready for requests
//!     |          foreign      the same for TrueCrypt, VeraCrypt and other systems' formats; part: a partition of a disk
//!     |          volumes/     /etc/underseal/volumes, for host/: up  down  ps
//!     |          daemon, pid_file, logging, notify      what runs in the background, or as a service
//!     |          transfer/, progress          the plain bytes, many requests in flight
//!     v
//!   dm/          device mapper's ioctls for programs on kernels without: the back end, and a process for each table
//!   front/       cryptsetup's verbs and options, when the program is called by that name: into the same commands
//!   generator     the list of volumes as units, when systemd calls the program by that name
//!   error, exit  one line what happened, one line what to do, a stable exit status
//! ```

mod cli;
mod commands;
mod daemon;
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
mod manner;
mod memory;
mod notify;
mod output;
mod part;
mod passphrase;
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

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    signals::file_size_limit_is_an_error();
    let protected = underseal_cipher::protect_process();
    signals::hear_of_children();
    if front::is_called() {
        return front::run(protected);
    }
    if generator::is_called() {
        return generator::run();
    }
    let mut cli = cli::Cli::parse();
    cli.started_with(std::env::args_os().skip(1).collect());
    start(protected, cli.verbosity.level());
    match commands::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(),
    }
}

/// Begins to tell what happens, and what cannot be kept to this process.
fn start(protected: std::io::Result<()>, level: log::LevelFilter) {
    logging::start(level);
    if let Err(e) = protected {
        log::warn!("core dumps and debuggers of the same user may see keys: {e}");
    }
    underseal_cipher::when_not_locked(|e| {
        log::warn!("memory for keys cannot be locked and may reach swap: {e}; `ulimit -l` shows the limit");
    });
}
