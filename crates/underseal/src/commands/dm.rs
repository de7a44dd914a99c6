//! `underseal dm`.

use std::ffi::{OsStr, OsString};
use std::os::fd::IntoRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::{FdFlags, fcntl_setfd};

use crate::cli::{Dm, DmArgs, DmHowArgs, DmRunArgs};
use crate::dm::{backend, server};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::print;

pub(super) fn run(args: &DmArgs, _quiet: bool) -> Result<()> {
    match &args.what {
        Dm::Run(DmRunArgs { explain: true, how, .. }) => explain(how),
        Dm::Run(DmRunArgs { how, command, .. }) => start(how, command),
        Dm::Shell(args) => {
            let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
            start(&args.how, &[shell.unwrap_or_else(|| "/bin/sh".into())])
        }
        Dm::Serve(args) => backend::serve(&args.how.folder),
        Dm::TableServer => server::run(),
    }
}

/// Becomes the command.
fn start(how: &DmHowArgs, command: &[OsString]) -> Result<()> {
    let library = library()?;
    let folder = std::path::absolute(&how.folder);
    let folder = folder.map_err(|e| Error::io(&how.folder, "cannot be found", e))?;
    // The back end stays while the command, or something that it started, has this. It carries no
    // requests: what the command starts may have fewer rights.
    let connection = backend::connect(&folder)?;
    fcntl_setfd(&connection, FdFlags::empty())
        .map_err(|e| Error::new(Exit::Failed, "a connection cannot be left to the command").because(&e))?;
    let _ = connection.into_raw_fd();
    let mut preloaded = library.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preloaded.push(":");
        preloaded.push(others);
    }
    let (program, arguments) = command.split_first().ok_or_else(|| Error::usage("there is no command"))?;
    let failed = Command::new(program)
        .args(arguments)
        .env("LD_PRELOAD", preloaded)
        .env("UNDERSEAL_DM_SOCKET", backend::socket(&folder))
        .exec();
    Err(Error::new(Exit::Failed, format!("{}: cannot be run", program.display())).because(&failed))
}

/// The library that programs are started with.
fn library() -> Result<PathBuf> {
    const VARIABLE: &str = "UNDERSEAL_DM_LIBRARY";
    if let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    let program = std::env::current_exe().unwrap_or_default();
    let beside = program.parent().unwrap_or(Path::new("/"));
    let installed = OsStr::new("libunderseal-dm.so");
    let places = [
        beside.join(installed),
        // As cargo names it.
        beside.join("libunderseal_dm.so"),
        beside.join("../lib/underseal").join(installed),
        Path::new("/usr/lib/underseal").join(installed),
    ];
    places.into_iter().find(|path| path.is_file()).ok_or_else(|| {
        let what = format!("the library {} is not there", installed.display());
        Error::new(Exit::Failed, what).with_remedy(format!("its path in {VARIABLE}"))
    })
}

fn explain(how: &DmHowArgs) -> Result<()> {
    let there = |path: &str| Path::new(path).exists();
    let devices = std::fs::read_to_string("/proc/devices").unwrap_or_default();
    let has_mapper = devices.lines().any(|line| line.ends_with(" device-mapper"));
    let is_root = rustix::process::geteuid().is_root();
    let library = library().map_or_else(|e| e.what(), |path| path.display().to_string());
    let yes = |is: bool| if is { "yes" } else { "no" };
    let text = format!(
        "the kernel has a device mapper of its own     {} (programs in `dm run` do not see its devices)
root                                          {} (needed)
/dev/fuse, for the tables                     {} (needed)
/dev/loop-control, for block devices          {} (needed)
library                                       {library}
back end                                      {}

{LIMITS}",
        yes(has_mapper),
        yes(is_root),
        yes(there("/dev/fuse")),
        yes(there("/dev/loop-control")),
        backend::socket(&how.folder).display(),
    );
    print(&text)
}

const LIMITS: &str = "\
Programs see it that are dynamically linked with glibc, and what they start. Not: static programs and those
written in Go, which make system calls themselves; set-user-ID programs, which drop LD_PRELOAD.
Targets: crypt, integrity, verity (without error correction), linear, striped, zero, error, delay. Not: snapshot,
thin, cache, raid, multipath; OPAL.
Keys of the kernel's keyring: logon and user, if a program in `dm run` added them. Not: encrypted, trusted.
Nothing is in sysfs of kind dm: udisks does not take the devices for cleartext ones, lsblk shows loop devices.
Open counts are what /proc and exclusive opens tell; a device that is in use is never taken away.
";
