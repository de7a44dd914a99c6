//! Who is connected, and in which phase: one small table behind one lock, touched when a phase
//! changes.

use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rustix::net::{Shutdown, shutdown};

use super::GRACE;
use crate::nbd::Refusal;
use crate::net::{Peer, Socket};

/// The table.
#[derive(Debug)]
pub(super) struct Clients {
    max_handshakes: usize,
    max_serving: usize,
    table: Mutex<Table>,
    departed: Condvar,
}

/// Whether another client may come in.
#[derive(Debug)]
pub(super) enum Room {
    /// It may.
    Free,
    /// It may when this one, which was just closed, is gone.
    Evicted(Peer),
    /// It may have to wait so long: whoever would make room is too new to be closed.
    After(Duration),
}

/// A client's number, in the order of arrival.
pub(super) type Id = u64;

#[derive(Debug, Default)]
struct Table {
    stopping: bool,
    next: Id,
    serving: usize,
    clients: BTreeMap<Id, Client>,
}

#[derive(Debug)]
struct Client {
    socket: Socket,
    peer: Peer,
    since: Instant,
    phase: Phase,
    /// The handler's eventfd, written to when the server stops.
    wake: Option<OwnedFd>,
}

/// In the order in which clients make room: the silent ones first.
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

    /// Looks for room for one more handshake, or makes it: closes the client that has been silent
    /// longest or, if none is silent, the one that has been negotiating longest. It must have had
    /// its [`GRACE`].
    ///
    /// Where most are negotiating, a silent one that has only just come is passed over: in a crowd
    /// that talks slowly there always is one, and waiting out its grace would let in ten clients a
    /// second.
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
        // Everyone is on the way out already.
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

    /// `None` if the server is stopping.
    pub(super) fn arrive(&self, socket: Socket, peer: Peer) -> Option<Id> {
        let mut table = self.lock();
        if table.stopping {
            return None;
        }
        let id = table.next;
        table.next += 1;
        let client = Client { socket, peer, since: Instant::now(), phase: Phase::Silent, wake: None };
        table.clients.insert(id, client);
        Some(id)
    }

    /// One that was served elsewhere until now. `None` if the server is stopping.
    pub(super) fn adopt(&self, socket: Socket, peer: Peer) -> Option<Id> {
        let id = self.arrive(socket, peer)?;
        let mut table = self.lock();
        if let Some(client) = table.clients.get_mut(&id) {
            client.phase = Phase::Serving;
            table.serving += 1;
        }
        Some(id)
    }

    /// Those that are served.
    pub(super) fn serving(&self) -> Vec<(Id, Peer)> {
        let table = self.lock();
        let serving = table.clients.iter().filter(|(_, client)| client.phase == Phase::Serving);
        serving.map(|(id, client)| (*id, client.peer.clone())).collect()
    }

    /// The sockets of those that are served.
    pub(super) fn sockets(&self) -> BTreeMap<Id, Socket> {
        let table = self.lock();
        let serving = table.clients.iter().filter(|(_, client)| client.phase == Phase::Serving);
        serving.map(|(id, client)| (*id, client.socket.share())).collect()
    }

    /// Waits for handshakes to end while nobody comes; closes those that take longer.
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

    /// Takes a place among those that are served.
    pub(super) fn admit(&self, id: Id) -> Result<(), Refusal> {
        let mut table = self.lock();
        if table.stopping {
            return Err(Refusal::Stopping);
        }
        if table.serving >= self.max_serving {
            return Err(Refusal::Full(self.max_serving));
        }
        match table.clients.get_mut(&id) {
            Some(client) if client.phase <= Phase::Negotiating => client.phase = Phase::Serving,
            // Closed to make room just now: its socket is shut down, so it will not hear an answer.
            _ => return Err(Refusal::Full(self.max_serving)),
        }
        table.serving += 1;
        Ok(())
    }

    /// Keeps the eventfd; `Err` gives it back because the server is stopping already.
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

    /// Ends everyone's reading, tells the handlers, and says how many are left.
    pub(super) fn stop(&self) -> usize {
        let mut table = self.lock();
        table.stopping = true;
        for client in table.clients.values() {
            // A client that is gone cannot be shut down, and need not be.
            let _ = shutdown(&client.socket, Shutdown::Read);
            if let Some(event) = &client.wake {
                crate::event::raise(event, 1);
            }
        }
        table.clients.len()
    }

    /// Closes the sockets of those that are left, and says how many.
    pub(super) fn cut_off(&self) -> usize {
        let table = self.lock();
        table.clients.values().for_each(close);
        table.clients.len()
    }

    /// Waits until everyone is gone, at most so long, and says how many are left.
    pub(super) fn wait_until_empty(&self, at_most: Duration) -> usize {
        let waited =
            self.departed.wait_timeout_while(self.lock(), at_most, |table| !table.clients.is_empty());
        waited.unwrap_or_else(PoisonError::into_inner).0.clients.len()
    }

    /// Waits until there is room for a handshake, at most so long.
    pub(super) fn wait_for_departure(&self, at_most: Duration) {
        let full = |table: &mut Table| table.clients.len() - table.serving >= self.max_handshakes;
        drop(self.departed.wait_timeout_while(self.lock(), at_most, full));
    }

    /// Nothing that runs under the lock can leave the table half changed, so a poisoned one is as
    /// good as any.
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn close(client: &Client) {
    let _ = shutdown(&client.socket, Shutdown::Both);
}
