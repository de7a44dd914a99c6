//! The measured servers, each in a separate process, each with one ring.

use std::path::Path;
use std::process::Command;
use std::rc::Rc;

use super::{BenchError, VhostUserOptions};
use crate::place::{BenchFolder, SocketServer};

/// Underseal with the cipher, the reference of all comparisons.
const OURS: &str = "underseal, 4 KiB sectors";
/// Ours of an earlier build.
const BEFORE: &str = "before, 4 KiB sectors";
/// Our server without a cipher, over the same kind of file.
pub(super) const OURS_NULL: &str = "underseal, cipher_null";
pub(super) const DAEMON: &str = "qemu-storage-daemon luks";
const DAEMON_FILE: &str = "qemu-storage-daemon, no cipher";

/// Starts the servers, ours first.
pub(super) fn start(options: &VhostUserOptions) -> Result<Vec<SocketServer>, BenchError> {
    let place = BenchFolder::new(&options.turns.underseal, &options.directory, options.size)?;
    let built = &options.turns.underseal;
    if let Some(before) = &options.turns.before {
        let (image, place) = (place.luks2("both", "4096")?, Rc::new(place));
        let version = |name, underseal: &Path| {
            let socket = place.path("both.sock");
            let open = pinned(&vhost_user(place.open_with(underseal, &image), &socket));
            SocketServer::in_turns(name, open, &place, socket, vec![image.clone()])
        };
        return Ok(vec![version(OURS, built), version(BEFORE, before)]);
    }
    Ok(vec![ours(&place)?, null(&place)?, daemon(&place, true)?, daemon(&place, false)?])
}

/// Returns the command, pinned to the servers' processor.
fn pinned(command: &Command) -> Command {
    if processors() < 2 {
        let mut same = Command::new(command.get_program());
        same.args(command.get_args());
        return same;
    }
    let mut pinned = Command::new("taskset");
    pinned.args(["--cpu-list", "1"]).arg(command.get_program()).args(command.get_args());
    pinned
}

/// Puts this thread on the client's processor, if there are two.
pub(super) fn pin_client() -> bool {
    let mut set = rustix::thread::CpuSet::new();
    set.set(0);
    processors() >= 2 && rustix::thread::sched_setaffinity(None, &set).is_ok()
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn ours(place: &BenchFolder) -> Result<SocketServer, BenchError> {
    let (image, socket) = (place.luks2("luks2", "4096")?, place.path("luks2.sock"));
    let mut open = pinned(&vhost_user(place.open(&image), &socket));
    SocketServer::start(OURS, &mut open, socket, vec![image])
}

/// Adds the options of a virtual machine's disk to a command that opens an image.
fn vhost_user(mut open: Command, socket: &Path) -> Command {
    open.arg("--vhost-user").arg(socket).args(["--vhost-user-queues", "1"]);
    open
}

fn null(place: &BenchFolder) -> Result<SocketServer, BenchError> {
    let (image, socket) = (place.image("vhost-user-null.img")?, place.path("vhost-user-null.sock"));
    let mut open = pinned(&vhost_user(place.open_null(&image), &socket));
    SocketServer::start(OURS_NULL, &mut open, socket, vec![image])
}

fn daemon(place: &BenchFolder, luks: bool) -> Result<SocketServer, BenchError> {
    let (name, stem) = if luks { (DAEMON, "qsd-luks") } else { (DAEMON_FILE, "qsd-file") };
    let image = if luks { place.luks1(stem)? } else { place.image(stem)? };
    let socket = place.path(&format!("{stem}.sock"));
    let mut serve = Command::new("qemu-storage-daemon");
    serve.arg("--object").arg(place.secret()).args(["--object", "iothread,id=thread"]);
    serve.arg("--blockdev").arg(format!("driver=file,node-name=file,filename={}", image.display()));
    if luks {
        serve.args(["--blockdev", "driver=luks,node-name=luks,file=file,key-secret=key"]);
    }
    serve.arg("--export").arg(format!(
        "type=vhost-user-blk,id=disk,node-name={},writable=on,num-queues=1,iothread=thread,addr.type=unix,addr.path={}",
        if luks { "luks" } else { "file" },
        socket.display()
    ));
    SocketServer::start(name, &mut pinned(&serve), socket, vec![image])
}
