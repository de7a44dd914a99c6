//! `underseal upgrade`: the new server's side of a handover.
//!
//! Every step that can fail is done while the old server serves, or at least before the commit
//! word: until then dropping everything is enough. Before the commit word nothing is written to the
//! image, a client or a file.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, stat};
use underseal_cipher::Key;
use underseal_datapath::Policy;
use underseal_device::{FileDevice, OpenOptions};
use underseal_export::control::status::Format;
use underseal_export::control::{Asking, Client, Given, Line, Name, Offer, PROTOCOL, Reply, Request};
use underseal_export::fuse::{CarriedMount, FuseServer, MountPoint};
use underseal_export::nbd::{Bytes, Carried};
use underseal_export::net::{CarriedListener, Listener, ListenerPlace};
use underseal_export::ublk::{UblkHolder, UblkServer};
use underseal_export::vhost_user::{VhostUserHolder, VhostUserServer};

use super::args::{OpenArgs, UpgradeArgs};
use super::assembly::{Assembly, OpenVolume, VolumeNames};
use super::control::ControlSockets;
use super::serve::Watch;
use super::servers::Servers;
use super::{control, fuse_config, limits, nbd_server, sandbox, tls, vhost_user};
use crate::cli::{Cli, Command};
use crate::commands::control::{connect, failed, refused};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::loop_file;
use crate::pid_file::Another;
use crate::reencryption::marker;
use crate::time_limit::TimeLimit;
use crate::volume;
use crate::{daemon, logging, notify, signals};

/// How long the old server may take for a quick step, and until it has flushed and paused.
const PATIENCE: Duration = Duration::from_secs(30);
const FLUSHES: Duration = Duration::from_secs(600);
/// How long this process may have the block device before it ends: longer than the old server
/// waits.
const DEVICE: Duration = Duration::from_secs(10);
/// The most bytes of one connection's state: two of the longest requests, and one receive.
const MOST_LEFT: u64 = 160 << 20;

/// The remedy where a handover is not possible.
const INSTEAD: &str = "`underseal close` it, and open it again with this version";

pub(in crate::commands) fn take_over(args: &UpgradeArgs, quiet: bool) -> Result<()> {
    let name = &args.volume.name;
    // The fork comes before any thread or key exists: see `daemon`.
    let child = daemon::fork()?;
    let (line, server) = asked(name)?;
    server.map_or(Ok(()), limits::take_over).map_err(|e| e.within(name))?;
    let taken = prepare(name, (&line, server)).map_err(|e| e.within(name))?;
    taken.serve(name, line, child, quiet)
}

/// Asks the old server for the volume.
fn asked(name: &Name) -> Result<(Line, Option<i32>)> {
    let mut client: Client = connect(name)?;
    // This process runs with the old server's arguments, so both must belong to one user.
    if !client.is_own() {
        return Err(Error::new(Exit::Failed, format!("{name} is another user's")).with_remedy("as that user"));
    }
    let request = Request::HandOver { protocol: PROTOCOL };
    match client.ask(&request, None, PATIENCE).map_err(|e| failed(name, e))? {
        Reply::Refused(refusal) => Err(refused(name, refusal)),
        _ => {
            let server = client.server();
            Ok((client.into_line().map_err(|e| failed(name, e))?, server))
        }
    }
}

/// Returns true when the kernel reports that a server has dropped privileges that this process has;
/// also when the kernel does not report it.
fn is_confined(pid: i32) -> bool {
    let seccomp = |pid: &str| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let of = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name))?;
            value.trim().parse::<u32>().ok()
        };
        Some((of("NoNewPrivs:")?, of("Seccomp:")?, of("Seccomp_filters:").unwrap_or(0)))
    };
    let marked = underseal_sandbox::is_inside(pid).unwrap_or(true);
    marked || seccomp(&pid.to_string()).zip(seccomp("self")).is_none_or(|(its, own)| its != own)
}

/// A volume that this process is ready to serve.
struct Prepared {
    args: Box<OpenArgs>,
    assembly: Assembly,
    /// The limit of the time that this process may have the block device.
    limit: Option<TimeLimit>,
    pid_file: Option<Another>,
    addresses: Vec<String>,
}

/// Receives the offer, and prepares to serve the volume.
fn prepare(name: &Name, (line, served_by): (&Line, Option<i32>)) -> Result<Prepared> {
    let (offer, mut fds, len) = offered(line)?;
    let Offer { origin, opened, addresses, size, read_only, policy, volume, supervised, .. } = offer;
    // Relative paths start in the old server's folder.
    std::env::set_current_dir(&origin.folder)
        .map_err(|e| Error::new(Exit::Failed, format!("{}: cannot go there", origin.folder)).because(&e))?;
    let words = origin.arguments.clone();
    let mut cli = Cli::of_words(["underseal".to_owned()].into_iter().chain(words)).map_err(|e| {
        let text = e.to_string();
        let what = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
        Error::usage(format!("this version does not know the arguments of the server: {what}"))
    })?;
    cli.started_with(origin.arguments.iter().map(Into::into).collect());
    let Command::Open(mut args) = cli.command else {
        return Err(Error::usage("the server was started in a way that this version does not know"));
    };
    // A mount that was unmounted is not offered.
    if args.serve.fuse.is_none() && offer.mount.is_some()
        || !args.serve.ublk && offer.ublk.is_some()
        || args.serve.vhost_user.path.is_some() == offer.machine.is_empty()
    {
        return Err(Error::new(Exit::Unsupported, "this version cannot take over all that the server has"));
    }
    let confined = served_by.is_none_or(is_confined);
    if args.serve.no_sandbox && confined {
        let what = "its server is in a sandbox, and says that it was started with --no-sandbox: that is not believed";
        return Err(Error::new(Exit::Failed, what).with_remedy(INSTEAD));
    }
    if args.serve.tls_certificates.is_some() {
        // An old server never offers this, and the folder would be read.
        return Err(nonsense());
    }
    let header = args.volume.header.as_ref().filter(|_| confined);
    let header = header.map(|header| is_among(header, &fds, read_only)).transpose()?;
    // The new server will be a daemon.
    args.serve.daemon = true;
    let below = loop_file::carried(&mut fds);
    let its_log = its_log(&mut fds);
    match &args.serve.log_file {
        // A confined server may send any path, and this process could append to any file.
        Some(path) if confined => logging::go_on_with(path, its_log)?,
        Some(path) => logging::to_file(path)?,
        None => {}
    }
    let mount_point = offer.mount.as_ref().map(MountPoint::of_carried).transpose()?;
    sandbox::prepare(&args.serve, mount_point.as_ref())?;
    let key = key(line, len)?;
    if let Some(supervised) = &supervised {
        // The supervisor would not know this process, and take the service for ended.
        if supervised.groups != notify::groups() {
            let error = Error::usage("its server is a service, and this process is none of that service's");
            return Err(error.with_remedy(format!("systemctl reload underseal@{name}")));
        }
        notify::take_over(supervised);
    }
    let tls = tls(&args.serve)?;

    // The volume.
    if fds.is_empty() || !matches!(opened.format, Format::Luks1 | Format::Luks2 | Format::Plain) {
        return Err(nonsense());
    }
    if !is_open(&fds[0], read_only) {
        let what = format!("{}: the server does not have the image open", args.volume.image.display());
        return Err(Error::new(Exit::Failed, what).with_remedy(INSTEAD));
    }
    marker::refuse_unfinished(&args.volume.image)?;
    let options = OpenOptions { read_only, ..args.volume.lower.options(read_only) };
    let file =
        FileDevice::over(File::from(fds.remove(0)), &args.volume.image.display().to_string(), options)?;
    match below {
        Some(below) => loop_file::keep_carried(&file, below, !read_only)?,
        None if options.unlocked => {}
        None => loop_file::lock_below(&file, !read_only)?,
    }
    let volume = volume.volume(&key)?;
    let opened = volume::go_on(&args.volume, (Arc::new(file), header), volume, opened, (key, size))?;
    let volume = OpenVolume::new(&args.serve, opened, None)?;
    let mapping = volume.mapping.clone();
    let policy: Policy = policy.parse()?;
    control::set_policy(&mapping, policy)?;

    // The sockets of clients.
    let mut sockets = fds.into_iter();
    let mut listening = |places: Vec<ListenerPlace>| listeners(places, &mut sockets);
    let (control, metrics) = (listening(offer.control)?, listening(offer.metrics)?);
    let (nbd, machine) = (listening(offer.nbd)?, listening(offer.machine)?);
    let taken = signals::take(signals::ENDING)
        .map_err(|e| Error::new(Exit::Failed, "cannot wait for signals").because(&e))?;
    let watch = Watch::start(taken)?;
    let config = fuse_config(&args.serve, &nbd, &mapping);
    let mounted = |(point, place)| {
        let device = sockets.next().ok_or_else(nonsense)?;
        Ok::<_, Error>(FuseServer::take_over(
            mapping.clone(),
            &point,
            CarriedMount { device, place },
            &config,
        )?)
    };
    let fuse = mount_point.zip(offer.mount).map(mounted).transpose()?;
    let disk = |place| {
        let server = served_by.ok_or_else(nonsense)?;
        Ok::<_, Error>(UblkServer::take_over(mapping.clone(), &place, Some(server))?)
    };
    let ublk = offer.ublk.map(disk).transpose()?;
    let no_timer = |e| Error::new(Exit::Failed, "no timer").because(&e);
    let limit = ublk.as_ref().map(|_| TimeLimit::new()).transpose().map_err(no_timer)?;
    let nbd = if nbd.is_empty() { None } else { Some(nbd_server(&args.serve, tls, nbd, &mapping)?) };
    let vhost_user = vhost_user::take_over(&args.serve.vhost_user, machine, &args.volume.image, &mapping)?;
    let servers = Servers { nbd, fuse, ublk, vhost_user, desktop: None };
    let sockets = ControlSockets::Carried { name: name.clone(), control, metrics };
    // The path that was compared with the open image, not the one of the old server's word.
    let names = VolumeNames { image: &args.volume.image, addresses: addresses.clone() };
    let assembly = Assembly::new(&args.serve, volume, servers, sockets, names, Ok(origin), watch)?;
    let pid_file = args
        .serve
        .pid_file
        .as_deref()
        .map(|path| Another::open(path, served_by.unwrap_or(-1)))
        .transpose()?;
    assembly.enter_sandbox(&args.serve)?;
    Ok(Prepared { args, assembly, limit, pid_file, addresses })
}

impl Prepared {
    /// Takes the volume with the commit word, and serves it until its end.
    fn serve(self, name: &Name, line: Line, mut child: daemon::Child, quiet: bool) -> Result<()> {
        let Self { args, assembly, limit, pid_file, addresses } = self;
        let Servers { nbd, fuse, ublk, vhost_user, .. } = &assembly.servers;
        let machine = vhost_user.as_ref().map(VhostUserServer::holder);
        let device = ublk.as_ref().map(UblkServer::holder);
        let at = |e: underseal_export::Error| Error::from(e).within(name);
        line.send(&Asking::Ready, &[], &[], Instant::now() + PATIENCE).map_err(at)?;
        let connections = at_rest(&line).map_err(|e| e.within(name))?;
        let until = Instant::now() + PATIENCE;
        if let Some(machine) = &machine {
            let front = vhost_user::at_rest(&line, until).map_err(|e| e.within(name))?;
            front.map_or(Ok(()), |front| machine.adopt(front)).map_err(|e| at(e).with_remedy(INSTEAD))?;
        }
        let adopted = match nbd {
            Some(server) => Some(server.adopt(connections).map_err(at)?),
            None => None,
        };
        adopted.as_ref().map_or(Ok(()), |adopted| adopted.ready(until)).map_err(at)?;
        // Signals from the terminal's keys to this process do not end the volume.
        child.survives()?;
        if let (Some(device), Some(limit)) = (&device, &limit) {
            limit.set(DEVICE).map_err(|e| Error::new(Exit::Failed, "no time limit").because(&e))?;
            device.recover(Instant::now() + DEVICE / 2).map_err(at)?;
        }
        assembly.watch.go_on()?;
        // From here on the volume is this process's.
        line.take().map_err(|e| at(e.within("the process that serves it does not wait any more")))?;
        if let Some(Err(e)) = limit.map(TimeLimit::lift) {
            log::error!("this process ends soon, since its time limit stays: {e}");
        }
        if let Some(adopted) = adopted {
            adopted.go();
        }
        fuse.iter().map(FuseServer::holder).for_each(|holder| holder.go_on());
        machine.iter().for_each(VhostUserHolder::go_on);
        device.iter().for_each(UblkHolder::go_on);
        let gates = assembly.sides.gates();
        let gates: Vec<_> =
            gates.into_iter().flat_map(|(control, metrics)| [Some(control), metrics]).flatten().collect();
        let mut ours: Vec<_> = gates.iter().map(|gate| gate.are_ours()).collect();
        ours.extend(nbd.as_ref().map(|server| server.holder().are_ours()));
        ours.extend(machine.map(|machine| machine.are_ours()));
        for e in ours.into_iter().filter_map(underseal_export::Result::err) {
            log::error!("{}", Error::from(e).what());
        }
        // The PID file helps to stop the process; the volume is served without it, too.
        let pid_file = pid_file.map(Another::take).transpose();
        assembly.watch.keep(pid_file.unwrap_or_else(|e| {
            log::error!("{}", e.what());
            None
        }));
        assembly.activate();
        gates.iter().for_each(|gate| gate.open());
        notify::ready(&addresses.join(" "), assembly.health_check());
        if args.serve.log_file.is_none() {
            logging::to_syslog();
        }
        let starter = rustix::process::getppid();
        let (id, version) = (std::process::id(), env!("CARGO_PKG_VERSION"));
        let said = format!("{name}: served by process {id} now, version {version}\n");
        if let Err(e) = child.detach_saying(if quiet { "" } else { &said }) {
            log::error!("{}", e.what());
        }
        lets_go(line, starter);
        assembly.give_back_memory();
        log::info!("taken over: {name}");
        assembly.serve()
    }
}

/// Lets the old process go once the one that started this one is gone: from then on this one is a
/// child of whoever supervises it.
fn lets_go(line: Line, starter: Option<rustix::process::Pid>) {
    const LOOK: Duration = Duration::from_millis(5);
    let wait = move || {
        let end = Instant::now() + Duration::from_secs(5);
        while rustix::process::getppid() == starter && Instant::now() < end {
            thread::sleep(LOOK);
        }
        drop(line);
    };
    if let Err(e) = thread::Builder::new().name("let-go".into()).spawn(wait) {
        log::error!("no thread to wait for the end of the process that started this one: {e}");
    }
}

/// Receives the offer with its descriptors, and the length of the key that follows.
fn offered(line: &Line) -> Result<(Offer, Vec<OwnedFd>, u64)> {
    let until = Instant::now() + PATIENCE;
    line.send(&Asking::Begin, &[], &[], until)?;
    let heard = line.receive(until)?;
    let offer = match heard.message {
        Given::Offer(offer) => *offer,
        other => return Err(not_given(other)),
    };
    Ok((offer, heard.fds, heard.bytes))
}

/// Refuses a header that a sandboxed server has not opened: this process could read any file. Fails
/// with `Failed` when none of the descriptors is of the file at the path. Returns the file's device
/// and inode number: the path may lead to another file when it is opened.
fn is_among(header: &Path, fds: &[OwnedFd], read_only: bool) -> Result<(u64, u64)> {
    let there = stat(header).map_err(|e| Error::io(header, "cannot be looked at", e))?;
    let there = (there.st_dev, there.st_ino);
    let same = |fd: &OwnedFd| fstat(fd).is_ok_and(|of| (of.st_dev, of.st_ino) == there);
    if fds.iter().any(|fd| same(fd) && is_open(fd, read_only)) {
        return Ok(there);
    }
    let what = format!("{}: that is not the header that the server has open", header.display());
    Err(Error::new(Exit::Failed, what).with_remedy(INSTEAD))
}

/// Returns true when a descriptor is of a file or block device, open for all that this process will
/// do with it. The kernel gives code in a sandbox descriptors that only name a file (O_PATH) of any
/// file, and descriptors for reading of more files than the image.
fn is_open(fd: &OwnedFd, read_only: bool) -> bool {
    let (Ok(flags), Ok(about)) = (fcntl_getfl(fd), fstat(fd)) else { return false };
    let kind = FileType::from_raw_mode(about.st_mode);
    let access = flags & OFlags::RWMODE;
    !flags.contains(OFlags::PATH)
        && (access == OFlags::RDWR || read_only && access == OFlags::RDONLY)
        && matches!(kind, FileType::RegularFile | FileType::BlockDevice)
}

/// Takes the descriptor of the old server's log file from those of its offer: the last one, if it
/// is a regular file, which no descriptor except the image's is.
fn its_log(fds: &mut Vec<OwnedFd>) -> Option<File> {
    let last = fds.last().filter(|_| fds.len() > 1)?;
    let kind = FileType::from_raw_mode(fstat(last).ok()?.st_mode);
    fds.pop_if(|_| kind == FileType::RegularFile).map(File::from)
}

/// Receives the key, into locked memory.
fn key(line: &Line, len: u64) -> Result<Key> {
    let mut key = Key::zeroed(usize::try_from(len).unwrap_or(usize::MAX))?;
    line.read(key.as_mut_bytes(), Instant::now() + PATIENCE)?;
    Ok(key)
}

fn listeners(
    places: Vec<ListenerPlace>,
    sockets: &mut impl Iterator<Item = OwnedFd>,
) -> Result<Vec<Listener>> {
    let listener = |place| {
        let fd = sockets.next().ok_or_else(nonsense)?;
        Ok(Listener::from_carried(CarriedListener { fd, place })?)
    };
    places.into_iter().map(listener).collect()
}

/// Waits until all exports are paused, and receives each connection's state.
fn at_rest(line: &Line) -> Result<Vec<Carried>> {
    let count = match line.receive(Instant::now() + FLUSHES)?.message {
        Given::Rests(count) => count,
        other => return Err(not_given(other)),
    };
    let until = Instant::now() + PATIENCE;
    let mut connections = Vec::new();
    for _ in 0..count {
        let mut heard = line.receive(until)?;
        let Given::Connection(one) = heard.message else { return Err(not_given(heard.message)) };
        let (Some(socket), true) =
            (heard.fds.pop(), heard.bytes <= MOST_LEFT && one.ahead as u64 <= heard.bytes)
        else {
            return Err(nonsense());
        };
        let bytes = |len: usize| -> Result<Bytes> {
            let mut bytes = Bytes::new(vec![0; len]);
            line.read(&mut bytes, until)?;
            Ok(bytes)
        };
        let owed = usize::try_from(heard.bytes).unwrap_or(usize::MAX) - one.ahead;
        let (ahead, owed) = (bytes(one.ahead)?, bytes(owed)?);
        connections.push(Carried { socket: socket.into(), negotiated: one.negotiated(), ahead, owed });
    }
    Ok(connections)
}

pub(super) fn not_given(given: Given) -> Error {
    match given {
        Given::Refused(refusal) => {
            let error = Error::new(Exit::Failed, refusal.message);
            if refusal.remedy.is_empty() { error } else { error.with_remedy(refusal.remedy) }
        }
        _ => nonsense(),
    }
}

fn nonsense() -> Error {
    Error::new(Exit::Failed, "the server says what this version does not understand").with_remedy(INSTEAD)
}
