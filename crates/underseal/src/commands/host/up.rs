//! `underseal up`.

#![expect(unsafe_code, reason = "a child, between fork and exec")]

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use clap::Args;
use rustix::io::Errno;
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

use super::together::{Lane, in_order};
use super::{ANSWERS, PATIENCE, WhichArgs, end, lock, status};
use crate::cli::{Cli, Command as Which};
use crate::commands::open::{self, OpenArgs};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::{print, printable};
use crate::volumes::{Chosen, Entry, Layers, Table};

/// The program that asks for passphrases through systemd's agents.
const AGENTS: &str = "/usr/bin/systemd-ask-password";

/// Opens the volumes of /etc/underseal/volumes and /etc/underseal/volumes.d.
///
/// Each is served by a process of its own, in the background, as `underseal open --daemon` does;
/// several are started at a time. One that is open stays as it is, and one that fails leaves the
/// others alone. The list has crypttab's four fields: name, device, key file, options. What they
/// cannot say a file volumes.d/NAME.toml can.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal up                     all but those whose line says noauto
  underseal up disk vm
  underseal up --config volumes    of another file
  underseal up --foreground disk   this process serves it, as a service of systemd's does")]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    /// Open at most N volumes at a time; each may need as much memory as its key derivation. By
    /// default the number of processors
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) jobs: Option<u16>,
    /// Serve one volume in this process until it is stopped, and tell a supervisor such as systemd
    /// when it is ready
    #[arg(long, conflicts_with = "jobs", requires = "names")]
    pub(crate) foreground: bool,
}

/// Opens the volumes. Fails with `Partial` when some of several could not be opened.
pub(in crate::commands) fn run(args: &UpArgs, quiet: bool) -> Result<()> {
    let table = Table::read(&args.which.config)?;
    let Chosen { mut volumes, wrong } = table.choose(&args.which.names)?;
    if args.foreground {
        return match (&volumes[..], &wrong[..]) {
            ([entry], []) => asked(entry, true).and_then(|args| open::run(&args, quiet)),
            ([], [wrong]) => Err(wrong.error()),
            _ => Err(Error::usage("one process serves one volume").with_remedy("--foreground with one NAME")),
        };
    }
    let named = !args.which.names.is_empty();
    // Volumes that wait for a client are opened by systemd.
    volumes.retain(|entry| named || entry.is_auto() && !entry.waits_for_clients());
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let jobs = args.jobs.map_or(processors, usize::from);
    let open = |entry: &Entry| {
        let ended = bring_up(entry);
        if let (Ok(Some(at)), false) = (&ended, quiet) {
            // The volume is open even if the message cannot be printed.
            let _ = print(&format!("{} is up: {}\n", entry.name, printable(at)));
        }
        ended.map(drop)
    };
    // A volume is opened once those below it are. A person answers one question after the other;
    // volumes without questions need not wait.
    let lanes: [Lane<'_, &Entry>; 2] = [(jobs, &|entry| !entry.asks()), (1, &|entry| entry.asks())];
    let ended = in_order(&volumes, &Layers::of(&volumes).lower(), &lanes, |_, entry| open(entry));
    end(&wrong, volumes.into_iter().zip(ended).collect(), named)
}

/// Returns the volume's options in the form of `underseal open`. Fails with `Usage`, which names
/// the line.
fn asked(entry: &Entry, foreground: bool) -> Result<Box<OpenArgs>> {
    let mut words = vec![OsString::from("underseal")];
    words.extend(entry.arguments());
    // A service has no terminal: systemd asks at the machine's console.
    if foreground && entry.asks() && std::env::var_os("NOTIFY_SOCKET").is_some() && Path::new(AGENTS).exists()
    {
        let question = format!("--id=underseal:{} Passphrase for {}:", entry.name, entry.name);
        words.push(format!("--passphrase-command={AGENTS} --timeout=0 {question}").into());
        words.push("--tokens-first".into());
    }
    let started_with = words[1..].to_vec();
    let parsed = Cli::of_words(words).map(|mut cli| {
        cli.started_with(started_with);
        cli.command
    });
    match parsed {
        Ok(Which::Open(args)) => Ok(args),
        Ok(_) => Err(entry.complain("no volume to open")),
        Err(e) => Err(entry.complain_of_option(&e)),
    }
}

/// Opens a volume; returns its address, or `None` where it was open before.
fn bring_up(entry: &Entry) -> Result<Option<String>> {
    asked(entry, false)?;
    let _lock = lock(&entry.name, PATIENCE)?;
    if status(entry, ANSWERS)?.is_some() {
        return Ok(None);
    }
    if entry.waits_for_clients() {
        let unit = format!("systemctl start underseal@{}.socket", entry.name);
        return Err(entry.complain("nbd=systemd: its first client opens it").with_remedy(unit));
    }
    if let Some(path) = entry.mount_point() {
        make_mount_point(path)?;
    }
    start(entry).map(Some)
}

/// Makes a missing file to mount over.
fn make_mount_point(path: &Path) -> Result<()> {
    match File::options().write(true).create_new(true).mode(0o600).open(path) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(Error::io(path, "nothing is there, and it cannot be made", e))
        }
        _ => Ok(()),
    }
}

/// Starts the volume's server and waits until it serves.
fn start(entry: &Entry) -> Result<String> {
    let failed = |e: std::io::Error| Error::new(Exit::Failed, "its server cannot be started").because(&e);
    let itself = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(itself);
    command.args(entry.arguments()).arg("--daemon").stdin(Stdio::null());
    // A supervisor that started this command does not supervise the servers.
    command.env_remove("NOTIFY_SOCKET").env_remove("WATCHDOG_USEC");
    let own = getpid();
    // SAFETY: these are system calls and nothing else, which a child may do between fork and exec.
    unsafe {
        command.pre_exec(move || {
            // Until the server serves, it belongs to this command's waiting thread, and ends with
            // it.
            set_parent_process_death_signal(Some(Signal::TERM))?;
            if getppid() == Some(own) { Ok(()) } else { Err(Errno::CANCELED.into()) }
        });
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed)?;
    let error = told(&mut child, entry);
    // The pipe ends when the server becomes a daemon; the text fits into the pipe.
    let mut ready = String::new();
    if let Some(stdout) = &mut child.stdout {
        stdout.read_to_string(&mut ready).map_err(failed)?;
    }
    let status = child.wait().map_err(failed)?;
    if status.success() {
        let line = ready.lines().next().unwrap_or_default();
        return Ok(line.rsplit_once(" is open: ").map_or(line, |(_, at)| at).to_owned());
    }
    let exit = Exit::of_status(status.code());
    let (what, remedy) = error.unwrap_or_else(|| (format!("its server ended with {status}"), None));
    let error = Error::new(exit, what);
    Err(match remedy {
        Some(remedy) => error.with_remedy(remedy),
        None => error,
    })
}

/// An error and its remedy.
type Told = (String, Option<String>);

/// Passes on the messages of a starting server; its last lines are the error.
fn told(child: &mut Child, entry: &Entry) -> Option<Told> {
    let mut error: Option<Told> = None;
    for line in BufReader::new(child.stderr.take()?).split(b'\n') {
        let Ok(line) = line else { break };
        let line = String::from_utf8_lossy(&line);
        match (line.strip_prefix("underseal: "), line.strip_prefix("try: "), &mut error) {
            (Some(what), ..) => error = Some((what.to_owned(), None)),
            (_, Some(remedy), Some((_, told))) => *told = Some(remedy.to_owned()),
            // A closed stderr is ignored.
            _ => drop(writeln!(std::io::stderr().lock(), "{}: {}", entry.name, printable(&line))),
        }
    }
    error
}
