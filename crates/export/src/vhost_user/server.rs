//! The vhost-user server: one front end at a time.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::Shutdown;
use underseal_datapath::Mapping;
use vhost::vhost_user::Error as ProtocolError;

use super::back;
use super::device::Device;
use super::pause::Hold;
use super::request::SERIAL;
use super::session::{Handler, Session};
use crate::event::event;
use crate::net::{Attend, Attendant, Endpoint, Found, Listener, Socket, SocketAccess};
use crate::{Error, ErrorKind, Result, TellSize};

/// The most concurrent connections: the front end that is served, and those that wait or are
/// refused.
const CALLERS: usize = 16;

/// How long a front end waits for the previous one to disconnect, until it is refused.
const GRACE: Duration = Duration::from_secs(1);

/// The most rings of a device.
pub const MOST_QUEUES: u16 = 64;

/// The settings of a vhost-user export.
#[derive(Debug, Clone)]
pub struct VhostUserConfig {
    /// The number of rings, each with a thread and a queue while a driver uses it.
    pub queues: u16,
    /// The device's serial number: the first 20 bytes count.
    pub serial: String,
    /// The users that may connect.
    pub access: SocketAccess,
    /// How long requests in flight may take when the server stops.
    pub drain_timeout: Duration,
}

/// A volume that front ends can connect to.
pub struct VhostUserServer {
    pub(super) shared: Arc<Shared>,
    drain_timeout: Duration,
    pub(super) attendant: Attendant,
}

/// The means to stop the server from any thread.
#[derive(Clone)]
pub struct VhostUserStopper(Arc<Shared>);

pub(super) struct Shared {
    pub(super) mapping: Arc<Mapping>,
    pub(super) queues: u16,
    pub(super) serial: [u8; SERIAL],
    name: String,
    state: Mutex<State>,
    pub(super) changed: Condvar,
    /// Wakes the thread that waits for messages.
    pub(super) wake: OwnedFd,
}

#[derive(Default)]
pub(super) struct State {
    stopping: bool,
    pub(super) session: Option<Session>,
    pub(super) hold: Hold,
    /// True when the rings were asked to pause, too.
    pub(super) rings_rest: bool,
}

impl VhostUserServer {
    /// Listens on a Unix socket. Front ends are served when this returns.
    ///
    /// # Errors
    /// `Listen` and `InUse` as for NBD's sockets; `Unsupported` when the volume cannot be a block
    /// device of virtio.
    pub fn listen(mapping: Arc<Mapping>, path: &Path, config: &VhostUserConfig) -> Result<Self> {
        fits(&mapping)?;
        let endpoint = Endpoint::Unix(path.to_owned());
        let listeners = Found::look_up(&endpoint)?.with_access(config.access).listen()?;
        Self::serve(mapping, path, listeners, config, Hold::No)
    }

    /// Serves on the listening sockets of an old server, once
    /// [`go_on`](super::VhostUserHolder::go_on) is called.
    ///
    /// # Errors
    /// The kinds of [`listen`](Self::listen).
    pub fn take_over(
        mapping: Arc<Mapping>,
        path: &Path,
        listeners: Vec<Listener>,
        config: &VhostUserConfig,
    ) -> Result<Self> {
        fits(&mapping)?;
        Self::serve(mapping, path, listeners, config, Hold::Asked)
    }

    fn serve(
        mapping: Arc<Mapping>,
        path: &Path,
        listeners: Vec<Listener>,
        config: &VhostUserConfig,
        hold: Hold,
    ) -> Result<Self> {
        let mut serial = [0; SERIAL];
        serial.iter_mut().zip(config.serial.bytes()).for_each(|(place, byte)| *place = byte);
        let name = format!("vhost-user:{}", path.display());
        let no_event =
            |e| Error::new(ErrorKind::Listen, format!("{name}: no event descriptor")).with_source(e);
        let wake = event().map_err(no_event)?;
        let shared = Arc::new(Shared {
            mapping,
            queues: config.queues.clamp(1, MOST_QUEUES),
            serial,
            name,
            state: Mutex::new(State { hold, ..State::default() }),
            changed: Condvar::new(),
            wake,
        });
        let (open, doorkeeper) = (hold == Hold::No, Arc::new(Doorkeeper(shared.clone())));
        let attendant = Attendant::start("vhost-user", listeners, open, CALLERS, doorkeeper)?;
        log::info!("{}: serving a device with {} rings", shared.name, shared.queues);
        Ok(Self { shared, drain_timeout: config.drain_timeout, attendant })
    }

    /// Returns the means to stop this server.
    pub fn stopper(&self) -> VhostUserStopper {
        VhostUserStopper(self.shared.clone())
    }

    /// Returns a function that notifies the front end, and by it the driver, of a new size, if the
    /// front end accepts notifications.
    pub fn size_teller(&self) -> TellSize {
        let shared = self.shared.clone();
        Arc::new(move |_, _| shared.tell_of_change())
    }

    /// Waits until the stopper is used and the front end's requests are answered.
    ///
    /// # Errors
    /// `Drain` when some were not after [`drain_timeout`](VhostUserConfig::drain_timeout): a ring
    /// may wait for guest memory whose pages never arrive. Its thread continues; its memory is not
    /// freed.
    pub fn run(self) -> Result<()> {
        let state = self.shared.lock();
        let waiting = self.shared.changed.wait_while(state, |state| !state.stopping);
        let session = waiting.unwrap_or_else(PoisonError::into_inner).session.clone();
        let Some(Session { device, socket, .. }) = session else { return Ok(()) };
        let hang_up = {
            let socket = socket.clone();
            move || {
                let _ = rustix::net::shutdown(&socket, Shutdown::Both);
            }
        };
        // The driver's requests are finished first; then the connection ends. A separate thread
        // does it: a thread that waits for a ring has the device locked.
        let cut_off = hang_up.clone();
        let end = move || {
            lock(&device).end(false);
            hang_up();
        };
        if let Err(e) = thread::Builder::new().name("vhost-user-end".into()).spawn(end) {
            log::warn!("{}: no thread to end the front end's rings with: {e}", self.shared.name);
            cut_off();
        }
        let busy = |state: &mut State| state.session.is_some();
        let drained = self.shared.changed.wait_timeout_while(self.shared.lock(), self.drain_timeout, busy);
        if !drained.unwrap_or_else(PoisonError::into_inner).1.timed_out() {
            return Ok(());
        }
        cut_off();
        let context =
            format!("{}: the front end's requests did not end in {:?}", self.shared.name, self.drain_timeout);
        Err(Error::new(ErrorKind::Drain, context))
    }
}

impl VhostUserStopper {
    /// Takes no more requests, and lets [`VhostUserServer::run`] return when those in flight are
    /// answered.
    pub fn stop(&self) {
        self.0.lock().stopping = true;
        self.0.changed.notify_all();
    }
}

pub(super) fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Checks that the volume can be a block device of virtio.
fn fits(mapping: &Mapping) -> Result<()> {
    let block = mapping.block();
    if block < 512 || !mapping.size().is_multiple_of(512) {
        let context =
            format!("blocks of {block} bytes cannot be served to a virtio driver, which counts in 512");
        return Err(Error::new(ErrorKind::Unsupported, context));
    }
    Ok(())
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Makes `socket` the connected front end, once the previous one has ended.
    fn enter(&self, socket: &Arc<UnixStream>) -> Option<Session> {
        let taken = |state: &mut State| !state.stopping && state.session.is_some();
        let hung_up =
            |state: &State| state.session.as_ref().is_some_and(|session| has_hung_up(&session.socket));
        // A front end that has disconnected makes room soon, so its successor need not retry. A
        // handover does not wait for a second front end.
        let waits = |state: &mut State| taken(state) && (state.hold == Hold::No || hung_up(state));
        let waited = self.changed.wait_timeout_while(self.lock(), GRACE, waits);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let state = self.changed.wait_while(state, |state| taken(state) && hung_up(state));
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if state.stopping || state.session.is_some() {
            return None;
        }
        let device = Device::new(self.mapping.clone(), self.queues, self.serial);
        let session = Session::new(device, socket);
        state.session = Some(session.clone());
        Some(session)
    }

    /// Notifies the front end that the configuration, which has the size, has changed.
    fn tell_of_change(&self) -> Option<String> {
        let session = self.lock().session.clone()?;
        let told = match &*lock(&session.back) {
            Some(back) => back::tell_of_change(back).map_err(|e| e.to_string()),
            None => Err("it takes no messages (BACKEND_REQ)".into()),
        };
        let why = told.err()?;
        Some(format!("{}: the front end has the new size when it connects again: {why}", self.name))
    }

    fn leave(&self) {
        self.lock().session = None;
        self.changed.notify_all();
    }

    fn serve(&self, socket: UnixStream) -> std::io::Result<()> {
        let name = &self.name;
        let for_handler = socket.try_clone()?;
        let Some(session) = self.enter(&Arc::new(socket)) else {
            log::warn!("{name}: a second front end was turned away: the device has one already");
            return Ok(());
        };
        log::info!("{name}: a front end has come");
        let handler = Handler::from_stream(for_handler, session.device.clone());
        self.attend(&session, handler);
        Ok(())
    }

    /// Serves the connected front end until it disconnects or the connection is cut.
    pub(super) fn attend(&self, session: &Session, mut handler: Handler) {
        let _left = Left(self);
        let name = &self.name;
        let end = loop {
            let next = self.next_message(&session.socket).map_err(ProtocolError::ReqHandlerError);
            if let Err(end) = next.and_then(|()| session.handle(&mut handler)) {
                break end;
            }
        };
        let stopping = self.lock().stopping;
        match end {
            ProtocolError::Disconnected => log::info!("{name}: the front end has left"),
            _ if stopping => {}
            end => log::warn!("{name}: the front end is cut off: {end}"),
        }
        lock(&session.device).end(true);
    }
}

/// Frees the connection's entry, however the thread ends.
struct Left<'a>(&'a Shared);

impl Drop for Left<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

pub(super) fn has_hung_up(socket: &UnixStream) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::HUP)
}

/// The acceptor of front ends.
struct Doorkeeper(Arc<Shared>);

impl Attend for Doorkeeper {
    fn serve(&self, client: Socket) {
        let socket = client.as_fd().try_clone_to_owned().map(|fd: OwnedFd| UnixStream::from(fd));
        drop(client);
        if let Err(e) = socket.and_then(|socket| self.0.serve(socket)) {
            log::warn!("{}: a front end cannot be served: {e}", self.0.name);
        }
    }

    fn turn_away(&self, _client: Socket) {
        log::warn!("{}: too many front ends at the door", self.0.name);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use underseal_cipher::{Key, SectorSize, build};
    use underseal_device::RamDevice;
    use underseal_volume::{Segment, Volume};

    use super::*;

    const SIZE: u64 = 1 << 20;

    fn mapping() -> Arc<Mapping> {
        let spec = "cipher_null-ecb".parse().unwrap();
        let cipher = build(&spec, &Key::new(&[]).unwrap(), SectorSize::S512).unwrap();
        let volume = Volume::new(vec![Segment::stored(0, SIZE, 0, 0, cipher)]).unwrap();
        Arc::new(Mapping::new(volume, Arc::new(RamDevice::new(SIZE))).unwrap())
    }

    #[test]
    fn rings_that_never_end_do_not_keep_the_server_for_ever() {
        let scratch = tempfile::tempdir().unwrap();
        let drain_timeout = Duration::from_millis(50);
        let config = VhostUserConfig {
            queues: 1,
            serial: "disk".into(),
            access: SocketAccess::default(),
            drain_timeout,
        };
        let server = VhostUserServer::listen(mapping(), &scratch.path().join("vm"), &config).unwrap();
        let (ours, mut front) = UnixStream::pair().unwrap();
        let session = server.shared.enter(&Arc::new(ours)).unwrap();
        // The lock stands for a thread that waits for a ring, which waits for memory.
        let held = lock(&session.device);
        server.stopper().stop();
        assert_eq!(server.run().unwrap_err().kind(), ErrorKind::Drain);
        assert_eq!(front.read(&mut [0]).unwrap(), 0, "the front end sees the end");
        drop(held);
    }
}
