//! The control socket's server: access checks, time limits and the log of requests.

use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Controlled;
use super::protocol::{Checked, Reencrypt, Refusal, RefusalKind, Reply, Request};
use crate::Result;
use crate::net::{Attend, Attendant, Deadlined, Gate, Listener, Peer, Printable, RateLimit, Socket};

/// Serves a volume's control socket until it is dropped or the volume [ends](ControlServer::end).
pub struct ControlServer {
    attendant: Attendant,
    shared: Arc<Shared>,
}

struct Shared {
    volume: Arc<Controlled>,
    /// The sockets of clients that asked for the end and wait for it.
    closers: Mutex<Vec<Socket>>,
    /// The number of requests in progress that may take long.
    long: AtomicUsize,
    failure_log: RateLimit,
    losses: RateLimit,
}

/// The limit of concurrent clients. A further one is refused.
const CLIENTS: usize = 16;
/// The limit of concurrent requests that may take long: the remaining threads answer short
/// requests.
const LONG: usize = CLIENTS / 2;
/// How long a client may take to send its request, and to read its reply.
const PATIENCE: Duration = Duration::from_secs(10);

impl ControlServer {
    /// Starts the threads that answer requests on the listeners.
    ///
    /// # Errors
    /// `Listen` when a thread cannot be started.
    pub fn start(listeners: Vec<Listener>, volume: Arc<Controlled>) -> Result<Self> {
        Self::start_at(listeners, volume, true)
    }

    /// As [`ControlServer::start`]; with `open` false, clients wait until the
    /// [gate](ControlServer::gate) is opened.
    ///
    /// # Errors
    /// `Listen` when a thread cannot be started.
    pub fn start_at(listeners: Vec<Listener>, volume: Arc<Controlled>, open: bool) -> Result<Self> {
        let (closers, long) = (Mutex::default(), AtomicUsize::new(0));
        let (failure_log, losses) = (RateLimit::default(), RateLimit::default());
        let shared = Shared { volume, closers, long, failure_log, losses };
        let shared = Arc::new(shared);
        let attendant = Attendant::start("control", listeners, open, CLIENTS, shared.clone())?;
        Ok(Self { attendant, shared })
    }

    /// The gate that can hold back clients.
    pub fn gate(&self) -> Gate {
        self.attendant.gate()
    }

    /// Removes the socket once the volume is closed, and sends the result to each client that asked
    /// for the close. Their connections stay open until the process ends, and the clients wait for
    /// that.
    pub fn end(self, how: std::result::Result<(), Refusal>) {
        drop(self.attendant);
        let reply = how.map_or_else(Reply::Refused, |()| Reply::Done);
        let closers = std::mem::take(&mut *self.shared.lock_closers());
        for socket in closers {
            // A client that has disconnected does not wait.
            let _ = say(&socket, &reply);
            std::mem::forget(socket);
        }
    }
}

impl Attend for Shared {
    fn serve(&self, client: Socket) {
        let peer = Peer::of(&client);
        let request = permitted(&peer).and_then(|()| hear(&client)?);
        let (request, key) = match request {
            Err(Unheard::Gone(e)) => return log::debug!("control: {peer}: {e}"),
            Err(Unheard::Refused(refusal)) => {
                return answer(&client, &peer, &self.refuse(&peer, "its request", refusal));
            }
            Ok(heard) => heard,
        };
        if let Request::HandOver { protocol } = request {
            let (refusal, listens) = self.volume.hand_over(protocol, &client);
            let reply = self.refuse(&peer, "the hand-over", refusal);
            if listens {
                answer(&client, &peer, &reply);
            }
            return;
        }
        // A client that asks for the close is registered first: the end may come at once.
        let closers = (request == Request::Close).then(|| self.lock_closers());
        let reply = match self.place_for(&request) {
            Ok(_place) => self.volume.answer(&request, key.as_ref()),
            Err(refusal) => Reply::Refused(refusal),
        };
        drop(key);
        let reply = match reply {
            Reply::Refused(refusal) => self.refuse(&peer, &told(&request), refusal),
            Reply::Done => {
                log::info!("control: {peer}: {}", told(&request));
                Reply::Done
            }
            Reply::Resized { size, notes } => {
                log::info!("control: {peer}: resize: {size} bytes");
                Reply::Resized { size, notes }
            }
            Reply::Noted(notes) => {
                log::info!("control: {peer}: {}: {}", told(&request), notes.join("; "));
                Reply::Noted(notes)
            }
            Reply::Checked(checked) => {
                self.tell_of(&checked);
                Reply::Checked(checked)
            }
            status @ Reply::Status(_) => status,
        };
        answer(&client, &peer, &reply);
        if let Some(mut closers) = closers {
            closers.push(client);
        }
    }

    fn turn_away(&self, client: Socket) {
        let message = format!("{CLIENTS} clients are at the control socket already");
        let reply = Reply::Refused(Refusal::new(RefusalKind::Busy, message, "retry in a moment"));
        // A new socket's empty buffer takes one line without blocking.
        let _ = Deadlined { socket: &client, deadline: Instant::now() + PATIENCE }.write(&reply.line());
    }
}

/// A permit for one request that may take long.
struct Place<'s>(&'s AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Shared {
    /// Returns a permit for a request that may take long; short requests need none.
    fn place_for(&self, request: &Request) -> std::result::Result<Option<Place<'_>>, Refusal> {
        if !may_take_long(request) {
            return Ok(None);
        }
        let place = Place(&self.long);
        if self.long.fetch_add(1, Ordering::AcqRel) < LONG {
            return Ok(Some(place));
        }
        let message = format!("{LONG} requests that take long are under way already");
        Err(Refusal::new(RefusalKind::Busy, message, "retry when one of them has ended"))
    }

    fn refuse(&self, peer: &Peer, what: &str, refusal: Refusal) -> Reply {
        if let Some(more) = self.failure_log.pass() {
            log::warn!("control: {peer}: {what} was refused: {}{more}", refusal.message);
        }
        Reply::Refused(refusal)
    }

    /// Logs the first range that a check has found.
    fn tell_of(&self, checked: &Checked) {
        let Some((start, end)) = checked.lost.first() else { return };
        if let Some(more) = self.losses.pass() {
            let others = checked.lost.len() - 1;
            log::warn!(
                "check: bytes {start} to {end}, and {others} runs behind, are not as they were written{more}"
            );
        }
    }

    fn lock_closers(&self) -> std::sync::MutexGuard<'_, Vec<Socket>> {
        self.closers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn answer(client: &Socket, peer: &Peer, reply: &Reply) {
    if let Err(e) = say(client, reply) {
        log::debug!("control: {peer}: {e}");
    }
}

/// Why a connection brought no request to answer.
enum Unheard {
    Gone(io::Error),
    Refused(Refusal),
}

impl From<io::Error> for Unheard {
    fn from(e: io::Error) -> Self {
        Self::Gone(e)
    }
}

/// Permits the user of this process, and root. The socket's mode permits the same; but modes can be
/// changed, and descriptors passed on.
fn permitted(peer: &Peer) -> std::result::Result<(), Unheard> {
    let own = rustix::process::geteuid().as_raw();
    match peer {
        // A sandboxed server must not control another server's volume; the new server of a handover
        // may.
        Peer::Unix { pid, .. } if underseal_sandbox::is_inside(*pid).unwrap_or(false) => {
            let message = format!("{peer} is a server in a sandbox, and may not control other volumes");
            Err(Unheard::Refused(Refusal::new(
                RefusalKind::Forbidden,
                message,
                "from a process outside of it",
            )))
        }
        Peer::Unix { uid, .. } if *uid == own || *uid == 0 => Ok(()),
        _ => {
            let message = format!("{peer} may not control a volume of user {own}");
            Err(Unheard::Refused(Refusal::new(RefusalKind::Forbidden, message, "as that user, or as root")))
        }
    }
}

type Heard = std::result::Result<(Request, Option<underseal_cipher::Key>), Unheard>;

fn hear(client: &Socket) -> std::result::Result<Heard, Unheard> {
    let mut from = Deadlined { socket: client, deadline: Instant::now() + PATIENCE };
    Ok(Request::read(&mut from)?.map_err(Unheard::Refused))
}

fn say(client: &Socket, reply: &Reply) -> io::Result<()> {
    Deadlined { socket: client, deadline: Instant::now() + PATIENCE }.write_all(&reply.line())
}

/// True for requests that wait for clients, for a reencryption's step, or for a key derivation, and
/// for requests that wait for another request of this kind.
fn may_take_long(request: &Request) -> bool {
    match request {
        Request::Suspend { .. }
        | Request::Message(_)
        | Request::SetKey { .. }
        | Request::Resize { .. }
        | Request::Check { .. }
        | Request::HandOver { .. }
        | Request::Reencrypt(Reencrypt::Start { .. } | Reencrypt::Stop) => true,
        // Other requests wait for `Resume`, so it must not wait for a permit.
        Request::Resume => false,
        Request::Status | Request::SetPolicy(_) | Request::Reencrypt(_) | Request::Close => false,
    }
}

/// Describes a request for the log. The text of a message is left out: it may contain a key by
/// mistake.
fn told(request: &Request) -> String {
    match request {
        Request::Status => "status".into(),
        Request::SetPolicy(policy) => format!("policy {}", Printable(policy.as_bytes())),
        Request::Suspend { wipe: false, .. } => "suspend".into(),
        Request::Suspend { wipe: true, .. } => "suspend, and wipe the key".into(),
        Request::Resize { .. } => "resize".into(),
        Request::Resume => "resume".into(),
        Request::Message(_) => "a message".into(),
        Request::SetKey { resume: false, .. } => "message key set".into(),
        Request::SetKey { resume: true, .. } => "resume with a key".into(),
        Request::Reencrypt(what) => match what {
            Reencrypt::Start { .. } => "reencrypt".into(),
            Reencrypt::Pause => "reencrypt: pause".into(),
            Reencrypt::GoOn => "reencrypt: go on".into(),
            Reencrypt::Stop => "reencrypt: stop".into(),
            Reencrypt::Rate(rate) => format!("reencrypt: rate {rate:?}"),
        },
        Request::Check { .. } => "check".into(),
        Request::HandOver { .. } => "hand-over".into(),
        Request::Close => "close".into(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    use underseal_cipher::Key;
    use underseal_datapath::Mapping;
    use underseal_device::RamDevice;
    use underseal_testing::PATIENCE as LONG_ENOUGH;
    use underseal_volume::{KeyCheck, Segment, SegmentKind, Volume};

    use super::*;
    use crate::control::status::{Format, Opened, Reencryption};
    use crate::control::{Client, Described, Directory, Known, Rate, Reencrypter};

    /// A reencrypter whose step takes until the test releases it.
    struct Stuck {
        asked: Mutex<Sender<()>>,
        told: Mutex<Receiver<()>>,
    }

    type Answer = std::result::Result<(), Refusal>;

    impl Reencrypter for Stuck {
        fn start(&self, _: &Key, _: &Key, _: Rate) -> Answer {
            self.stop()
        }

        fn pause(&self) -> Answer {
            Ok(())
        }

        fn go_on(&self) -> Answer {
            Ok(())
        }

        fn stop(&self) -> Answer {
            self.asked.lock().unwrap().send(()).unwrap();
            self.told.lock().unwrap().recv().unwrap();
            Ok(())
        }

        fn set_rate(&self, _: Rate) -> Answer {
            Ok(())
        }

        fn status(&self) -> Option<Reencryption> {
            None
        }

        fn key_check(&self) -> Option<KeyCheck> {
            None
        }
    }

    #[test]
    fn others_are_answered_while_many_wait_for_a_step() {
        let (asked, is_asked) = channel();
        let (tell, told) = channel();
        let stuck = Stuck { asked: Mutex::new(asked), told: Mutex::new(told) };
        let zeros = Segment { start: 0, len: 1 << 20, kind: SegmentKind::Zero };
        let volume = Volume::new(vec![zeros]).unwrap();
        let mapping = Arc::new(Mapping::new(volume, Arc::new(RamDevice::new(1 << 20))).unwrap());
        let described = Described {
            name: "disk".parse().unwrap(),
            image: "disk".into(),
            opened: Opened {
                format: Format::Table,
                header: None,
                header_offset: 0,
                key_size: None,
                hash: None,
                plain: None,
                discards: false,
            },
            addresses: vec![],
            sandbox: Arc::new(OnceLock::new()),
            transport: None,
        };
        let volume = Controlled::new(described, Known::default(), mapping, vec![], || {});
        let volume = Arc::new(volume.with_reencrypter(Some(Arc::new(stuck))));
        let scratch = tempfile::tempdir().unwrap();
        let directory = Directory::at(scratch.path());
        let name = "disk".parse().unwrap();
        let _server = ControlServer::start(directory.listen(&name).unwrap(), volume).unwrap();
        let socket = directory.socket(&name);
        let ask = |request: Request, key: Option<&Key>| {
            Client::connect(&socket, LONG_ENOUGH).unwrap().ask(&request, key, LONG_ENOUGH).unwrap()
        };
        let (stop, start) = (Reencrypt::Stop, Reencrypt::Start { old: 1, new: 1, rate: Rate::default() });
        let keys = Key::new(b"ab").unwrap();
        thread::scope(|scope| {
            let waiting: Vec<_> = (0..LONG)
                .map(|i| {
                    let request = Request::Reencrypt(if i % 2 == 0 { &stop } else { &start }.clone());
                    let (ask, key) = (&ask, Some(&keys).filter(|_| i % 2 == 1));
                    scope.spawn(move || ask(request, key))
                })
                .collect();
            (0..LONG).for_each(|_| is_asked.recv_timeout(LONG_ENOUGH).unwrap());
            let Reply::Refused(refusal) = ask(Request::Reencrypt(stop.clone()), None) else { panic!() };
            assert_eq!(refusal.kind, RefusalKind::Busy, "{refusal:?}");
            assert!(matches!(ask(Request::Status, None), Reply::Status(_)));
            assert!(matches!(ask(Request::Reencrypt(Reencrypt::Pause), None), Reply::Done));
            // No other thread holds the lock of the key meanwhile.
            assert!(matches!(ask(Request::Resume, None), Reply::Done));
            (0..LONG).for_each(|_| tell.send(()).unwrap());
            for one in waiting {
                assert!(matches!(one.join().unwrap(), Reply::Done));
            }
        });
        tell.send(()).unwrap();
        assert!(matches!(ask(Request::Reencrypt(stop), None), Reply::Done), "there is room again");
    }
}
