//! An open volume's policy, control socket and metrics.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use underseal_datapath::{ErrorKind, Mapping, Policy, may_run_first};
use underseal_export::TellSize;
use underseal_export::control::status::{Opened, Sandbox};
use underseal_export::control::{
    ControlServer, Controlled, Described, Directory, ImageIdentity, Known, Name, OldServer, RecordFile,
    Reencrypter, Refusal, RefusalKind, VolumeRecord,
};
use underseal_export::fuse::FuseTransport;
use underseal_export::metrics::Metrics;
use underseal_export::net::{Endpoint, Found, Gate, Listener};

use crate::cli::ControlArgs;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lower::{Remote, address, is_remote};

/// The servers of the control socket and the metrics, and the volume's record.
pub(super) struct Sides {
    control: Option<ControlServer>,
    record: Option<RecordFile>,
    metrics: Option<Metrics>,
}

impl Sides {
    /// Returns the gates that can hold back clients of the control socket, and scrapers.
    pub(super) fn gates(&self) -> Option<(Gate, Option<Gate>)> {
        Some((self.control.as_ref()?.gate(), self.metrics.as_ref().map(Metrics::gate)))
    }

    /// Sends the result of the close to each client that asked for it.
    pub(super) fn end(self, how: &Result<()>) {
        // A new server may have the name, and a record under it, as soon as the control socket ends.
        if let Some(record) = self.record {
            record.remove();
        }
        if let Some(control) = self.control {
            control.end(how.as_ref().copied().map_err(|e| {
                let kind = if e.exit() == Exit::Lost { RefusalKind::Lost } else { RefusalKind::Failed };
                Refusal::new(kind, e.what(), e.remedy().unwrap_or_default())
            }));
        }
    }
}

/// Refuses to show metrics to other machines without permission, before the passphrase is asked
/// for.
pub(super) fn plan_metrics(args: &ControlArgs) -> Result<Option<Found>> {
    let Some(endpoint) = args.metrics.as_ref().map(|address| &address.0) else { return Ok(None) };
    let Endpoint::Tcp { host, port } = endpoint else { return Ok(None) };
    let found = Found::look_up(endpoint);
    let found = found.map_err(|e| Error::usage(format!("--metrics {host}:{port}")).because(&e))?;
    if !args.allow_public_metrics && found.is_remote() {
        let what = format!("--metrics {host}:{port}: other machines could see how busy the volume is");
        return Err(Error::usage(what).with_remedy(format!("localhost:{port}, or --allow-public-metrics")));
    }
    Ok(Some(found))
}

/// Sets the policy that a volume begins with. Fails with `Usage` when it is not possible.
pub(super) fn set_policy(mapping: &Mapping, policy: Policy) -> Result<()> {
    if policy.high_priority
        && let Err(e) = may_run_first()
    {
        log::warn!(
            "high-priority has no effect, workers run like others: this user may not let them run first ({e})"
        );
    }
    mapping.set_policy(policy).map_err(|e| match e.kind() {
        ErrorKind::Policy => Error::usage(format!("--policy {e}")).with_remedy("--policy inline"),
        _ => e.into(),
    })
}

/// The description of a served volume, for its control socket.
pub(super) struct Opening<'a> {
    /// The name that users know the volume by.
    pub(super) image: &'a Path,
    /// The identity of the open image, if it is a file or block device.
    pub(super) identity: Option<ImageIdentity>,
    pub(super) opened: Opened,
    pub(super) known: Known,
    pub(super) addresses: Vec<String>,
    /// How the kernel passes a mount's requests.
    pub(super) transport: Option<FuseTransport>,
    pub(super) reencrypter: Option<Arc<dyn Reencrypter>>,
    /// The old server's side of a handover, or the reason why the volume cannot be handed over.
    pub(super) old_server: std::result::Result<Arc<OldServer>, String>,
}

/// The sockets of the control server and of the metrics.
pub(super) enum ControlSockets {
    /// New sockets. The control socket's name comes from the options, or from the image.
    New {
        /// The addresses of the metrics.
        metrics: Option<Found>,
    },
    /// The sockets of an old server, whose clients wait until the gates are opened.
    Carried {
        /// The name of the control socket.
        name: Name,
        control: Vec<Listener>,
        metrics: Vec<Listener>,
    },
}

/// Starts the control socket and the metrics. A failure to make either's sockets is logged only,
/// since the volume can be served without them, unless `--name` was given and is in use. Fails when
/// a thread cannot be started.
pub(super) fn start(
    args: &ControlArgs,
    sockets: ControlSockets,
    opening: Opening<'_>,
    sandbox: &Arc<OnceLock<Sandbox>>,
    mapping: &Arc<Mapping>,
    tell_size: Vec<TellSize>,
    stop: impl Fn() + Send + Sync + 'static,
) -> Result<Sides> {
    let Opening { image, identity, opened, known, addresses, transport, reencrypter, old_server } = opening;
    let image = match std::path::absolute(image) {
        Ok(path) if !is_remote(image) => path,
        _ => image.into(),
    };
    let record = VolumeRecord { image: image.display().to_string(), identity, opened: opened.clone() };
    let directory = Directory::of_user();
    let (control, name, metrics, open) = match sockets {
        ControlSockets::New { metrics } => {
            let (control, name) = listen(args, &image)?;
            (control, name, metrics.map_or_else(Vec::new, |found| metrics_listeners(&found)), true)
        }
        ControlSockets::Carried { name, control, metrics } => (Some(control), name, metrics, false),
    };
    let record = match &control {
        Some(_) if open => Some(record.write(&directory, &name)?),
        Some(_) => Some(record.keep_or_write(&directory, &name)?),
        None => None,
    };
    let sandbox = sandbox.clone();
    let described = Described { name, image, opened, addresses, transport, sandbox };
    let volume = Controlled::new(described, known, mapping.clone(), tell_size, stop);
    let volume = Arc::new(volume.with_reencrypter(reencrypter).with_old_server(old_server));
    let start = |listeners| ControlServer::start_at(listeners, volume.clone(), open);
    let control = control.map(start).transpose()?;
    let metrics = if metrics.is_empty() { None } else { Some(Metrics::start_at(metrics, volume, open)?) };
    Ok(Sides { control, record, metrics })
}

/// Listens for control clients, under the name that was asked for or the image's.
fn listen(args: &ControlArgs, image: &Path) -> Result<(Option<Vec<Listener>>, Name)> {
    let directory = Directory::of_user();
    match &args.name {
        Some(name) => Ok((Some(directory.listen(name)?), name.clone())),
        None => Ok(by_default(&directory, &default_name(image))),
    }
}

/// Listens for scrapers. A failure is logged only.
fn metrics_listeners(found: &Found) -> Vec<Listener> {
    match found.listen() {
        Ok(listeners) => {
            listeners.iter().for_each(|listener| log::info!("serving metrics on {listener}"));
            listeners
        }
        Err(e) => {
            log::error!("no metrics: {}", Error::from(e).what());
            Vec::new()
        }
    }
}

/// Returns the volume's name, before a number is appended for a name in use.
pub(super) fn name(args: &ControlArgs, image: &Path) -> Name {
    args.name.clone().unwrap_or_else(|| default_name(image))
}

/// Derives a name: an image's file name; its name on a cluster; for a server's URI, the export's
/// name or the path.
fn default_name(image: &Path) -> Name {
    let text = image.to_string_lossy();
    if !is_remote(image) {
        return Name::of_file(image);
    }
    if let Ok(Some(Remote::Rbd(address))) = address(image) {
        return Name::of_file(Path::new(address.image()));
    }
    let place = text.split_once("://").map_or(&*text, |(_, rest)| rest);
    let (path, query) = place.split_once('?').unwrap_or((place, ""));
    let socket = query.split(['&', ';']).find_map(|parameter| parameter.strip_prefix("socket="));
    let name = [Some(path.trim_end_matches('/')), socket].into_iter().flatten().find(|name| !name.is_empty());
    Name::of_file(Path::new(name.unwrap_or("nbd")))
}

fn by_default(directory: &Directory, name: &Name) -> (Option<Vec<Listener>>, Name) {
    match directory.listen_as(name) {
        Ok((listeners, name)) => (Some(listeners), name),
        Err(e) => {
            log::warn!("no control socket: {}", Error::from(e).what());
            (None, name.clone())
        }
    }
}
