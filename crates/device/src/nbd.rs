//! An export of an NBD server as a lower device: qemu-nbd, any plugin of nbdkit, another volume.
//!
//! ```text
//!   NbdDevice   URI, the negotiated export, FlushLosses
//!     |
//!     +-- NbdChannel (one a queue) -- NbdLink -- NbdSocket   with multi-conn
//!     |
//!     +-- NbdChannel -+
//!     +-- NbdChannel -+- NbdLink -- NbdSocket                without: one connection for all
//!
//!   handshake   options, without I/O          flight    one request: its question, its reply
//!   extents     block status                  replies   parsing of the server's bytes
//!   address     nbd://..., nbd+unix://...     link      sending, receiving, connecting again
//! ```
//!
//! # Number of connections
//! Each channel has its own connection where the server promises (multi-conn) that a flush on one
//! connection covers writes acknowledged on any, and that all connections read each other's writes.
//! Without that promise there is exactly one: a flush on another connection would mean nothing, and
//! qemu-nbd accepts only one client. The connection is shared behind a mutex, without an extra
//! thread: one of the waiting threads reads for all. Connections are made when the first request
//! needs them.
//!
//! # A lost server
//! Requests in flight are sent again on the next connection, and new ones wait, for
//! `reconnect-delay` seconds (30, or the URI's parameter); then they fail with EIO, and each later
//! request tries to connect again. A request on which the server repeatedly closes connections
//! fails alone: after five of them, of which the last three had nothing else in flight, if the
//! server answers others meanwhile; otherwise when `reconnect-delay` is over. Sending a request
//! twice changes nothing: no request that overlaps one in flight is made. (A server that is not
//! dead but cut off may still carry out earlier requests, as with every client that reconnects.) An
//! export that comes back with another size, other flags or narrower blocks is refused. Another
//! size is accepted on request (`Device::refresh`) from a server with multi-conn: a connection
//! reaches the size that the server reported on it, and is made again, when nothing is in flight on
//! it, for a request beyond that size.
//!
//! # Flushes
//! A server that ends may have lost acknowledged writes that it had not flushed. The client has no
//! copy of those bytes, so the next flush cannot promise anything about them. It **fails**, once on
//! every channel, as fsync fails once on every descriptor after a failed write-back: the writer
//! learns that acknowledged writes may be lost. QEMU's client (`reconnect-delay`) and the kernel's
//! (`nbd-client -persist`) omit this, and acknowledge. Where the operator knows that a server which
//! ends loses nothing (its bytes are in the page cache of a host that stays up, or it writes
//! through), `unflushed=trust` in the URI lets flushes succeed, as with those clients. A write with
//! FUA is on stable storage when it is acknowledged, and so are writes that an earlier flush
//! covers; without other writes no flush fails. Once is enough here: reads return the bytes that
//! the server still has, so the writer can check.
//!
//! A server without flush cannot make anything stable. A flush at it succeeds at once, unless a
//! loss has to be reported.
//!
//! After a flush that the server itself answers with an error, all flushes fail (`losses.rs` has
//! the reasons). A write with FUA that fails is written again without FUA. If that succeeds, the
//! server's flush has failed, and counts as one.
//!
//! Before a flush is acknowledged, connections of other threads that were idle since the server
//! ended are checked too. The end of a server that TCP has not reported yet is not noticed.
//!
//! # Time
//! A server has 10 seconds to accept and negotiate. A request in flight has no limit: a server may
//! be slow, and TCP notices a host that is gone (20 s).
//!
//! # Locks
//! NBD has none. [`lock_export`] keeps other programs of this user on this host from an export that
//! is open for writing.
//!
//! # Trust
//! The server sees ciphertext, offsets and times. Each of its messages is checked before it is
//! used; a violation of the protocol ends the connection, with the same limits as for a lost
//! server.

mod address;
mod channel;
mod export_lock;
mod extents;
mod flight;
mod handshake;
mod link;
mod replies;
#[cfg(any(test, feature = "fuzzing"))]
pub mod script;
mod socket;

use std::fs::File;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use underseal_nbd_protocol::TransmissionFlags;
use underseal_sandbox::{Target, will_connect};

use self::address::ServerAddress;
use self::channel::{NbdChannel, cannot_open};
use self::extents::ExtentQuery;
use self::link::NbdLink;
use self::socket::{HANDSHAKE_LIMIT, NbdSocket, connect_now};
use crate::losses::{FlushLosses, Sticky};
use crate::wakeup::Wakeup;
use crate::{Channel, Device, Error, ErrorKind, Extent, Geometry, Result, SharedImage, UpdateLock};

pub use address::NbdAddress;
pub use export_lock::lock_export;
pub use handshake::{ClientHandshake, HandshakeRefusal, ServerExport};

/// An export of an NBD server.
pub struct NbdDevice {
    shared: Arc<Shared>,
    /// The only connection, to a server without multi-conn.
    single: Option<Arc<NbdLink>>,
    /// The geometry, with the size at the opening.
    geometry: Geometry,
    extents: ExtentQuery,
    /// Files whose locks are held as long as the device is there.
    also_open: OnceLock<Vec<File>>,
    /// `None` when it is open for reading only.
    updates: Option<Arc<UpdateLock>>,
}

/// The state that all connections share.
struct Shared {
    address: NbdAddress,
    name: String,
    /// The host's addresses, looked up once, so that requests wait for no name server.
    addresses: Vec<SocketAddr>,
    export: ServerExport,
    /// The export's last known size; the size in `export` is that of the opening.
    size: AtomicU64,
    losses: Arc<FlushLosses>,
    /// An unused connection.
    spare: Mutex<Option<NegotiatedConnection>>,
    /// The connections in use.
    sockets: Mutex<Vec<Weak<NbdSocket>>>,
}

/// A negotiated connection.
struct NegotiatedConnection {
    socket: Arc<NbdSocket>,
    structured: bool,
    /// The export's size on this connection: to reach another size the client connects again.
    size: u64,
}

impl NegotiatedConnection {
    fn new(socket: Arc<NbdSocket>, export: &ServerExport) -> Self {
        Self { socket, structured: export.structured, size: export.size }
    }
}

impl NbdDevice {
    /// Connects, and asks for the export. `read_only`: no writes will come, whatever the server
    /// allows.
    ///
    /// # Errors
    /// `Open` when the server is not reachable, is no NBD server, or refuses the export; also when
    /// the export is read-only and `read_only` is false.
    pub fn open(address: NbdAddress, read_only: bool) -> Result<Self> {
        let name = address.to_string();
        let addresses = address
            .place
            .lookup()
            .map_err(|e| Error::new(ErrorKind::Open, format!("{name}: no such host")).with_source(e))?;
        // A sandboxed process needs the addresses for later connections.
        if let ServerAddress::Unix(path) = &address.place {
            will_connect(Target::Unix(path));
        }
        addresses.iter().for_each(|to| will_connect(Target::Tcp(*to)));
        let (socket, export) =
            connect_now(&address, &addresses, false, HANDSHAKE_LIMIT).map_err(|e| cannot_open(&name, &e))?;
        let has = |flag| export.flags.contains(flag);
        if !read_only && has(TransmissionFlags::READ_ONLY) {
            let context = format!("{name}: the export is read-only; open it with --read-only");
            return Err(Error::new(ErrorKind::Open, context));
        }
        if !read_only && !has(TransmissionFlags::SEND_FLUSH) {
            log::warn!("{name}: the server has no flush: acknowledged writes may not be on stable storage");
        }
        let geometry = Geometry {
            size: 0,
            block: export.min_block,
            preferred_block: export.preferred_block,
            memory_alignment: 1,
            read_only,
            discard: has(TransmissionFlags::SEND_TRIM),
            zones: None,
            tag_size: 0,
        };
        // A sandboxed process cannot open the lock's files later.
        let updates = if read_only { None } else { export_lock::update_lock(&address) };
        let several = has(TransmissionFlags::CAN_MULTI_CONN);
        let spare = Mutex::new(Some(NegotiatedConnection::new(socket, &export)));
        let size = AtomicU64::new(export.size);
        let (losses, sockets) = (Arc::new(FlushLosses::new(&name)), Mutex::default());
        let shared = Arc::new(Shared { address, name, addresses, export, size, losses, spare, sockets });
        let single = (!several).then(|| Arc::new(NbdLink::new(shared.clone())));
        let (extents, also_open) = Default::default();
        Ok(Self { shared, single, geometry, extents, also_open, updates })
    }

    /// Keeps files open as long as this device, for their locks. Later calls have no effect.
    pub fn keep_open(&self, files: Vec<File>) {
        let _ = self.also_open.set(files);
    }

    /// The export as the server described it at the opening.
    pub fn export(&self) -> ServerExport {
        self.shared.export
    }
}

impl SharedImage for NbdDevice {
    fn update_lock(&self) -> Option<&Arc<UpdateLock>> {
        self.updates.as_ref()
    }
}

impl Device for NbdDevice {
    fn geometry(&self) -> Geometry {
        let block = u64::from(self.shared.export.min_block);
        Geometry { size: self.shared.size() / block * block, ..self.geometry }
    }

    /// Connects once more: a server reports the size once on each connection.
    fn refresh(&self) -> Result<u64> {
        let Shared { address, addresses, name, .. } = &*self.shared;
        // A server that was restarted to report its new size has ended before.
        self.shared.look();
        if self.single.is_some() {
            // A flush on the next connection would not cover writes on the present one.
            let context =
                format!("{name}: the server wants one connection: the size is that of opening time");
            return Err(Error::new(ErrorKind::Open, context));
        }
        let (socket, export) =
            connect_now(address, addresses, false, HANDSHAKE_LIMIT).map_err(|e| cannot_open(name, &e))?;
        if let Some(why) = self.shared.differs(&ServerExport { size: self.shared.size(), ..export }) {
            let context = format!("{name}: another export is served there: {why}");
            return Err(Error::new(ErrorKind::Open, context));
        }
        // Connections in use are made again when a request goes beyond their size.
        self.shared.size.store(export.size, SeqCst);
        self.shared.keep_spare(NegotiatedConnection::new(socket, &export));
        Ok(self.geometry().size)
    }

    fn channel(&self, _depth: u32) -> Result<Box<dyn Channel>> {
        let no_wakeup = |e: std::io::Error| {
            Error::new(ErrorKind::Memory, "no event descriptor for a channel").with_source(e)
        };
        let (link, wakeup) = match &self.single {
            Some(link) => (link.clone(), Some(Arc::new(Wakeup::new().map_err(no_wakeup)?))),
            None => (Arc::new(NbdLink::new(self.shared.clone())), None),
        };
        let channel = NbdChannel::new(self.shared.clone(), link, wakeup);
        Ok(Box::new(Sticky::new(channel, self.shared.losses.clone())))
    }

    fn name(&self) -> &str {
        &self.shared.name
    }

    fn shared_image(&self) -> Option<&dyn SharedImage> {
        Some(self)
    }

    fn extent(&self, offset: u64, len: u64) -> Extent {
        let tells = self.single.is_none() && self.shared.export.structured;
        let size = self.geometry().size;
        let inside = offset < size && len > 0;
        if !tells || !inside {
            return Extent { len, hole: false };
        }
        // The last block may reach beyond the export's end.
        let len = len.min(size - offset);
        self.extents.at(&self.shared, offset, len)
    }
}

impl Shared {
    /// Takes the unused connection, if there is one and it works.
    fn take_spare(&self) -> Option<NegotiatedConnection> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        if spare.socket.is_dead() {
            self.note_loss(&spare.socket);
            return None;
        }
        if spare.size != self.size() {
            spare.socket.say_goodbye();
            return None;
        }
        Some(spare)
    }

    fn size(&self) -> u64 {
        self.size.load(SeqCst)
    }

    /// Keeps a connection for the next channel, at most one.
    fn keep_spare(&self, spare: NegotiatedConnection) {
        let mut kept = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = kept.take() {
            // The dropped connection is not checked later, and its writes may be unflushed.
            if before.socket.is_dead() {
                self.note_loss(&before.socket);
            } else {
                before.socket.say_goodbye();
            }
        }
        *kept = Some(spare);
    }

    /// Notes that a connection is in use.
    fn register(&self, socket: &Arc<NbdSocket>) {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.retain(|other| other.strong_count() > 0 && !Weak::ptr_eq(other, &Arc::downgrade(socket)));
        sockets.push(Arc::downgrade(socket));
    }

    /// Notes that a connection, and perhaps the server, has ended. Other connections that ended
    /// with it count as the same loss.
    fn note_loss(&self, socket: &NbdSocket) {
        if !socket.count() {
            return;
        }
        for other in &*self.sockets.lock().unwrap_or_else(PoisonError::into_inner) {
            if let Some(other) = other.upgrade()
                && !std::ptr::eq(&*other, socket)
                && other.is_dead()
            {
                other.count();
            }
        }
        self.note();
    }

    /// Notes an acknowledged change on a connection. If the connection's end is counted already,
    /// another thread saw it between the reply and this call.
    fn acknowledge(&self, socket: &NbdSocket) {
        self.losses.acknowledge();
        if socket.is_counted() {
            self.note();
        }
    }

    /// Notes that acknowledged, unflushed writes may be lost.
    fn note(&self) {
        if !self.address.trusts_unflushed && self.losses.note() {
            log::error!(
                "{}: what the server acknowledged and had not flushed may be lost; the next flush fails (unflushed=trust in \
                 the URI, if the server keeps it)",
                self.name
            );
        }
    }

    /// Looks for connections that have ended unnoticed.
    fn look(&self) {
        let sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        // A counted connection must not hide another one that ended later.
        let is_news = |socket: &Arc<NbdSocket>| !socket.is_counted() && socket.is_dead();
        let dead = sockets.iter().filter_map(Weak::upgrade).find(is_news);
        drop(sockets);
        if let Some(socket) = dead {
            self.note_loss(&socket);
        }
    }

    /// Describes how an export differs from the opened one; `None` when it can replace it.
    fn differs(&self, now: &ServerExport) -> Option<String> {
        let was = &self.export;
        let ignored = TransmissionFlags::ROTATIONAL | TransmissionFlags::SEND_DF;
        let size = self.size();
        if now.size != size {
            return Some(format!("it has {} bytes, not {size}", now.size));
        }
        if now.min_block > was.min_block || now.max_block < was.max_block {
            let (min, max) = (now.min_block, now.max_block);
            return Some(format!(
                "its blocks are of {min} to {max} bytes, not {} to {}",
                was.min_block, was.max_block
            ));
        }
        let changed = (now.flags ^ was.flags) - ignored;
        (!changed.is_empty()).then(|| format!("{changed:?} changed"))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(spare) = self.spare.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            spare.socket.say_goodbye();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn shared() -> Shared {
        let address: NbdAddress = "nbd+unix:///?socket=/nowhere".parse().unwrap();
        let export = ServerExport {
            size: 1 << 20,
            flags: TransmissionFlags::all(),
            min_block: 1,
            preferred_block: 4096,
            max_block: 1 << 20,
            structured: true,
            allocation: None,
        };
        let losses = Arc::new(FlushLosses::new("test"));
        let (spare, sockets) = (Mutex::default(), Mutex::default());
        let (name, size) = (address.to_string(), AtomicU64::new(export.size));
        Shared { address, name, addresses: Vec::new(), export, size, losses, spare, sockets }
    }

    /// A thread has the reply to a write in hand while another sees that the server has ended.
    #[test]
    fn a_write_that_is_acknowledged_after_its_connection_was_counted_is_a_loss_of_its_own() {
        let shared = shared();
        let (ours, theirs): (Vec<_>, Vec<_>) = (0..2).map(|_| UnixStream::pair().unwrap()).unzip();
        let sockets: Vec<_> = ours.into_iter().map(|fd| Arc::new(NbdSocket::new(fd.into()))).collect();
        sockets.iter().for_each(|socket| shared.register(socket));
        drop(theirs);
        let mut seen = shared.losses.told();
        shared.note_loss(&sockets[0]);
        assert!(!shared.losses.tell(&mut seen), "nothing was acknowledged");
        shared.acknowledge(&sockets[1]);
        shared.note_loss(&sockets[1]);
        assert!(shared.losses.tell(&mut seen));
        assert!(!shared.losses.tell(&mut seen));
    }
}
