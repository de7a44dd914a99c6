//! A volume is given to another process, with its clients: the side that gives.
//!
//! ```text
//!   who takes over                                who gives
//!   hand-over, a request        ------>
//!                               <------  done     nothing is in the way
//!   Asking::Begin               ------>
//!                               <------  Offer    what it is, its key; the image's and the sockets' descriptors
//!   prepares all that it can                      serves
//!   Asking::Ready               ------>
//!                                                 flushes; then nobody comes in, connections come to rest, the
//!                                                 volume is suspended and flushed: from here on clients wait; the
//!                                                 kernel's block device is let go of
//!                               <------  Rests, and each connection; the virtual machine's front end
//!   opens its queues, recovers the block device
//!   taken                       ------>           ends, and leaves all as it is
//!   serves
//! ```
//!
//! Whatever goes wrong before "taken", this side goes on as if nothing had been; so it does when
//! that does not come in time. The locks on the image are of its open file, which both have: nobody
//! else gets in between.

use std::iter;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use underseal_cipher::Key;
use underseal_datapath::{Mapping, Policy};
use underseal_device::FileDevice;
use underseal_volume::Volume;

use super::keys::Keys;
use super::line::Line;
use super::offer::{Asking, Given, Offer, Origin, PROTOCOL, Supervised};
use super::protocol::{Refusal, RefusalKind, Reply};
use super::reencryption::Reencrypter;
use super::volume::{Answer, Described};
use super::ways::{Places, Ways};
use crate::net::{CarriedListener, Deadlined, Gate, Peer, Socket};

/// What to do where nothing can be handed over.
pub(super) const INSTEAD: &str = "`underseal close` it, and open it again with the new version";

/// What who takes over has to say what is next.
const NEXT: Duration = Duration::from_secs(10);
/// What it has to prepare itself. Clients are served meanwhile.
const PREPARES: Duration = Duration::from_secs(60);
/// How long clients wait at most: until all rests, and until the other process has taken over.
const RESTS: Duration = Duration::from_secs(5);
/// What control clients and scrapers have to end.
const LEAVES: Duration = Duration::from_secs(1);
/// What the other process has to become its supervisor's.
const LEAVES_ITS_STARTER: Duration = Duration::from_secs(5);

/// What a server gives, and how it ends then.
pub struct Giver {
    /// Its image.
    pub image: Arc<FileDevice>,
    /// How it was started.
    pub origin: Origin,
    /// What it is served by.
    pub ways: Ways,
    /// Who supervises it.
    pub supervised: Option<Supervised>,
    /// Files that are not the image, whose paths the other process believes only with their
    /// descriptors: the header, and last the log file as this process has it open, which goes on in
    /// the other one.
    pub apart: Box<dyn Fn() -> Vec<OwnedFd> + Send + Sync>,
    /// Ends this process, and leaves all as it is. The number of the process that has the volume
    /// now.
    pub end: Box<dyn Fn(i32) + Send + Sync>,
    gates: OnceLock<Gates>,
    handing: Mutex<(Handing, Option<Socket>)>,
}

struct Gates {
    control: Gate,
    metrics: Option<Gate>,
}

/// How far a hand-over is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Handing {
    /// There is none.
    #[default]
    No,
    /// The other process prepares itself.
    Prepares,
    /// Clients wait.
    Rests,
    /// They wait, and the server was told to end: it does when they go on.
    Ends,
    /// The server ends, and nothing is handed over any more.
    Ended,
}

/// The volume as it is.
pub(super) struct State<'v> {
    pub(super) described: &'v Described,
    pub(super) size: Option<u64>,
    pub(super) mapping: &'v Arc<Mapping>,
    pub(super) keys: &'v Mutex<Keys>,
    pub(super) reencrypter: Option<&'v dyn Reencrypter>,
}

/// What was offered, to be compared with what there is when all rests.
struct Offered {
    offer: Offer,
    control: Vec<CarriedListener>,
    metrics: Vec<CarriedListener>,
    reached: Places,
    volume: Arc<Volume>,
    policy: Policy,
    key: Arc<Key>,
}

impl Giver {
    /// A server that gives what it serves.
    pub fn new(
        image: Arc<FileDevice>,
        origin: Origin,
        ways: Ways,
        supervised: Option<Supervised>,
        apart: impl Fn() -> Vec<OwnedFd> + Send + Sync + 'static,
        end: impl Fn(i32) + Send + Sync + 'static,
    ) -> Self {
        let (gates, handing) = (OnceLock::new(), Mutex::default());
        Self { image, origin, ways, supervised, apart: Box::new(apart), end: Box::new(end), gates, handing }
    }

    /// From here on clients of the control socket, and scrapers, can be kept waiting.
    pub fn with_gates(&self, control: Gate, metrics: Option<Gate>) {
        let _ = self.gates.set(Gates { control, metrics });
    }

    /// The server is told to end. Whether that has to wait, until it is decided who has the volume:
    /// which it is at once.
    pub fn puts_off_the_end(&self) -> bool {
        let mut handing = self.handing();
        handing.0 = match handing.0 {
            Handing::No | Handing::Prepares | Handing::Ended => Handing::Ended,
            Handing::Rests | Handing::Ends => Handing::Ends,
        };
        if let (Handing::Ends, Some(socket)) = &*handing {
            // Whoever has not taken it by now does not get it.
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Read);
        }
        handing.0 == Handing::Ends
    }

    /// Whether the server was told to end while it could not; once.
    pub(super) fn ends(&self) -> bool {
        let mut handing = self.handing();
        let ends = handing.0 == Handing::Ends;
        if ends {
            handing.0 = Handing::Ended;
        }
        ends
    }

    /// Whether somebody has the key, or is about to get it.
    pub(super) fn is_at_it(&self) -> bool {
        matches!(self.handing().0, Handing::Prepares | Handing::Rests | Handing::Ends)
    }

    /// Gives the volume. It returns when that failed: why, and whether the other still listens for
    /// a reply.
    pub(super) fn give(&self, of: &State<'_>, protocol: u32, client: &Socket) -> (Refusal, bool) {
        if protocol != PROTOCOL {
            let message = format!("this server hands over in version {PROTOCOL}, not in version {protocol}");
            return (Refusal::new(RefusalKind::Request, message, INSTEAD), true);
        }
        let pid = match Peer::of(client) {
            Peer::Unix { pid, uid } if uid == rustix::process::geteuid().as_raw() => pid,
            peer => {
                let message = format!(
                    "{peer} is not the user who opened it: another one would serve it with other rights"
                );
                return (Refusal::new(RefusalKind::Forbidden, message, "as that user"), true);
            }
        };
        if underseal_sandbox::is_inside(pid).unwrap_or(true) {
            let message =
                format!("process {pid} is a server in a sandbox, or cannot be looked at: it gets no key");
            return (Refusal::new(RefusalKind::Forbidden, message, "underseal upgrade NAME"), true);
        }
        match &mut self.handing().0 {
            at @ Handing::No => *at = Handing::Prepares,
            _ => return (busy("it is handed over just now, or closed"), true),
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
                // Who is gone is not told.
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

    /// What there is to give, if nothing is in the way of it.
    fn offered(&self, of: &State<'_>) -> Answer<Offered> {
        let no = |why: String, remedy: &str| Refusal::new(RefusalKind::Unsupported, why, remedy);
        let gates = self.gates.get().ok_or_else(|| busy("it is not served yet"))?;
        of.may_be_given()?;
        let reached = self.ways.places()?;
        if of.mapping.is_zoned() {
            return Err(no("a device with zones cannot be handed over".into(), INSTEAD));
        }
        // First: who wipes it waits, with this locked, for the volume to be let go of.
        let key = of.keys.lock().unwrap_or_else(PoisonError::into_inner).key();
        let volume = of.mapping.volume().ok_or_else(|| busy("its key is wiped"))?;
        let key = key.ok_or_else(|| no("its key is not kept".into(), INSTEAD))?;
        let carried = volume.carried().map_err(|e| no(format!("it cannot be handed over: {e}"), INSTEAD))?;
        // What is kept is tried, too: nothing else may be read and written than up to now.
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

    /// Offers it, and gives it when the other process is ready. It returns when that one has not
    /// taken it.
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
            Ok(_) => Err(Refusal::new(RefusalKind::Request, "the other process says nonsense", "")),
            Err(e) => Err(failed(&e.within("the other process"))),
        };
        hears(Asking::Begin, NEXT)?;
        let apart = (self.apart)();
        let mut fds = self.descriptors(offered);
        // The last ones: versions that do not ask for them leave them alone.
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
            return Err(busy("something of it is changed just now"));
        };
        let mut rest = Resting::begin(self, of, client)?;
        let waits_since = Instant::now();
        let until = waits_since + RESTS;
        let sent = self.comes_to_rest(&mut rest, of, offered, line, until);
        // Also where that failed: the other one may have heard all that it needs.
        if line.is_taken(if sent.is_ok() { until } else { Instant::now() }) {
            let waited = waits_since.elapsed();
            log::info!(
                "handed over to process {pid}; clients have waited {waited:?} here, the flush before took {flushed_in:?}"
            );
            // Until it has left the process that started it: a supervisor waits for its own
            // children only.
            line.is_left(Instant::now() + LEAVES_ITS_STARTER);
            (self.end)(pid);
        }
        let waited = waits_since.elapsed();
        drop(rest);
        sent?;
        Ok(Refusal::new(
            RefusalKind::Failed,
            format!(
                "the other process has not taken it; clients have waited {waited:?}, and are served here as before"
            ),
            "",
        ))
    }

    /// In the order in which the other process takes them.
    fn descriptors<'o>(&'o self, offered: &'o Offered) -> Vec<BorrowedFd<'o>> {
        let Offered { control, metrics, reached, .. } = offered;
        let sockets = [control, metrics, &reached.nbd, &reached.machine].into_iter().flatten();
        let mount = self.ways.mount.iter().filter(|_| reached.mount.is_some());
        let image = self.image.file().as_fd();
        let sockets = sockets.map(|one| one.fd.as_fd());
        iter::once(image).chain(sockets).chain(mount.map(|(mount, _)| mount.device.as_fd())).collect()
    }

    /// Lets nothing be in flight any more, and tells the other process all that it needs to go on.
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
            return Err(busy("somebody else is at its control socket"));
        }
        if let Some(metrics) = &gates.metrics {
            // Who has not got all of a scrape asks again.
            metrics.close(0, LEAVES);
        }
        let at_rest = self.ways.hold(until).map_err(told)?;
        rest.suspend(until)?;
        of.may_be_given_suspended(offered)?;
        self.ways.let_go(&offered.reached, until).map_err(told)?;
        at_rest.send(line, until).map_err(told)
    }

    /// Flushes while clients are served, until little is left to be flushed when they wait.
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
    /// Whether nothing of it is in the middle of something.
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

    /// Whether it is what was offered, now that nobody changes it any more.
    fn may_be_given_suspended(&self, offered: &Offered) -> Answer {
        self.is_not_reencrypted()?;
        let same = self.mapping.volume().is_some_and(|now| Arc::ptr_eq(&now, &offered.volume));
        if !same || self.mapping.policy() != offered.policy {
            return Err(busy("it was changed meanwhile"));
        }
        Ok(())
    }
}

/// Clients wait, until this is dropped: then they go on.
struct Resting<'g> {
    giver: &'g Giver,
    mapping: &'g Mapping,
    suspended: bool,
}

impl<'g> Resting<'g> {
    fn begin(giver: &'g Giver, of: &State<'g>, client: &Socket) -> Answer<Self> {
        of.may_be_given()?;
        match &mut *giver.handing() {
            (at @ Handing::Prepares, socket) => (*at, *socket) = (Handing::Rests, Some(client.share())),
            _ => return Err(busy("it is closed just now")),
        }
        Ok(Self { giver, mapping: of.mapping, suspended: false })
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
            log::error!("a volume that was not handed over does not go on: {e}");
        }
        self.giver.ways.go_on();
        if let Some(Gates { control, metrics }) = self.giver.gates.get() {
            control.open();
            metrics.iter().for_each(Gate::open);
        }
    }
}

fn busy(message: &str) -> Refusal {
    Refusal::new(RefusalKind::Busy, message, "again, in a moment")
}

pub(super) fn failed(error: &(dyn std::error::Error + 'static)) -> Refusal {
    Refusal::new(RefusalKind::Failed, underseal_error::with_causes(error).to_string(), "")
}
