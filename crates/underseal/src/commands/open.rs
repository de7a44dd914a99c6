//! `underseal open`.

mod args;
mod assembly;
mod control;
mod desktop;
mod limits;
mod listen;
mod new_server;
mod old_server;
mod sandbox;
mod serve;
mod servers;
mod ublk;
mod uri;
mod vhost_user;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use underseal_cipher::CpuPath;
use underseal_datapath::Mapping;
use underseal_export::control::Rate;
use underseal_export::fuse::{FuseConfig, FuseServer, MountPoint};
use underseal_export::nbd::protocol::TransmissionFlags as Flags;
use underseal_export::nbd::{
    ExportInfo, Exports, MAX_PAYLOAD, Server, ServerConfig, TlsConfig, TlsFiles, TlsMode, VolumeHandler,
};
use underseal_export::net::Listener;

pub(crate) use self::args::{OpenArgs, UpgradeArgs};
pub(super) use self::desktop::help as help_desktop;
pub(super) use self::new_server::take_over;

use self::assembly::{Assembly, OpenVolume, VolumeNames};
use self::control::ControlSockets;
use self::desktop::DesktopFile;
use self::listen::Sockets;
use self::serve::Watch;
use self::servers::Servers;
use super::same_file;
use crate::cli::ServeArgs;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::notify;
use crate::output::print;
use crate::pid_file::PidFile;
use crate::policy;
use crate::volume::{self, Access, Opened};
use crate::{daemon, descriptors, logging, signals};

pub(super) fn run(args: &OpenArgs, quiet: bool) -> Result<()> {
    let access = Access { read_only: args.read_only, allow_discards: args.allow_discards };
    let rate = args.reencrypt.map(|rate| rate.0);
    serve(&args.serve, &args.volume.image, rate, quiet, || volume::open(&args.volume, access))
}

/// Serves the volume that `open` opens, under the name that users know it by; resumes its
/// reencryption if a rate is given. The volume is opened in the process that serves it.
pub(super) fn serve(
    args: &ServeArgs,
    name: &Path,
    reencrypt: Option<Rate>,
    quiet: bool,
    open: impl FnOnce() -> Result<Opened>,
) -> Result<()> {
    // The folder of relative paths is read before the daemon leaves it.
    let origin = old_server::origin(args);
    let called = control::name(&args.control, name);
    let mut sockets = Sockets::plan(args, &called)?;
    let mount_point = args.fuse.as_deref().map(|path| mount_point(path, name)).transpose()?;
    let shown = if args.desktop { Some(DesktopFile::make(&called)?) } else { None };
    ublk::plan(args)?;
    let metrics = control::plan_metrics(&args.control)?;
    // The fork comes before any thread or key exists: see `daemon`.
    let child = if args.daemon { Some(daemon::fork()?) } else { None };
    if let Some(path) = &args.log_file {
        logging::to_file(path)?;
    }
    sandbox::prepare(args, mount_point.as_ref().or(shown.as_ref().map(DesktopFile::point)))?;
    let (mount_point, desktop) = match shown.map(DesktopFile::helper).transpose()? {
        Some((point, desktop)) => (Some(point), Some(Arc::new(desktop))),
        None => (mount_point, None),
    };
    notify::start();
    let tls = tls(args)?;
    let volume = OpenVolume::new(args, open()?, reencrypt)?;
    let mapping = volume.mapping.clone();
    control::set_policy(&mapping, policy::start(args.control.policy, &mapping))?;
    log::info!("ciphers run on the CPU path {}", CpuPath::chosen()?.name());

    // From here on, an end has to clean up.
    let taken = signals::take(signals::ENDING)
        .map_err(|e| Error::new(Exit::Failed, "cannot wait for signals").because(&e))?;
    let watch = Watch::start(taken)?;
    let (listeners, own) = sockets.listen()?;
    watch.go_on()?;
    let fuse = match &mount_point {
        Some(point) => {
            Some(FuseServer::mount(mapping.clone(), point, &fuse_config(args, &listeners, &mapping))?)
        }
        None => None,
    };
    watch.go_on()?;
    let ublk = ublk::start(args, name, &mapping)?;
    let vhost_user = vhost_user::listen(&args.vhost_user, sockets.access(), name, &mapping)?;
    let mut addresses = uri::uris(args, own.as_deref(), &listeners);
    addresses.extend(vhost_user::address(&args.vhost_user));
    let paths = ublk::paths(mount_point.as_ref().map(MountPoint::path), ublk.as_ref());
    let ready = uri::ready_text(name, &addresses, &paths);
    addresses.extend(paths);
    let served_at = addresses.join(" ");
    let nbd = if listeners.is_empty() { None } else { Some(nbd_server(args, tls, listeners, &mapping)?) };
    let servers = Servers { nbd, fuse, ublk, vhost_user, desktop: desktop.clone() };
    let control = ControlSockets::New { metrics };
    let names = VolumeNames { image: name, addresses };
    let mut assembly = Assembly::new(args, volume, servers, control, names, origin, watch)?;
    assembly.activate();
    assembly.watch.keep(args.pid_file.as_deref().map(PidFile::write).transpose()?);
    // Whatever ends this, the file is served until it is off the desktop.
    let shown = desktop.map(|desktop| desktop.show(mapping.size(), mapping.read_only())).transpose()?;
    let ready = shown.as_ref().map_or(ready, |shown| uri::mounted_text(name, shown.at()));
    // All is open, and nobody has been told yet.
    if !args.daemon {
        descriptors::close_folders();
    }
    assembly.enter_sandbox(args)?;
    assembly.resume_reencryption()?;
    notify::ready(&served_at, assembly.health_check());
    // When the sockets come from another process, so does the terminal.
    if !quiet && !sockets.are_handed_over() {
        print(&ready)?;
    }
    if let Some(child) = child {
        if args.log_file.is_none() {
            logging::to_syslog();
        }
        child.detach()?;
    }
    assembly.give_back_memory();
    assembly.serve()
}

fn mount_point(path: &Path, image: &Path) -> Result<MountPoint> {
    if same_file(path, image) {
        let context = format!("{} would be hidden under its own plain bytes", image.display());
        return Err(Error::usage(context).with_remedy("another path for --fuse"));
    }
    Ok(MountPoint::new(path)?)
}

fn nbd_server(
    args: &ServeArgs,
    tls: TlsMode,
    listeners: Vec<Listener>,
    mapping: &Arc<Mapping>,
) -> Result<Server> {
    have_descriptors(args.max_connections.into());
    let config = ServerConfig {
        tls,
        allow_plaintext_tcp: args.allow_plaintext_tcp,
        simple_replies: args.simple_replies,
        max_connections: args.max_connections.into(),
        ..ServerConfig::new(Exports::new(vec![export(args, mapping)])?)
    };
    let handler = Arc::new(VolumeHandler::new(vec![mapping.clone()]));
    Ok(Server::new(config, listeners, handler)?)
}

/// Raises this process's limit of descriptors to the need of `clients` clients, within the hard
/// limit.
fn have_descriptors(clients: u64) {
    /// The number of descriptors for everything apart from clients.
    const OTHERS: u64 = 100;
    // A socket, a ring, a wakeup, and one for each device.
    let (needed, roomy) = (clients * 4 + OTHERS, clients * 8 + OTHERS);
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= roomy) {
        return;
    }
    // The limit is not raised further: some libraries examine each possible descriptor.
    limit.current = Some(limit.maximum.map_or(roomy, |maximum| maximum.min(roomy)));
    let raised = setrlimit(Resource::Nofile, limit);
    if let Some(current) = getrlimit(Resource::Nofile).current.filter(|current| *current < needed) {
        let why = raised.err().map_or_else(String::new, |e| format!(" ({e})"));
        log::warn!(
            "{clients} clients want {needed} descriptors, and this process may have {current}{why}: raise its hard limit \
             (ulimit -Hn, LimitNOFILE=), or lower --max-connections"
        );
    }
}

fn fuse_config(args: &ServeArgs, listeners: &[Listener], mapping: &Mapping) -> FuseConfig {
    // The kernel's page cache would not see writes of NBD clients and virtual machines.
    let elsewhere = !listeners.is_empty() || args.ublk || args.vhost_user.path.is_some();
    let written_elsewhere = elsewhere && !mapping.read_only();
    FuseConfig {
        threads: args.fuse_threads,
        allow_root: args.fuse_allow_root || (args.desktop && desktop::may_allow_root()),
        cache: !args.fuse_no_cache && !written_elsewhere,
        io_uring: !args.fuse_no_io_uring && !args.control.hand_over,
        // The kernel has bytes of the file system above that were acknowledged.
        drain_timeout: if args.desktop { Duration::MAX } else { FuseConfig::default().drain_timeout },
        ..FuseConfig::default()
    }
}

fn export(args: &ServeArgs, mapping: &Mapping) -> ExportInfo {
    let mut flags = Flags::HAS_FLAGS
        | Flags::SEND_FLUSH
        | Flags::SEND_FUA
        | Flags::SEND_WRITE_ZEROES
        | Flags::SEND_FAST_ZERO
        | Flags::SEND_CACHE
        | Flags::SEND_DF
        | Flags::CAN_MULTI_CONN;
    flags.set(Flags::READ_ONLY, mapping.read_only());
    flags.set(Flags::SEND_TRIM, mapping.discards());
    ExportInfo {
        name: args.export_name.clone(),
        description: args.description.clone(),
        size: mapping.size(),
        min_block: mapping.block(),
        preferred_block: mapping.preferred_block(),
        max_block: MAX_PAYLOAD,
        flags,
    }
}

/// Reads the certificates: now, and after each SIGHUP.
fn tls(args: &ServeArgs) -> Result<TlsMode> {
    let Some(directory) = &args.tls_certificates else { return Ok(TlsMode::Off) };
    let verify = args.tls_verify_peer;
    let config = TlsConfig::load(&TlsFiles::in_directory(directory, verify)?)?;
    let (again, directory) =
        (config.clone(), std::path::absolute(directory).unwrap_or_else(|_| directory.clone()));
    signals::on_hangup(move || {
        let shown = directory.display();
        match TlsFiles::in_directory(&directory, verify).and_then(|files| again.reload(&files)) {
            Ok(()) => {
                log::info!("{shown}: certificates and revocation lists are read again, for new connections")
            }
            Err(e) => {
                let why = underseal_error::with_causes(&e);
                log::error!("{shown}: new connections are made with the certificates from before: {why}");
            }
        }
    });
    Ok(TlsMode::Required(config))
}
