//! `underseal dm`.

use std::ffi::OsString;
use std::os::fd::IntoRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Args, Subcommand};
use rustix::io::{FdFlags, fcntl_setfd};

use crate::dm::install::{InstallOutcome, Programs, install, uninstall};
use crate::dm::root_folder::RootFolder;
use crate::dm::{backend, server, supervise, syscall_helper};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::{print, printable};

/// Gives programs a device mapper where the kernel has none: cryptsetup, dmsetup and others run as
/// they are.
///
/// The command that is run, and all that it starts, find /dev/mapper/control. What they load there
/// (crypt, integrity, verity, linear, striped, zero, error and delay tables) is served by
/// Underseal, and shown under /dev/mapper as a loop device, or a ublk disk on Linux 6.16 and later.
/// Devices stay when the command has ended, until they are removed as ever (`cryptsetup close`).
/// Root only.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DmArgs {
    #[command(subcommand)]
    pub(crate) what: Dm,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Dm {
    Run(DmRunArgs),
    Shell(DmShellArgs),
    Install(DmInstallArgs),
    Uninstall(DmUninstallArgs),
    #[command(hide = true)]
    Serve(DmServeArgs),
    /// Serves one table, for the back end
    #[command(hide = true)]
    TableServer,
    /// Makes system calls that may hang, for the back end
    #[command(hide = true)]
    SyscallHelpers(DmApartArgs),
    /// Answers system calls of the commands that are run with it
    #[command(hide = true)]
    Supervisor(DmShellArgs),
}

/// How a process apart is.
#[derive(Debug, Args)]
pub(crate) struct DmApartArgs {
    /// Stay in memory, for devices that carry the disk of this program
    #[arg(long)]
    pub(crate) lock: bool,
}

/// Runs a command that sees a device mapper
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DmRunArgs {
    /// Say what works on this machine and what cannot, and run nothing
    #[arg(long)]
    pub(crate) explain: bool,
    /// Answer system calls by a supervisor that the kernel asks, in place of the preloaded library:
    /// for static programs and those in Go. Opening files takes longer; keys are digits only
    #[arg(long)]
    pub(crate) supervise: bool,
    #[command(flatten)]
    pub(crate) how: DmHowArgs,
    /// The command and its arguments
    #[arg(required_unless_present = "explain", trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Runs a shell that sees a device mapper
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DmShellArgs {
    #[command(flatten)]
    pub(crate) how: DmHowArgs,
}

/// Serves devices to commands; `dm run` starts it where it does not run
#[derive(Debug, Args)]
pub(crate) struct DmServeArgs {
    /// Stay also without devices and callers
    #[arg(long)]
    pub(crate) stay: bool,
    #[command(flatten)]
    pub(crate) how: DmHowArgs,
}

/// The back end's folder.
#[derive(Debug, Args)]
pub(crate) struct DmHowArgs {
    /// The back end's folder: its socket, its log, the tables' files. Another folder is another
    /// device mapper
    #[arg(long, value_name = "DIR", default_value = "/run/underseal/dm")]
    pub(crate) folder: PathBuf,
}

/// The library's name, and the folder where the package installs it.
const LIBRARY: &str = "libunderseal-dm.so";
const INSTALLED: &str = "/usr/lib/underseal";

pub(super) fn run(args: &DmArgs, _quiet: bool) -> Result<()> {
    match &args.what {
        Dm::Run(DmRunArgs { explain: true, how, .. }) => explain(how),
        Dm::Run(DmRunArgs { how, command, supervise, .. }) => start(how, command, *supervise),
        Dm::Shell(args) => {
            let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
            start(&args.how, &[shell.unwrap_or_else(|| "/bin/sh".into())], false)
        }
        Dm::Install(args) => install_files(args),
        Dm::Uninstall(args) => uninstall_files(&args.root),
        Dm::Serve(args) => backend::serve(&args.how.folder, args.stay),
        Dm::TableServer => server::run(),
        Dm::SyscallHelpers(args) => syscall_helper::run(args.lock),
        Dm::Supervisor(args) => supervise::run(&args.how.folder),
    }
}

/// Replaces this process by the command.
fn start(how: &DmHowArgs, command: &[OsString], supervised: bool) -> Result<()> {
    let folder = std::path::absolute(&how.folder);
    let folder = folder.map_err(|e| Error::io(&how.folder, "cannot be found", e))?;
    let (program, arguments) = command.split_first().ok_or_else(|| Error::usage("there is no command"))?;
    let mut command = Command::new(program);
    command.args(arguments);
    if supervised {
        supervise::begin(&folder)?;
    } else {
        preload(&mut command, &folder)?;
    }
    let failed = command.exec();
    Err(Error::new(Exit::Failed, format!("{}: cannot be run", program.display())).because(&failed))
}

/// Sets the environment that makes a command load the library and find the back end.
fn preload(command: &mut Command, folder: &Path) -> Result<()> {
    let library = library()?;
    // The back end stays as long as the command, or one of its children, has this descriptor. It
    // carries no requests: a child may have fewer rights.
    let connection = backend::connect(folder)?;
    fcntl_setfd(&connection, FdFlags::empty())
        .map_err(|e| Error::new(Exit::Failed, "a connection cannot be left to the command").because(&e))?;
    let _ = connection.into_raw_fd();
    // LVM warns of each descriptor that it inherits.
    command.env("LVM_SUPPRESS_FD_WARNINGS", "1");
    let mut preloaded = library.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preloaded.push(":");
        preloaded.push(others);
    }
    command.env("LD_PRELOAD", preloaded).env("UNDERSEAL_DM_SOCKET", backend::socket(folder));
    Ok(())
}

/// Finds the library to preload.
fn library() -> Result<PathBuf> {
    const VARIABLE: &str = "UNDERSEAL_DM_LIBRARY";
    if let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    let program = std::env::current_exe().unwrap_or_default();
    let beside = program.parent().unwrap_or(Path::new("/"));
    let places = [
        beside.join(LIBRARY),
        // This is cargo's file name.
        beside.join("libunderseal_dm.so"),
        beside.join("../lib/underseal").join(LIBRARY),
        Path::new(INSTALLED).join(LIBRARY),
    ];
    places.into_iter().find(|path| path.is_file()).ok_or_else(|| {
        let what = format!("the library {LIBRARY} is not there");
        Error::new(Exit::Failed, what).with_remedy(format!("its path in {VARIABLE}"))
    })
}

/// Gives a whole machine the device mapper: units of systemd's and root's shells
///
/// It writes a service that starts the back end at boot, drop-ins for the units of /etc/crypttab,
/// /etc/integritytab and /etc/veritytab and for systemd-homed.service, a rule for udev, and a file
/// in /etc/profile.d for root's shells. It changes no file that it has not written, and starts
/// nothing.
#[derive(Debug, Args)]
#[command(after_help = INSTALL_EXAMPLES)]
pub(crate) struct DmInstallArgs {
    /// The machine's root folder, as for an image that is built
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub(crate) root: PathBuf,
    #[command(flatten)]
    pub(crate) how: DmHowArgs,
    /// Also where the kernel has a device mapper, whose devices programs do not see any more
    #[arg(long)]
    pub(crate) force: bool,
}

/// Installs for this machine, with the paths of this program and its library; for another root
/// folder, with those of the package.
fn install_files(args: &DmInstallArgs) -> Result<()> {
    let is_here = args.root == Path::new("/");
    if is_here && has_mapper() && !args.force {
        return Err(Error::usage(
            "the kernel has a device mapper, whose devices programs would not see any more",
        )
        .with_remedy("--force"));
    }
    let (command, library) = if is_here {
        let command = std::env::current_exe();
        (command.map_err(|e| Error::new(Exit::Failed, "this program has no path").because(&e))?, library()?)
    } else {
        ("/usr/bin/underseal".into(), Path::new(INSTALLED).join(LIBRARY))
    };
    let root = root_folder(&args.root)?;
    for path in [&command, &library] {
        let path = path.strip_prefix("/").unwrap_or(path);
        if !root.leads_somewhere(path) {
            let what = format!("{} is not there", root.shown(path).display());
            return Err(Error::usage(what).with_remedy("install the package first"));
        }
    }
    let programs = Programs { command: &command, library: &library, folder: &args.how.folder };
    told(&install(&root, &programs)?)?;
    if is_here {
        print("next: systemctl daemon-reload && systemctl start underseal-dm, or a new shell\n")?;
    }
    Ok(())
}

/// Takes back what `dm install` has written
///
/// A file that was changed since then stays, and is named. Devices that are open stay open.
#[derive(Debug, Args)]
#[command(after_help = INSTALL_EXAMPLES)]
pub(crate) struct DmUninstallArgs {
    /// The machine's root folder
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub(crate) root: PathBuf,
}

fn uninstall_files(root: &Path) -> Result<()> {
    let Some(outcomes) = uninstall(&root_folder(root)?)? else {
        return print("nothing is installed\n");
    };
    told(&outcomes)?;
    if outcomes.iter().any(|outcome| matches!(outcome, InstallOutcome::Changed(_))) {
        return Err(Error::new(Exit::Failed, "a file was changed since it was installed, and stays")
            .with_remedy("inspect the file, and remove it by hand"));
    }
    Ok(())
}

fn root_folder(path: &Path) -> Result<RootFolder> {
    RootFolder::open(path).map_err(|e| Error::io(path, "cannot be opened", e).into_usage())
}

fn told(outcomes: &[InstallOutcome]) -> Result<()> {
    let line = |outcome: &InstallOutcome| match outcome {
        InstallOutcome::Written(path) => format!("written  {}", path.display()),
        InstallOutcome::Removed(path) => format!("removed  {}", path.display()),
        InstallOutcome::Missing(path) => format!("gone     {}", path.display()),
        InstallOutcome::Changed(path) => format!("stays    {}", path.display()),
    };
    // A path may contain control characters.
    print(&outcomes.iter().map(|outcome| printable(&line(outcome)) + "\n").collect::<String>())
}

/// Returns true when the kernel has a device mapper.
fn has_mapper() -> bool {
    let devices = std::fs::read_to_string("/proc/devices").unwrap_or_default();
    devices.lines().any(|line| line.ends_with(" device-mapper"))
}

fn explain(how: &DmHowArgs) -> Result<()> {
    let there = |path: &str| Path::new(path).exists();
    let has_mapper = has_mapper();
    let is_root = rustix::process::geteuid().is_root();
    let library = library().map_or_else(|e| e.what(), |path| path.display().to_string());
    let yes = |is: bool| if is { "yes" } else { "no" };
    let text = format!(
        "the kernel has a device mapper of its own     {} (programs in `dm run` do not see its devices)
root                                          {} (needed)
/dev/fuse, for the tables                     {} (needed)
/dev/loop-control, for block devices          {} (needed)
library, preloaded into programs              {library}
supervisor of system calls (--supervise)      {}
back end                                      {}

{LIMITS}",
        yes(has_mapper),
        yes(is_root),
        yes(there("/dev/fuse")),
        yes(there("/dev/loop-control")),
        if supervise::is_possible() { "yes" } else { "no: Linux 5.14 with seccomp" },
        backend::socket(&how.folder).display(),
    );
    print(&text)
}

const LIMITS: &str = "\
The library reaches programs that are dynamically linked with glibc, and what they start. Not: static programs
and those written in Go, which make system calls themselves; set-user-ID programs, which drop LD_PRELOAD.
The supervisor reaches these too. Not: keys by name in crypt tables (programs are told of version 1.18.0, and send
digits); a node /dev/mapper/control that could not be made; 32-bit programs. Each file that is opened waits for it.
Targets: crypt, integrity, verity (without error correction), linear, striped, zero, error, delay. Not: snapshot,
thin, cache, raid, multipath; OPAL.
Keys of the kernel's keyring: logon and user, if a program in `dm run` added them. Not: encrypted, trusted.
Nothing is in sysfs of kind dm: udisks does not take the devices for cleartext ones, lsblk shows loop devices.
Open counts are what /proc and exclusive opens tell; a device that is in use is never taken away.
";

const INSTALL_EXAMPLES: &str = "Examples:
  underseal dm install && systemctl daemon-reload && systemctl start underseal-dm
  underseal dm install --root /mnt/image
  underseal dm uninstall";

const EXAMPLES: &str = "Examples:
  underseal dm run cryptsetup open disk.img plain
  underseal dm run sh -c 'cryptsetup luksFormat disk.img && cryptsetup open disk.img plain'
  mkfs.ext4 /dev/mapper/plain && mount /dev/mapper/plain /mnt
  underseal dm run dmsetup ls
  underseal dm run --supervise ./static-program
  underseal dm shell
  underseal dm run --explain";
