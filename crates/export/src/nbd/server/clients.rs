//! The table of clients and their phases, behind one lock, which is taken when a phase changes.

use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};

use super::GRACE;
use crate::nbd::Refusal;
use crate::net::{Peer, Socket};

/// The table of a server's clients.
#[derive(Debug)]
pub(super) struct Clients {
    max_handshakes: usize,
    max_serving: usize,
    table: Mutex<Table>,
    departed: Condvar,
}

/// Whether another client may be accepted.
#[derive(Debug)]
pub(super) enum Room {
    /// The client may be accepted.
    Free,
    /// The client may be accepted when this one, which was just closed, has left the table.
    Evicted(Peer),
    /// The client has to wait this long: each client that could be closed is within its grace.
    After(Duration),
}

/// A client's number, in the order of arrival.
pub(super) type Id = u64;

#[derive(Debug, Default)]
struct Table {
    stopping: bool,
    next: Id,
    serving: usize,
    /// How many clients were admitted to the transmission phase so far.
    admitted: u64,
    clients: BTreeMap<Id, Client>,
}

impl Table {
    /// Admits a client to the transmission phase. Returns false for one that is closed already.
    fn admit(&mut self, id: Id) -> bool {
        let Some(client) = self.clients.get_mut(&id).filter(|client| client.phase <= Phase::Negotiating)
        else {
            return false;
        };
        (client.phase, client.admitted) = (Phase::Serving, Some(self.admitted));
        self.admitted += 1;
        self.serving += 1;
        true
    }
}

#[derive(Debug)]
struct Client {
    socket: Socket,
    peer: Peer,
    since: Instant,
    phase: Phase,
    /// The place in the order in which clients were admitted to the transmission phase.
    admitted: Option<u64>,
    /// False when the last of its requests has ended, and it sends no more.
    has_requests: bool,
    /// False after its request to disconnect: it repeats no request on another connection.
    repeats: bool,
    /// The handler's eventfd, which is raised when the server stops.
    wake: Option<OwnedFd>,
}

/// A client's phase, in the order in which clients are closed: silent ones first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Silent,
    Negotiating,
    Serving,
    Evicted,
}

impl Clients {
    pub(super) fn new(max_handshakes: usize, max_serving: usize) -> Self {
        Self {
            max_handshakes: max_handshakes.max(1),
            max_serving,
            table: Mutex::default(),
            departed: Condvar::new(),
        }
    }

    /// Finds room for one more handshake, or makes room: closes the client that has been silent
    /// longest or, if none is silent, the client that has been negotiating longest. It must have
    /// had its [`GRACE`].
    ///
    /// Where most clients are negotiating, a silent one within its grace is passed over: in a crowd
    /// of slow clients one of these always exists, and waiting for the end of its grace would
    /// accept only ten clients a second.
    pub(super) fn make_room(&self, now: Instant) -> Room {
        let mut table = self.lock();
        if table.clients.len() - table.serving < self.max_handshakes {
            return Room::Free;
        }
        let handshakes = table.clients.len() - table.serving;
        let silent = table.clients.values().filter(|client| client.phase == Phase::Silent).count();
        let mostly_silent = 2 * silent >= handshakes;
        let passed_over =
            |client: &Client| !mostly_silent && now.saturating_duration_since(client.since) < GRACE;
        let victim = table
            .clients
            .values_mut()
            .filter(|client| client.phase <= Phase::Negotiating)
            .min_by_key(|client| (passed_over(client), client.phase, client.since));
        // Every client is being closed already.
        let Some(client) = victim else { return Room::After(GRACE) };
        match GRACE.checked_sub(now.saturating_duration_since(client.since)) {
            Some(wait) if !wait.is_zero() => Room::After(wait),
            _ => {
                client.phase = Phase::Evicted;
                close(client);
                Room::Evicted(client.peer.clone())
            }
        }
    }

    /// Registers a client; `None` if the server is stopping.
    pub(super) fn arrive(&self, socket: Socket, peer: Peer) -> Option<Id> {
        let mut table = self.lock();
        if table.stopping {
            return None;
        }
        let id = table.next;
        table.next += 1;
        let client = Client {
            socket,
            peer,
            since: Instant::now(),
            phase: Phase::Silent,
            admitted: None,
            has_requests: true,
            repeats: true,
            wake: None,
        };
        table.clients.insert(id, client);
        Some(id)
    }

    /// Registers a client that the old server of a handover has served. `None` if the server is
    /// stopping.
    pub(super) fn adopt(&self, socket: Socket, peer: Peer) -> Option<Id> {
        let id = self.arrive(socket, peer)?;
        let mut table = self.lock();
        table.admit(id);
        Some(id)
    }

    /// Waits until the requests of clients that were admitted before this one, and have left, have
    /// ended: none of them may change what this client writes later. Returns false when the server
    /// stops meanwhile.
    pub(super) fn wait_for_left(&self, id: Id) -> bool {
        const LOOK: Duration = Duration::from_millis(5);
        let mut is_told = false;
        loop {
            let table = self.lock();
            if table.stopping {
                return false;
            }
            let own = table.clients.get(&id).and_then(|client| client.admitted);
            let is_before =
                |client: &&Client| client.has_requests && client.admitted.is_some() && client.admitted < own;
            let left = table
                .clients
                .values()
                .filter(is_before)
                .find(|client| has_any_left([&client.socket].into_iter()));
            let Some(left) = left else { return true };
            if !std::mem::replace(&mut is_told, true) {
                log::info!("a new client waits for requests of {}, which is gone", left.peer);
            }
            drop(self.departed.wait_timeout(table, LOOK));
        }
    }

    /// Returns true when another client has left without a request to disconnect, and its requests
    /// have not ended.
    pub(super) fn others_have_left(&self, id: Id) -> bool {
        let table = self.lock();
        if table.serving <= 1 {
            return false;
        }
        let others = table.clients.iter().filter(|(other, client)| {
            **other != id && client.has_requests && client.repeats && client.admitted.is_some()
        });
        has_any_left(others.map(|(_, client)| &client.socket))
    }

    /// Notes a client's request to disconnect.
    pub(super) fn disconnects(&self, id: Id) {
        self.lock().clients.get_mut(&id).into_iter().for_each(|client| client.repeats = false);
    }

    /// Notes that a client has no requests any more. It may not have read the replies yet.
    pub(super) fn requests_ended(&self, id: Id) {
        let mut table = self.lock();
        table.clients.get_mut(&id).into_iter().for_each(|client| client.has_requests = false);
        drop(table);
        self.departed.notify_all();
    }

    /// Returns true when the client has closed its side.
    pub(super) fn has_left(&self, id: Id) -> bool {
        has_any_left(self.lock().clients.get(&id).map(|client| &client.socket).into_iter())
    }

    /// Returns the clients in the transmission phase.
    pub(super) fn serving(&self) -> Vec<(Id, Peer)> {
        let table = self.lock();
        let serving = table.clients.iter().filter(|(_, client)| client.phase == Phase::Serving);
        serving.map(|(id, client)| (*id, client.peer.clone())).collect()
    }

    /// Returns the sockets of clients in the transmission phase.
    pub(super) fn sockets(&self) -> BTreeMap<Id, Socket> {
        let table = self.lock();
        let serving = table.clients.iter().filter(|(_, client)| client.phase == Phase::Serving);
        serving.map(|(id, client)| (*id, client.socket.share())).collect()
    }

    /// Waits for the end of handshakes while no client is accepted; closes those that take longer.
    pub(super) fn end_handshakes(&self, limit: Duration) {
        const LOOK: Duration = Duration::from_millis(2);
        let end = Instant::now() + limit;
        while self.lock().clients.values().any(|client| client.phase <= Phase::Negotiating) {
            if Instant::now() >= end {
                break;
            }
            std::thread::sleep(LOOK);
        }
        let mut table = self.lock();
        for client in table.clients.values_mut().filter(|client| client.phase <= Phase::Negotiating) {
            client.phase = Phase::Evicted;
            log::info!("{}: closed in the middle of its handshake", client.peer);
            close(client);
        }
    }

    pub(super) fn heard(&self, id: Id) {
        if let Some(client) = self.lock().clients.get_mut(&id)
            && client.phase == Phase::Silent
        {
            client.phase = Phase::Negotiating;
        }
    }

    /// Moves a client to the transmission phase, within the limit.
    pub(super) fn admit(&self, id: Id) -> Result<(), Refusal> {
        let mut table = self.lock();
        if table.stopping {
            return Err(Refusal::Stopping);
        }
        if table.serving >= self.max_serving {
            return Err(Refusal::Full(self.max_serving));
        }
        // A client that was closed just now to make room receives no answer.
        if table.admit(id) { Ok(()) } else { Err(Refusal::Full(self.max_serving)) }
    }

    /// Keeps the eventfd; `Err` returns it because the server is stopping already.
    pub(super) fn wake_with(&self, id: Id, event: OwnedFd) -> Result<(), OwnedFd> {
        let mut table = self.lock();
        let stopping = table.stopping;
        match table.clients.get_mut(&id) {
            Some(client) if !stopping => {
                client.wake = Some(event);
                Ok(())
            }
            _ => Err(event),
        }
    }

    pub(super) fn depart(&self, id: Id) {
        let mut table = self.lock();
        if let Some(client) = table.clients.remove(&id)
            && client.phase == Phase::Serving
        {
            table.serving -= 1;
        }
        drop(table);
        self.departed.notify_all();
    }

    /// Shuts down the reading sides, notifies the handlers, and returns how many clients are left.
    pub(super) fn stop(&self) -> usize {
        let mut table = self.lock();
        table.stopping = true;
        for client in table.clients.values() {
            // Shutting down fails only for a client that has disconnected.
            let _ = shutdown(&client.socket, Shutdown::Read);
            if let Some(event) = &client.wake {
                crate::event::raise(event, 1);
            }
        }
        table.clients.len()
    }

    /// Closes the sockets of the clients that are left, and returns their number.
    pub(super) fn cut_off(&self) -> usize {
        let table = self.lock();
        table.clients.values().for_each(close);
        table.clients.len()
    }

    /// Waits up to `at_most` until all clients have ended, and returns how many are left.
    pub(super) fn wait_until_empty(&self, at_most: Duration) -> usize {
        let waited =
            self.departed.wait_timeout_while(self.lock(), at_most, |table| !table.clients.is_empty());
        waited.unwrap_or_else(PoisonError::into_inner).0.clients.len()
    }

    /// Waits up to `at_most` until the handshake limit permits another client.
    pub(super) fn wait_for_departure(&self, at_most: Duration) {
        let full = |table: &mut Table| table.clients.len() - table.serving >= self.max_handshakes;
        drop(self.departed.wait_timeout_while(self.lock(), at_most, full));
    }

    /// Locks the table. A panic cannot leave the table half changed, so poison is ignored.
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns true when one of these clients has closed its side.
fn has_any_left<'a>(sockets: impl Iterator<Item = &'a Socket>) -> bool {
    let mut fds: Vec<_> = sockets.map(|socket| PollFd::new(socket, PollFlags::RDHUP)).collect();
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

fn close(client: &Client) {
    let _ = shutdown(&client.socket, Shutdown::Both);
}
