//! The back end: a process that outlives its callers.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, FlockOperation, Mode, flock, mknodat};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use underseal_dm::server::{Callers, STAY, serve as answer};
use underseal_dm::{Family, LeftNode, LoopNodes, Mapper, UblkNodes};

use super::adopt::Adoption;
use super::disks::{self, Driver};
use super::host::Tables;
use super::server::stay_in_memory;
use super::syscall_helper::SyscallHelpers;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::logging;

/// The folder of the devices' nodes.
const MAPPER: &str = "/dev/mapper";
/// The number of the control node: the major number of misc devices, and device mapper's minor
/// number.
const CONTROL: (u32, u32) = (10, 236);
/// The variable that keeps loop devices (`loop`) where ublk disks are possible.
const NODES: &str = "UNDERSEAL_DM_NODES";
/// How long a back end without devices and callers stays.
const IDLE: Duration = Duration::from_secs(30);
/// How long a back end may take to begin.
const BEGINNING: Duration = Duration::from_secs(30);

/// Returns the path of the back end's socket.
pub(crate) fn socket(folder: &Path) -> PathBuf {
    folder.join("control")
}

/// Connects to the back end of this folder, which is started where none runs. The back end stays as
/// long as the connection is open. Fails with `Failed` when it cannot be started.
pub(crate) fn connect(folder: &Path) -> Result<UnixStream> {
    let socket = socket(folder);
    let until = Instant::now() + BEGINNING;
    loop {
        // A back end that has just been killed may still accept a connection.
        match UnixStream::connect(&socket).and_then(stay) {
            Ok(stream) => return Ok(stream),
            Err(e) if Instant::now() > until => {
                return Err(Error::io(&socket, "no back end listens there", e));
            }
            Err(_) => start(folder)?,
        }
    }
}

/// Asks the back end to keep a connection that carries no requests.
fn stay(mut stream: UnixStream) -> io::Result<UnixStream> {
    stream.write_all(&[STAY, 0].map(u32::to_ne_bytes).concat())?;
    stream.set_read_timeout(Some(BEGINNING))?;
    stream.read_exact(&mut [0; 8])?;
    stream.set_read_timeout(None)?;
    Ok(stream)
}

/// Starts a back end, and waits until it or another one listens.
fn start(folder: &Path) -> Result<()> {
    let failed = |e: io::Error| Error::new(Exit::Failed, "the back end cannot be started").because(&e);
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(program);
    command.args(["dm", "serve", "--folder"]).arg(folder).env_remove("LD_PRELOAD");
    // The started process ends when a daemon of its own listens.
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status().map_err(failed)?;
    if !status.success() {
        let error = Error::new(Exit::Failed, "the back end could not begin");
        return Err(error.with_remedy(format!("the last lines of {}", log_file(folder).display())));
    }
    Ok(())
}

pub(super) fn log_file(folder: &Path) -> PathBuf {
    folder.join("log")
}

/// Serves callers in the background, until no device and no caller is left; for ever with `stay`.
/// Fails with `Failed` when a back end is not possible here.
pub(crate) fn serve(folder: &Path, stay: bool) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(Error::new(Exit::Failed, "loop devices and their nodes are root's to make")
            .with_remedy("as root; `underseal open --fuse FILE` needs neither"));
    }
    // The fork comes before any file is open that the daemon would close.
    let child = crate::daemon::fork()?;
    // All users may read names of devices, whatever the caller's umask is.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    make(folder)?;
    prepare_mapper()?;
    let Some(lock) = lock(folder)? else {
        // Another back end is starting, or runs.
        return child.detach();
    };
    logging::to_file(&log_file(folder))?;
    raise_descriptor_limit();
    super::cgroup::leave();
    let socket = socket(folder);
    match fs::remove_file(&socket) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            return Err(Error::io(&socket, "cannot be made anew", e));
        }
        _ => {}
    }
    let listener = UnixListener::bind(&socket).map_err(|e| Error::io(&socket, "cannot listen", e))?;
    let family = Family::of_this_process();
    let program = std::env::current_exe();
    let program = program.map_err(|e| Error::new(Exit::Failed, "this program has no path").because(&e))?;
    let apart = SyscallHelpers::new(program.clone(), log_file(folder), family.clone());
    let tables = Arc::new(Tables::new(program, log_file(folder), family.clone(), apart.clone()));
    let (mapper, left) = mapper(folder, tables.clone(), family, &apart);
    let adoption = Adoption::new(tables, mapper.clone());
    adoption.begin(left);
    let callers = Callers::default();
    {
        let (mapper, callers) = (mapper.clone(), callers.clone());
        let begun =
            thread::Builder::new().name("callers".into()).spawn(move || answer(&listener, &mapper, &callers));
        begun.map_err(|e| Error::new(Exit::Failed, "no thread for callers").because(&e))?;
    }
    stay_in_memory();
    child.detach()?;
    let has_devices = || stay || mapper.count() + adoption.waiting() > 0;
    loop {
        let is_needed = || {
            apart.trim();
            callers.count() > 0 || has_devices()
        };
        until_idle(is_needed, &mapper);
        // A caller that came meanwhile may have made a device, and may be gone already.
        if callers.close() {
            if !has_devices() {
                break;
            }
            callers.reopen();
        }
    }
    let _ = fs::remove_file(&socket);
    drop(lock);
    Ok(())
}

/// Returns a mapper whose devices are ublk disks where they can be, and loop devices elsewhere,
/// with the devices of an earlier back end.
fn mapper(
    folder: &Path,
    tables: Arc<Tables>,
    family: Family,
    apart: &SyscallHelpers,
) -> (Mapper, Vec<LeftNode>) {
    let worker = Arc::new(apart.clone());
    let wants_loops = std::env::var_os(NODES).is_some_and(|nodes| nodes == "loop");
    if disks::are_possible() {
        let nodes = UblkNodes::new(folder, MAPPER, family, worker, Arc::new(Driver));
        let nodes = nodes.making_loops(wants_loops);
        let left = nodes.left();
        (Mapper::new(tables, nodes), left)
    } else {
        let nodes = LoopNodes::new(folder, MAPPER, family, worker);
        let left = nodes.left();
        (Mapper::new(tables, nodes), left)
    }
}

/// Raises this process's limit of descriptors to the maximum: each device and each caller takes
/// some.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(e) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        log::warn!("there can be few devices and callers at a time: {e}");
    }
}

fn until_idle(is_needed: impl Fn() -> bool, mapper: &Mapper) {
    const LOOK: Duration = Duration::from_secs(1);
    let mut idle = Instant::now();
    while idle.elapsed() < IDLE {
        thread::sleep(LOOK);
        mapper.forget_keys();
        if is_needed() {
            idle = Instant::now();
        }
    }
}

/// Makes the folder, for its owner only.
fn make(folder: &Path) -> Result<()> {
    let cannot = |e| Error::io(folder, "cannot be the back end's folder", e);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(cannot)?;
    let of = fs::symlink_metadata(folder).map_err(cannot)?;
    let own = rustix::process::geteuid().as_raw();
    if !of.is_dir() || of.uid() != own || of.mode() & 0o077 != 0 {
        let what = format!("{} is not a folder that only this user can use", folder.display());
        return Err(Error::new(Exit::Failed, what).with_remedy("another folder with --folder"));
    }
    Ok(())
}

/// Makes the folder of nodes, and the control node that libdevmapper looks for before it opens it.
fn prepare_mapper() -> Result<()> {
    let cannot = |e| Error::io(MAPPER.as_ref(), "cannot be made", e);
    fs::DirBuilder::new().recursive(true).mode(0o755).create(MAPPER).map_err(cannot)?;
    let control = Path::new(MAPPER).join("control");
    if !control.exists() {
        let number = rustix::fs::makedev(CONTROL.0, CONTROL.1);
        mknodat(CWD, &control, FileType::CharacterDevice, Mode::RUSR | Mode::WUSR, number)
            .map_err(|e| Error::io(&control, "cannot be made", e))?;
    }
    Ok(())
}

/// Takes the lock for the single back end of a folder; `None` where another one has it.
fn lock(folder: &Path) -> Result<Option<OwnedFd>> {
    let path = folder.join("lock");
    let mut how = File::options();
    let file = how.write(true).create(true).truncate(false).open(&path);
    let file = file.map_err(|e| Error::io(&path, "cannot be opened", e))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file.into())),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(e) => Err(Error::io(&path, "cannot be locked", e)),
    }
}
