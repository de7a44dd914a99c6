//! The old server's side of a handover: it passes a volume and its clients to another process.
//!
//! ```text
//!   new server                                 old server
//!   hand-over, a request     ------>
//!                            <------  done     the volume can be handed over
//!   Asking::Begin            ------>
//!                            <------  Offer    settings, key; descriptors of image and sockets
//!   prepares as much as it can                 serves
//!   Asking::Ready            ------>
//!                                              flushes; accepts no more clients, pauses the
//!                                              connections, suspends and flushes the volume;
//!                                              from here on clients wait; releases the
//!                                              kernel's block device
//!                            <------  Rests, and each connection; a virtual machine's front end
//!   opens its queues, recovers the block device
//!   taken                    ------>           exits, and leaves sockets and mounts in place
//!   serves
//! ```
//!
//! After any failure before "taken", the old server resumes; it also resumes when "taken" does not
//! arrive in time. Both processes have the open file whose locks protect the image, so no third
//! process can lock the image in between.

use std::iter;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use underseal_cipher::Key;
use underseal_datapath::{Mapping, Policy};
use underseal_device::FileDevice;
use underseal_volume::Volume;

use super::exports::{Places, ServerExports};
use super::keys::Keys;
use super::line::Line;
use super::offer::{Asking, Given, Offer, Origin, PROTOCOL, Supervised};
use super::protocol::{Refusal, RefusalKind, Reply};
use super::reencryption::Reencrypter;
use super::volume::{Answer, Described};
use crate::net::{CarriedListener, Deadlined, Gate, Peer, Socket};

/// The remedy where a handover is not possible.
pub(super) const INSTEAD: &str = "`underseal close` it, and open it again with the new version";

/// How long the new server may take for its next message.
const NEXT: Duration = Duration::from_secs(10);
/// How long the new server may take to prepare. Clients are served meanwhile.
const PREPARES: Duration = Duration::from_secs(60);
/// How long clients wait at most: until all exports are paused, and then until the new server has
/// answered.
const RESTS: Duration = Duration::from_secs(5);
/// How long control clients and scrapers may take to finish.
const LEAVES: Duration = Duration::from_secs(1);
/// How long the new server may take to leave its parent process and reach its supervisor.
const LEAVES_ITS_STARTER: Duration = Duration::from_secs(5);

/// The old server of a handover: the state that it passes on, and how the process ends afterwards.
pub struct OldServer {
    /// The volume's image.
    pub image: Arc<FileDevice>,
    /// How the server was started.
    pub origin: Origin,
    /// The server's exports.
    pub exports: ServerExports,
    /// The server's supervisor.
    pub supervised: Option<Supervised>,
    /// Descriptors of files other than the image, whose paths the new server trusts only with these
    /// descriptors: the header, the file below a loop device with its lock, and last the log file,
    /// which the new server appends to.
    pub apart: Box<dyn Fn() -> Vec<OwnedFd> + Send + Sync>,
    /// Ends this process, and leaves sockets and mounts in place. The argument is the PID of the
    /// new server.
    pub end: Box<dyn Fn(i32) + Send + Sync>,
    gates: OnceLock<Gates>,
    handing: Mutex<(Handing, Option<Socket>)>,
}

struct Gates {
    control: Gate,
    metrics: Option<Gate>,
}

/// How far a handover has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Handing {
    /// No handover runs.
    #[default]
    No,
    /// The new server prepares.
    Prepares,
    /// The exports are paused, and clients wait.
    Rests,
    /// The exports are paused, and the server was asked to stop: it stops if it has to resume.
    Ends,
    /// The server stops, and refuses handovers.
    Ended,
}

/// The volume's state at the time of the handover.
pub(super) struct State<'v> {
    pub(super) described: &'v Described,
    pub(super) size: Option<u64>,
    pub(super) mapping: &'v Arc<Mapping>,
    pub(super) keys: &'v Mutex<Keys>,
    pub(super) reencrypter: Option<&'v dyn Reencrypter>,
}

/// The state that was offered, to be compared with the state when all exports are paused.
struct Offered {
    offer: Offer,
    control: Vec<CarriedListener>,
    metrics: Vec<CarriedListener>,
    reached: Places,
    volume: Arc<Volume>,
    policy: Policy,
    key: Arc<Key>,
}

impl OldServer {
    /// A server that can hand over its exports.
    pub fn new(
        image: Arc<FileDevice>,
        origin: Origin,
        exports: ServerExports,
        supervised: Option<Supervised>,
        apart: impl Fn() -> Vec<OwnedFd> + Send + Sync + 'static,
        end: impl Fn(i32) + Send + Sync + 'static,
    ) -> Self {
        let (gates, handing) = (OnceLock::new(), Mutex::default());
        Self {
            image,
            origin,
            exports,
            supervised,
            apart: Box::new(apart),
            end: Box::new(end),
            gates,
            handing,
        }
    }

    /// Sets the gates that hold back clients of the control socket and of the metrics.
    pub fn with_gates(&self, control: Gate, metrics: Option<Gate>) {
        let _ = self.gates.set(Gates { control, metrics });
    }

    /// Records that the server was asked to stop. Returns true when the stop has to wait until a
    /// handover has ended; the wait is short, since a new server that has not answered yet no
    /// longer gets the volume.
    pub fn puts_off_the_end(&self) -> bool {
        let mut handing = self.handing();
        handing.0 = match handing.0 {
            Handing::No | Handing::Prepares | Handing::Ended => Handing::Ended,
            Handing::Rests | Handing::Ends => Handing::Ends,
        };
        if let (Handing::Ends, Some(socket)) = &*handing {
            // A new server that has not sent the commit word by now does not get the volume.
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Read);
        }
        handing.0 == Handing::Ends
    }

    /// Returns true, once, when the server was asked to stop during a handover.
    pub(super) fn ends(&self) -> bool {
        let mut handing = self.handing();
        let ends = handing.0 == Handing::Ends;
        if ends {
            handing.0 = Handing::Ended;
        }
        ends
    }

    /// Returns true when another process has the key, or is about to get it.
    pub(super) fn is_at_it(&self) -> bool {
        matches!(self.handing().0, Handing::Prepares | Handing::Rests | Handing::Ends)
    }

    /// Hands the volume over. The function returns only on failure: the reason, and whether the new
    /// server still waits for a reply.
    pub(super) fn give(&self, of: &State<'_>, protocol: u32, client: &Socket) -> (Refusal, bool) {
        if protocol != PROTOCOL {
            let message = format!("this server hands over in version {PROTOCOL}, not in version {protocol}");
            return (Refusal::new(RefusalKind::Request, message, INSTEAD), true);
        }
        let pid = match Peer::of(client) {
            Peer::Unix { pid, uid } if uid == rustix::process::geteuid().as_raw() => pid,
            peer => {
                let message = format!(
                    "{peer} is not the user who opened the volume: a server of another user has other rights"
                );
                return (Refusal::new(RefusalKind::Forbidden, message, "run as that user"), true);
            }
        };
        if underseal_sandbox::is_inside(pid).unwrap_or(true) {
            let message =
                format!("process {pid} is a server in a sandbox, or cannot be inspected: it gets no key");
            return (Refusal::new(RefusalKind::Forbidden, message, "underseal upgrade NAME"), true);
        }
        match &mut self.handing().0 {
            at @ Handing::No => *at = Handing::Prepares,
            _ => return (busy("a handover or the close of the volume is under way just now"), true),
        }
        let offered = self.offered(of).and_then(|offered| {
            let mut to = Deadlined { socket: client, deadline: Instant::now() + NEXT };
            let told = std::io::Write::write_all(&mut to, &Reply::Done.line());
            told.map(|()| offered).map_err(|e| failed(&e))
        });
        let (refusal, listens) = match offered {
            Err(refusal) => (refusal, true),
            Ok(offered) => {
                let line = Line::new(client.share());
                let refusal =
                    self.give_to(of, &offered, (&line, client), pid).unwrap_or_else(|refusal| refusal);
                // The new server may have ended, so the error does not matter.
                let _ = line.send(&Given::Refused(refusal.clone()), &[], &[], Instant::now() + LEAVES);
                (refusal, false)
            }
        };
        let mut handing = self.handing();
        handing.1 = None;
        if let Handing::Prepares | Handing::Rests = handing.0 {
            handing.0 = Handing::No;
        }
        (refusal, listens)
    }

    /// Collects the state to offer, or refuses where the volume cannot be handed over.
    fn offered(&self, of: &State<'_>) -> Answer<Offered> {
        let no = |why: String, remedy: &str| Refusal::new(RefusalKind::Unsupported, why, remedy);
        let gates = self.gates.get().ok_or_else(|| busy("it is not served yet"))?;
        of.may_be_given()?;
        let reached = self.exports.places()?;
        if of.mapping.is_zoned() {
            return Err(no("a device with zones cannot be handed over".into(), INSTEAD));
        }
        // The lock of the key comes first: `wipe` holds it while it waits until no thread uses the
        // volume.
        let key = of.keys.lock().unwrap_or_else(PoisonError::into_inner).key();
        let volume = of.mapping.volume().ok_or_else(|| busy("its key is wiped"))?;
        let key = key.ok_or_else(|| no("its key is not kept".into(), INSTEAD))?;
        let carried = volume.carried().map_err(|e| no(format!("it cannot be handed over: {e}"), INSTEAD))?;
        // Builds the volume from the state to offer: the new server must read and write the same
        // bytes.
        carried
            .volume(&key)
            .map_err(|e| no(format!("it has another key than when it was opened: {e}"), INSTEAD))?;
        let described = of.described;
        let listening = |listeners: crate::Result<Vec<CarriedListener>>| listeners.map_err(|e| failed(&e));
        let control = listening(gates.control.listeners())?;
        let metrics = gates.metrics.as_ref().map_or(Ok(vec![]), |gate| listening(gate.listeners()))?;
        let places = |sockets: &[CarriedListener]| sockets.iter().map(|one| one.place.clone()).collect();
        let policy = of.mapping.policy();
        let offer = Offer {
            name: described.name.to_string(),
            image: described.image.display().to_string(),
            opened: described.opened.clone(),
            addresses: described.addresses.clone(),
            size: of.size,
            read_only: of.mapping.read_only(),
            policy: policy.to_string(),
            volume: carried,
            origin: self.origin.clone(),
            supervised: self.supervised.clone(),
            control: places(&control),
            metrics: places(&metrics),
            nbd: places(&reached.nbd),
            machine: places(&reached.machine),
            mount: reached.mount.clone(),
            ublk: reached.ublk.clone(),
        };
        Ok(Offered { offer, control, metrics, reached, volume, policy, key })
    }

    /// Offers the state, and hands the volume over when the new server is ready. Returns an error
    /// when the new server has not taken the volume.
    fn give_to(
        &self,
        of: &State<'_>,
        offered: &Offered,
        (line, client): (&Line, &Socket),
        pid: i32,
    ) -> Answer<Refusal> {
        let told = |e: crate::Error| failed(&e);
        let hears = |wanted: Asking, limit: Duration| match line.receive::<Asking>(Instant::now() + limit) {
            Ok(heard) if heard.message == wanted => Ok(()),
            Ok(_) => Err(Refusal::new(RefusalKind::Request, "the new server sent an unexpected message", "")),
            Err(e) => Err(failed(&e.within("the new server"))),
        };
        hears(Asking::Begin, NEXT)?;
        let apart = (self.apart)();
        let mut fds = self.descriptors(offered);
        // The last descriptors are those that a new server of an older version ignores.
        fds.extend(apart.iter().map(AsFd::as_fd));
        let offer = Given::Offer(Box::new(offered.offer.clone()));
        line.send(&offer, &fds, &[offered.key.as_bytes()], Instant::now() + NEXT).map_err(told)?;
        hears(Asking::Ready, PREPARES)?;
        let begun = Instant::now();
        if !of.mapping.read_only() {
            self.flush_ahead()?;
        }
        let flushed_in = begun.elapsed();
        let Ok(_keys) = of.keys.try_lock() else {
            return Err(busy("its size or key is being changed just now"));
        };
        let mut rest = Resting::begin(self, of, client)?;
        let waits_since = Instant::now();
        let until = waits_since + RESTS;
        let sent = self.comes_to_rest(&mut rest, of, offered, line, until);
        // After a failed send, too, the new server may have all that it needs.
        if line.is_taken(if sent.is_ok() { until } else { Instant::now() }) {
            let waited = waits_since.elapsed();
            log::info!(
                "handed over to process {pid}; clients have waited {waited:?} here, the flush before took {flushed_in:?}"
            );
            // The old server waits until the new one has left its parent process: a supervisor
            // accepts only its own children.
            line.is_left(Instant::now() + LEAVES_ITS_STARTER);
            (self.end)(pid);
        }
        let waited = waits_since.elapsed();
        drop(rest);
        sent?;
        Ok(Refusal::new(
            RefusalKind::Failed,
            format!(
                "the new server has not taken the volume; this server resumes, clients have waited {waited:?}"
            ),
            "",
        ))
    }

    /// Returns the descriptors in the order in which the new server expects them.
    fn descriptors<'o>(&'o self, offered: &'o Offered) -> Vec<BorrowedFd<'o>> {
        let Offered { control, metrics, reached, .. } = offered;
        let sockets = [control, metrics, &reached.nbd, &reached.machine].into_iter().flatten();
        let mount = self.exports.mount.iter().filter(|_| reached.mount.is_some());
        let image = self.image.file().as_fd();
        let sockets = sockets.map(|one| one.fd.as_fd());
        iter::once(image).chain(sockets).chain(mount.map(|(mount, _)| mount.device.as_fd())).collect()
    }

    /// Pauses the exports until no request is in flight, and sends the new server their state.
    fn comes_to_rest(
        &self,
        rest: &mut Resting<'_>,
        of: &State<'_>,
        offered: &Offered,
        line: &Line,
        until: Instant,
    ) -> Answer {
        let told = |e: crate::Error| failed(&e);
        let gates = self.gates.get().ok_or_else(|| busy("it is not served yet"))?;
        if !gates.control.close(1, LEAVES) {
            return Err(busy("another client uses its control socket"));
        }
        if let Some(metrics) = &gates.metrics {
            // A scraper without a complete answer scrapes again.
            metrics.close(0, LEAVES);
        }
        let at_rest = self.exports.hold(until).map_err(told)?;
        rest.suspend(until)?;
        of.may_be_given_suspended(offered)?;
        self.exports.let_go(&offered.reached, until).map_err(told)?;
        at_rest.send(line, until).map_err(told)
    }

    /// Flushes while clients are served, so that the flush during the pause is short.
    fn flush_ahead(&self) -> Answer {
        for _ in 0..4 {
            let begun = Instant::now();
            underseal_device::flush(&*self.image).map_err(|e| failed(&e))?;
            if begun.elapsed() < Duration::from_secs(1) {
                return Ok(());
            }
        }
        Err(busy("its disk is written to faster than it can be flushed"))
    }

    fn handing(&self) -> MutexGuard<'_, (Handing, Option<Socket>)> {
        self.handing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State<'_> {
    /// Refuses a handover while the volume is suspended or reencrypted.
    fn may_be_given(&self) -> Answer {
        if self.mapping.is_stopped() {
            let remedy = format!("underseal resume {}", self.described.name);
            return Err(Refusal::new(RefusalKind::Busy, "it is suspended", remedy));
        }
        self.is_not_reencrypted()
    }

    fn is_not_reencrypted(&self) -> Answer {
        if self.reencrypter.is_some_and(|reencrypter| reencrypter.status().is_some()) {
            let message = "it is being reencrypted, or has been since it was opened";
            return Err(Refusal::new(RefusalKind::Unsupported, message, INSTEAD));
        }
        Ok(())
    }

    /// Refuses the handover when the suspended volume is no longer the one that was offered.
    fn may_be_given_suspended(&self, offered: &Offered) -> Answer {
        self.is_not_reencrypted()?;
        let same = self.mapping.volume().is_some_and(|now| Arc::ptr_eq(&now, &offered.volume));
        if !same || self.mapping.policy() != offered.policy {
            return Err(busy("it was changed meanwhile"));
        }
        Ok(())
    }
}

/// The pause of all exports; dropping it resumes them.
struct Resting<'g> {
    old_server: &'g OldServer,
    mapping: &'g Mapping,
    suspended: bool,
}

impl<'g> Resting<'g> {
    fn begin(old_server: &'g OldServer, of: &State<'g>, client: &Socket) -> Answer<Self> {
        of.may_be_given()?;
        match &mut *old_server.handing() {
            (at @ Handing::Prepares, socket) => (*at, *socket) = (Handing::Rests, Some(client.share())),
            _ => return Err(busy("it is being closed just now")),
        }
        Ok(Self { old_server, mapping: of.mapping, suspended: false })
    }

    fn suspend(&mut self, until: Instant) -> Answer {
        let left = until.saturating_duration_since(Instant::now());
        self.mapping.suspend(left).map_err(|e| failed(&e))?;
        self.suspended = true;
        Ok(())
    }
}

impl Drop for Resting<'_> {
    fn drop(&mut self) {
        if self.suspended
            && let Err(e) = self.mapping.resume()
        {
            log::error!("handover: the volume was not handed over, and cannot be resumed: {e}");
        }
        self.old_server.exports.go_on();
        if let Some(Gates { control, metrics }) = self.old_server.gates.get() {
            control.open();
            metrics.iter().for_each(Gate::open);
        }
    }
}

fn busy(message: &str) -> Refusal {
    Refusal::new(RefusalKind::Busy, message, "retry in a moment")
}

pub(super) fn failed(error: &(dyn std::error::Error + 'static)) -> Refusal {
    Refusal::new(RefusalKind::Failed, underseal_error::with_causes(error).to_string(), "")
}
