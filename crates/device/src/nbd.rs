//! An export of an NBD server as a lower device: a disk at qemu-nbd, whatever nbdkit has a plugin
//! for, another volume.
//!
//! ```text
//!   NbdDevice   URI, what was negotiated, Losses
//!     |
//!     +-- NbdChannel (one a queue) -- Link -- Socket      where the server says multi-conn
//!     |
//!     +-- NbdChannel -+
//!     +-- NbdChannel -+- Link -- Socket                   where it does not: one connection for all
//!
//!   handshake   options, without I/O          flight    one request: what is asked, what was answered
//!   extents     block status                  replies   the server's bytes, taken apart
//!   address     nbd://..., nbd+unix://...     link      sending, receiving, connecting again
//! ```
//!
//! # How many connections
//! Each channel has a connection of its own where the server promises (multi-conn) that a flush on
//! one covers what any has seen acknowledged, and that all read what one wrote. Without that
//! promise there is exactly one: another one's flush would mean nothing, and qemu-nbd lets only one
//! client in. It is shared behind a lock, and no thread is added: one of the threads that wait
//! reads for all. Connections are made when the first request needs them.
//!
//! # When the server goes away
//! Requests in flight are asked again on the next connection, and new ones wait, for
//! `reconnect-delay` seconds (30, or the URI's parameter); then they fail with EIO, and each one
//! that follows looks for the server again. A request on which the server closes one connection
//! after the other fails alone: after five of them, of which the last three had nothing else in
//! flight, if the server answers others meanwhile; else when `reconnect-delay` is over. Asking
//! twice changes nothing: no request that overlaps one in flight is made. (A server that is not
//! dead but cut off may still carry out what it was asked before, as with every client that
//! connects again.) An export that is back with another size, other flags or narrower blocks is
//! refused. Another size is taken where it is asked for (`Device::refresh`) of a server that says
//! multi-conn: a connection reaches what its server told on it, and is made again, when nothing is
//! in flight on it, for a request that goes beyond.
//!
//! # Flushes
//! What a server acknowledged and had not flushed, it may have lost when it ended. Nobody here has
//! those bytes any more, so a flush after that would promise what cannot be known. It **fails**,
//! once on every channel, as fsync fails once on every descriptor after Linux has failed to write
//! back: whoever wrote is told that acknowledged writes may be lost. QEMU's client
//! (`reconnect-delay`) and the kernel's (`nbd-client -persist`) leave this out, and acknowledge.
//! Where the operator knows that a server which ends loses nothing (its bytes are in the page cache
//! of a host that stays up, or it writes through), `unflushed=trust` in the URI has flushes
//! believed as those clients do. A write with FUA is on stable storage when it is acknowledged, and
//! so is what an earlier flush covers; where nothing else was written, nothing fails. Once is
//! enough here: what is read afterwards is what the server still has, so whoever was told can look.
//!
//! A server without flush cannot make anything stable. A flush at it succeeds at once, unless a
//! loss has to be told of.
//!
//! A flush that the server itself answers with an error is another matter: from then on all fail
//! (`losses.rs` says why). A write with FUA that fails is written again without FUA. If that
//! succeeds, the server's flush has failed, and counts as one.
//!
//! A connection that another thread has not used since the server ended is looked at before a flush
//! is acknowledged. What is not seen is a server's end that TCP has not told of yet.
//!
//! # Time
//! A server has 10 seconds to accept and negotiate. A request in flight has no limit: a server may
//! be slow, and TCP notices a host that is gone (20 s).
//!
//! # Trust
//! The server sees ciphertext, offsets and times. Of what it says nothing is believed before it is
//! checked; whatever breaks the rules ends the connection, and the same limits hold as for one that
//! went away.

mod address;
mod channel;
mod extents;
mod flight;
mod handshake;
mod link;
mod replies;
#[cfg(any(test, feature = "fuzzing"))]
pub mod script;
mod socket;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use underseal_nbd_protocol::TransmissionFlags;
use underseal_sandbox::{Target, will_connect};

use self::address::ServerAddress;
use self::channel::{NbdChannel, cannot_open};
use self::extents::ExtentQuery;
use self::link::NbdLink;
use self::socket::{HANDSHAKE_LIMIT, NbdSocket, connect_now};
use crate::bell::Wakeup;
use crate::losses::{FlushLosses, Sticky};
use crate::{Channel, Device, Error, ErrorKind, Extent, Geometry, Result};

pub use address::NbdAddress;
pub use handshake::{ClientHandshake, HandshakeRefusal, ServerExport};

/// An export of an NBD server.
pub struct NbdDevice {
    shared: Arc<Shared>,
    /// The one connection of a server that does not want several.
    single: Option<Arc<NbdLink>>,
    /// All but the size.
    geometry: Geometry,
    extents: ExtentQuery,
}

/// What all connections have in common.
struct Shared {
    address: NbdAddress,
    name: String,
    /// The host's addresses, looked up once: no name server is waited for amid requests.
    addresses: Vec<SocketAddr>,
    export: ServerExport,
    /// The export's size when it was last asked for; what `export` says is of opening time.
    size: AtomicU64,
    losses: Arc<FlushLosses>,
    /// A connection that nobody uses now.
    spare: Mutex<Option<NegotiatedConnection>>,
    /// Those in use.
    sockets: Mutex<Vec<Weak<NbdSocket>>>,
}

/// A connection that is negotiated.
struct NegotiatedConnection {
    socket: Arc<NbdSocket>,
    structured: bool,
    /// The export's size as this connection knows it: for another one the client has to connect
    /// again.
    size: u64,
}

impl NegotiatedConnection {
    fn new(socket: Arc<NbdSocket>, export: &ServerExport) -> Self {
        Self { socket, structured: export.structured, size: export.size }
    }
}

impl NbdDevice {
    /// Connects, and asks for the export. `read_only`: nothing will be written, whatever the server
    /// allows.
    ///
    /// # Errors
    /// `Open` when the server is not there, is none, or does not give the export; also when it is
    /// to be written to, and is read-only.
    pub fn open(address: NbdAddress, read_only: bool) -> Result<Self> {
        let name = address.to_string();
        let addresses = address
            .place
            .lookup()
            .map_err(|e| Error::new(ErrorKind::Open, format!("{name}: no such host")).with_source(e))?;
        // For when the server went away and came back.
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
            log::warn!(
                "{name}: the server knows no flush: what it acknowledges may not be on stable storage"
            );
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
        let several = has(TransmissionFlags::CAN_MULTI_CONN);
        let spare = Mutex::new(Some(NegotiatedConnection::new(socket, &export)));
        let size = AtomicU64::new(export.size);
        let (losses, sockets) = (Arc::new(FlushLosses::new(&name)), Mutex::default());
        let shared = Arc::new(Shared { address, name, addresses, export, size, losses, spare, sockets });
        let single = (!several).then(|| Arc::new(NbdLink::new(shared.clone())));
        Ok(Self { shared, single, geometry, extents: ExtentQuery::default() })
    }

    /// What the server said of the export when it was opened.
    pub fn export(&self) -> ServerExport {
        self.shared.export
    }
}

impl Device for NbdDevice {
    fn geometry(&self) -> Geometry {
        let block = u64::from(self.shared.export.min_block);
        Geometry { size: self.shared.size() / block * block, ..self.geometry }
    }

    /// A server tells the size once on each connection: a new one is made.
    fn refresh(&self) -> Result<u64> {
        let Shared { address, addresses, name, .. } = &*self.shared;
        // A server that was started again to tell its new size has ended before.
        self.shared.look();
        if self.single.is_some() {
            // A flush on the next connection would not cover what was written on the one before.
            let context =
                format!("{name}: the server wants one connection: the size is that of opening time");
            return Err(Error::new(ErrorKind::Open, context));
        }
        let (socket, export) =
            connect_now(address, addresses, false, HANDSHAKE_LIMIT).map_err(|e| cannot_open(name, &e))?;
        if let Some(why) = self.shared.differs(&ServerExport { size: self.shared.size(), ..export }) {
            let context = format!("{name}: what is served there is another export: {why}");
            return Err(Error::new(ErrorKind::Open, context));
        }
        // Connections that are used are made again when a request needs what they do not reach.
        self.shared.size.store(export.size, SeqCst);
        self.shared.keep_spare(NegotiatedConnection::new(socket, &export));
        Ok(self.geometry().size)
    }

    fn channel(&self, _depth: u32) -> Result<Box<dyn Channel>> {
        let no_bell = |e: std::io::Error| {
            Error::new(ErrorKind::Memory, "no event descriptor for a channel").with_source(e)
        };
        let (link, bell) = match &self.single {
            Some(link) => (link.clone(), Some(Arc::new(Wakeup::new().map_err(no_bell)?))),
            None => (Arc::new(NbdLink::new(self.shared.clone())), None),
        };
        let channel = NbdChannel::new(self.shared.clone(), link, bell);
        Ok(Box::new(Sticky::new(channel, self.shared.losses.clone())))
    }

    fn name(&self) -> &str {
        &self.shared.name
    }

    fn extent(&self, offset: u64, len: u64) -> Extent {
        let tells = self.single.is_none() && self.shared.export.structured;
        let size = self.geometry().size;
        let inside = offset < size && len > 0;
        if !tells || !inside {
            return Extent { len, hole: false };
        }
        // The end of the last block is the end of the export.
        let len = len.min(size - offset);
        self.extents.at(&self.shared, offset, len)
    }
}

impl Shared {
    /// A connection that nobody uses, if there is one and it is whole.
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

    /// Keeps a connection for the next channel. One is enough.
    fn keep_spare(&self, spare: NegotiatedConnection) {
        let mut kept = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = kept.take() {
            // Nobody would look at it any more, and its channel's writes may not be flushed.
            if before.socket.is_dead() {
                self.note_loss(&before.socket);
            } else {
                before.socket.say_goodbye();
            }
        }
        *kept = Some(spare);
    }

    /// A connection is used from now on.
    fn register(&self, socket: &Arc<NbdSocket>) {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.retain(|other| other.strong_count() > 0 && !Weak::ptr_eq(other, &Arc::downgrade(socket)));
        sockets.push(Arc::downgrade(socket));
    }

    /// A connection has ended, and perhaps the server. Others that ended with it count as one.
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

    /// A change was acknowledged on this connection. Where its end is counted already, another
    /// thread saw it between the reply and this.
    fn acknowledge(&self, socket: &NbdSocket) {
        self.losses.acknowledge();
        if socket.is_counted() {
            self.note();
        }
    }

    /// What was acknowledged and is not flushed may be lost.
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
        // One that is counted may hide another that died later.
        let is_news = |socket: &Arc<NbdSocket>| !socket.is_counted() && socket.is_dead();
        let dead = sockets.iter().filter_map(Weak::upgrade).find(is_news);
        drop(sockets);
        if let Some(socket) = dead {
            self.note_loss(&socket);
        }
    }

    /// What is different about an export that should be the same; `None` when it can take its
    /// place.
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

    /// One thread has the reply to a write in hand when another sees that the server has ended.
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
