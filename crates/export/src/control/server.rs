//! The control socket's server: who may ask, how long it may take, and what the log says about it.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Controlled;
use super::protocol::{Reencrypt, Refusal, RefusalKind, Reply, Request};
use crate::Result;
use crate::net::{Attend, Attendant, Deadlined, Listener, Peer, Printable, RateLimit, Socket};

/// Serves a volume's control socket until it is dropped or the volume [ends](ControlServer::end).
pub struct ControlServer {
    attendant: Attendant,
    shared: Arc<Shared>,
}

struct Shared {
    volume: Arc<Controlled>,
    /// Who asked for the end and waits for it.
    closers: Mutex<Vec<Socket>>,
    complaints: RateLimit,
}

/// Clients at a time. One more is told so and sent away.
const CLIENTS: usize = 16;
/// What a client has to say its request, and to take its reply.
const PATIENCE: Duration = Duration::from_secs(10);

impl ControlServer {
    /// Answers requests that come in on the listeners from now on.
    ///
    /// # Errors
    /// `Listen` when there is no thread to be had.
    pub fn start(listeners: Vec<Listener>, volume: Arc<Controlled>) -> Result<Self> {
        let shared = Shared { volume, closers: Mutex::default(), complaints: RateLimit::default() };
        let shared = Arc::new(shared);
        let attendant = Attendant::start("control", listeners, CLIENTS, shared.clone())?;
        Ok(Self { attendant, shared })
    }

    /// The volume is closed: removes the socket, and tells how it went to whoever asked for it. Their connections stay
    /// open until the process ends, which they wait for.
    pub fn end(self, how: std::result::Result<(), String>) {
        drop(self.attendant);
        let refusal = |message| Reply::Refused(Refusal::new(RefusalKind::Failed, message, ""));
        let reply = how.map_or_else(refusal, |()| Reply::Done);
        let closers = std::mem::take(&mut *self.shared.lock_closers());
        for socket in closers {
            // One that is gone does not wait.
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
        // Whoever asks for the end is among those who are told of it, however soon it comes.
        let closers = (request == Request::Close).then(|| self.lock_closers());
        let reply = self.volume.answer(&request, key.as_ref());
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
            status @ Reply::Status(_) => status,
        };
        answer(&client, &peer, &reply);
        if let Some(mut closers) = closers {
            closers.push(client);
        }
    }

    fn turn_away(&self, client: Socket) {
        let message = format!("{CLIENTS} clients are at the control socket already");
        let reply = Reply::Refused(Refusal::new(RefusalKind::Busy, message, "again, in a moment"));
        // A socket that nothing was written to yet takes one line without waiting.
        let _ = Deadlined { socket: &client, deadline: Instant::now() + PATIENCE }.write(&reply.line());
    }
}

impl Shared {
    fn refuse(&self, peer: &Peer, what: &str, refusal: Refusal) -> Reply {
        if let Some(more) = self.complaints.pass() {
            log::warn!("control: {peer}: {what} was refused: {}{more}", refusal.message);
        }
        Reply::Refused(refusal)
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

/// Why there is nothing to do.
enum Unheard {
    Gone(io::Error),
    Refused(Refusal),
}

impl From<io::Error> for Unheard {
    fn from(e: io::Error) -> Self {
        Self::Gone(e)
    }
}

/// The user whose process this is, and root. The socket's mode says the same; but modes can be changed, and descriptors
/// handed over.
fn permitted(peer: &Peer) -> std::result::Result<(), Unheard> {
    let own = rustix::process::geteuid().as_raw();
    match peer {
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

/// What a request was, for the log. Words of a message may be anything, a key by mistake.
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
        Request::Close => "close".into(),
    }
}
