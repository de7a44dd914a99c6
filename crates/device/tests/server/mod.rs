//! An NBD server for tests: an export in memory, with the faults that a client has to handle.

#![allow(dead_code, reason = "each test uses a part")]

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use underseal_nbd_protocol::{
    CommandFlags, Errno, ExtentState, INIT_PASSWD, OPTION_MAGIC, OPTION_REPLY_MAGIC, REQUEST_LEN,
    RequestHeader, RequestType, TransmissionFlags as Flags, block_descriptor, block_status_header,
    error_chunk, info, none_chunk, offset_data_header, offset_hole_chunk, option, option_reply as reply,
    simple_reply,
};

/// The properties and faults of the server.
#[derive(Debug, Clone)]
pub(crate) struct Behaviour {
    pub(crate) size: usize,
    pub(crate) flags: Flags,
    /// Minimum, preferred and maximum block size; `None`: the server reports none.
    pub(crate) blocks: Option<[u32; 3]>,
    pub(crate) structured: bool,
    /// Reads are answered in parts of this many bytes, the last first, zeros as holes.
    pub(crate) pieces: Option<usize>,
    /// Each connection ends after this many requests, of which the last is carried out and not
    /// answered.
    pub(crate) dies_after: Option<u64>,
    /// Each connection answers this many requests; the next one waits until more may be answered.
    pub(crate) answers: Option<u64>,
    /// Requests are answered in pairs, the second first.
    pub(crate) reorders: bool,
    /// Clients are accepted, but nothing is sent to them.
    pub(crate) stalls: bool,
    /// Flushes are answered with an error.
    pub(crate) cannot_flush: bool,
    /// Writes with FUA are carried out, and answered with an error.
    pub(crate) cannot_fua: bool,
    /// A request at this offset ends its connection, unanswered.
    pub(crate) hangs_up_at: Option<u64>,
    /// All requests that have come are read before one is answered.
    pub(crate) gathers: bool,
    /// The whole server dies, once, at this message (options and requests of all connections
    /// count), before or after it is carried out.
    pub(crate) crashes_at: Option<(u64, bool)>,
    /// Unflushed writes are lost when a connection dies.
    pub(crate) forgets: bool,
    /// Received bytes are kept, for tests to check.
    pub(crate) records: bool,
}

impl Behaviour {
    pub(crate) fn plain(size: usize) -> Self {
        let flags = Flags::HAS_FLAGS
            | Flags::SEND_FLUSH
            | Flags::SEND_FUA
            | Flags::SEND_TRIM
            | Flags::SEND_WRITE_ZEROES
            | Flags::SEND_CACHE
            | Flags::CAN_MULTI_CONN;
        Self {
            size,
            flags,
            blocks: None,
            structured: true,
            pieces: None,
            dies_after: None,
            answers: None,
            reorders: false,
            stalls: false,
            cannot_flush: false,
            cannot_fua: false,
            hangs_up_at: None,
            gathers: false,
            crashes_at: None,
            forgets: false,
            records: true,
        }
    }

    pub(crate) fn without(mut self, flags: Flags) -> Self {
        self.flags -= flags;
        self
    }

    pub(crate) fn with(mut self, flags: Flags) -> Self {
        self.flags |= flags;
        self
    }
}

/// The state that all connections share.
pub(crate) struct Inner {
    pub(crate) behaviour: Mutex<Behaviour>,
    memory: Mutex<Vec<u8>>,
    stable: Mutex<Vec<u8>>,
    /// All bytes that clients sent.
    pub(crate) heard: Mutex<Vec<u8>>,
    pub(crate) requests: Mutex<Vec<RequestHeader>>,
    /// The number of answered requests, on all connections.
    pub(crate) answered: AtomicU64,
    pub(crate) connections: AtomicU64,
    /// The number of options and requests that came.
    pub(crate) messages: AtomicU64,
    /// The number of deaths: requests to an earlier server change nothing any more.
    deaths: AtomicU64,
    open: Mutex<Vec<UnixStream>>,
}

/// A server on a Unix socket in a temporary folder.
pub(crate) struct Server {
    folder: tempfile::TempDir,
    pub(crate) inner: Arc<Inner>,
    /// The listener of the thread that accepts; the thread ends with it.
    listening: Mutex<Option<UnixListener>>,
}

impl Server {
    pub(crate) fn start(behaviour: Behaviour) -> Self {
        let folder = tempfile::Builder::new().prefix("us-").tempdir_in("/tmp").unwrap();
        let inner = Inner {
            memory: Mutex::new(vec![0; behaviour.size]),
            stable: Mutex::new(vec![0; behaviour.size]),
            behaviour: Mutex::new(behaviour),
            heard: Mutex::default(),
            requests: Mutex::default(),
            answered: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            messages: AtomicU64::new(0),
            deaths: AtomicU64::new(0),
            open: Mutex::default(),
        };
        let server = Self { folder, inner: Arc::new(inner), listening: Mutex::new(None) };
        server.come_back();
        server
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    pub(crate) fn uri(&self, parameters: &str) -> String {
        format!("nbd+unix:///?socket={}{parameters}", self.path().display())
    }

    /// Ends like a killed process: at once, and with all connections.
    pub(crate) fn vanish(&self) {
        if let Some(listener) = self.listening.lock().unwrap().take() {
            let _ = std::fs::remove_file(self.path());
            rustix::net::shutdown(&listener, rustix::net::Shutdown::Both).unwrap();
        }
        self.inner.die();
    }

    /// Listens again.
    pub(crate) fn come_back(&self) {
        let listener = UnixListener::bind(self.path()).unwrap();
        *self.listening.lock().unwrap() = Some(listener.try_clone().unwrap());
        let inner = self.inner.clone();
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                inner.connections.fetch_add(1, Ordering::SeqCst);
                inner.open.lock().unwrap().push(stream.try_clone().unwrap());
                let inner = inner.clone();
                let life = inner.deaths.load(Ordering::SeqCst);
                // The thread ends when the client disconnects.
                thread::spawn(move || drop(Connection { stream, inner, life, structured: false }.serve()));
            }
        });
    }

    pub(crate) fn memory(&self) -> MutexGuard<'_, Vec<u8>> {
        self.inner.memory()
    }

    /// Sets the export's size for later connections.
    pub(crate) fn grow(&self, size: usize) {
        self.memory().resize(size, 0);
        self.inner.stable.lock().unwrap().resize(size, 0);
        self.inner.behaviour.lock().unwrap().size = size;
    }

    pub(crate) fn commands(&self) -> Vec<RequestType> {
        self.inner.requests.lock().unwrap().iter().map(|request| request.command).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.vanish();
    }
}

impl Inner {
    fn memory(&self) -> MutexGuard<'_, Vec<u8>> {
        self.memory.lock().unwrap()
    }

    pub(crate) fn behaviour(&self) -> Behaviour {
        self.behaviour.lock().unwrap().clone()
    }

    /// Ends all connections, and loses unflushed writes.
    fn die(&self) {
        let mut memory = self.memory();
        self.deaths.fetch_add(1, Ordering::SeqCst);
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        if self.behaviour().forgets {
            memory.copy_from_slice(&self.stable.lock().unwrap());
        }
    }
}

struct Connection {
    stream: UnixStream,
    inner: Arc<Inner>,
    life: u64,
    structured: bool,
}

fn dead() -> io::Error {
    io::ErrorKind::ConnectionAborted.into()
}

impl Connection {
    fn hear(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes)?;
        if self.inner.behaviour().records {
            self.inner.heard.lock().unwrap().extend(&bytes);
        }
        Ok(bytes)
    }

    fn u32(&mut self) -> io::Result<u32> {
        Ok(u32::from_be_bytes(self.hear(4)?.try_into().unwrap()))
    }

    fn answer(&mut self, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
        let len = u32::try_from(data.len()).unwrap().to_be_bytes();
        let head = [&OPTION_REPLY_MAGIC.to_be_bytes()[..], &option.to_be_bytes(), &kind.to_be_bytes(), &len];
        self.stream.write_all(&[&head.concat(), data].concat())
    }

    fn serve(mut self) -> io::Result<()> {
        while self.inner.behaviour().stalls {
            thread::sleep(std::time::Duration::from_millis(20));
        }
        let greeting = [&INIT_PASSWD.to_be_bytes()[..], &OPTION_MAGIC.to_be_bytes(), &[0, 3]].concat();
        self.stream.write_all(&greeting)?;
        self.hear(4)?;
        loop {
            self.hear(8)?;
            let (kind, len) = (self.u32()?, self.u32()?);
            let data = self.hear(len as usize)?;
            let is = self.inner.behaviour();
            if is.crashes_at.is_some_and(|(at, _)| at == self.inner.messages.fetch_add(1, Ordering::SeqCst)) {
                self.inner.die();
                return Err(dead());
            }
            match kind {
                option::STRUCTURED_REPLY if is.structured => {
                    self.structured = true;
                    self.answer(kind, reply::ACK, &[])?;
                }
                option::SET_META_CONTEXT if is.structured => {
                    assert!(data.ends_with(b"base:allocation"));
                    self.answer(
                        kind,
                        reply::META_CONTEXT,
                        &[&[0, 0, 0, 9][..], b"base:allocation"].concat(),
                    )?;
                    self.answer(kind, reply::ACK, &[])?;
                }
                option::GO if data[4..].starts_with(b"missing") => {
                    self.answer(kind, reply::ERR_UNKNOWN, b"no\nsuch export")?;
                }
                option::GO => {
                    let size = (is.size as u64).to_be_bytes();
                    let export = [&info::EXPORT.to_be_bytes()[..], &size, &is.flags.bits().to_be_bytes()];
                    self.answer(kind, reply::INFO, &export.concat())?;
                    if let Some(blocks) = is.blocks {
                        let sizes = blocks.map(u32::to_be_bytes).concat();
                        self.answer(
                            kind,
                            reply::INFO,
                            &[&info::BLOCK_SIZE.to_be_bytes()[..], &sizes].concat(),
                        )?;
                    }
                    self.answer(kind, reply::ACK, &[])?;
                    return self.transmit();
                }
                _ => self.answer(kind, reply::ERR_UNSUP, &[])?,
            }
        }
    }

    fn transmit(mut self) -> io::Result<()> {
        let size = self.inner.behaviour().size;
        let mut served = 0;
        let mut held: Vec<Vec<u8>> = Vec::new();
        loop {
            let header: [u8; REQUEST_LEN] = self.hear(REQUEST_LEN)?.try_into().unwrap();
            let request = RequestHeader::parse(&header).expect("the client keeps in step");
            let payload = self.hear(request.payload_len() as usize)?;
            // A connection keeps the size that it reported.
            let is = Behaviour { size, ..self.inner.behaviour() };
            if is.records {
                self.inner.requests.lock().unwrap().push(request);
            }
            if request.command == RequestType::Disconnect {
                return Ok(());
            }
            while self.inner.behaviour().answers.is_some_and(|most| served >= most) {
                thread::sleep(std::time::Duration::from_millis(5));
            }
            served += 1;
            if is.hangs_up_at == Some(request.offset) && request.command != RequestType::Flush {
                self.stream.shutdown(std::net::Shutdown::Both)?;
                return Ok(());
            }
            let message = self.inner.messages.fetch_add(1, Ordering::SeqCst);
            let crashes = is.crashes_at.filter(|(at, _)| *at == message).map(|(_, after)| after);
            if crashes == Some(false) {
                self.inner.die();
                return Err(dead());
            }
            let replied = self.carry_out(&request, &payload, &is);
            if crashes == Some(true) {
                self.inner.die();
                return Err(dead());
            }
            if is.dies_after.is_some_and(|most| served >= most) {
                self.stream.shutdown(std::net::Shutdown::Both)?;
                return Ok(());
            }
            // A client must not wait for a second request that never comes.
            let holds = is.gathers || (is.reorders && held.is_empty());
            held.push(replied);
            if holds && more_waits(&self.stream) {
                continue;
            }
            for reply in held.drain(..).rev() {
                self.stream.write_all(&reply)?;
                self.inner.answered.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    fn carry_out(&mut self, request: &RequestHeader, payload: &[u8], is: &Behaviour) -> Vec<u8> {
        let cookie = request.cookie;
        let (from, len) = (usize::try_from(request.offset).unwrap(), request.length as usize);
        let mut out = vec![0; 64];
        let plain = |error| {
            let mut out = vec![0; 16];
            simple_reply(&mut out, cookie, error);
            out
        };
        let [min, _, max] = is.blocks.unwrap_or([1, 4096, 1 << 25]);
        let aligned = from.is_multiple_of(min as usize) && len.is_multiple_of(min as usize);
        let inside = from + len <= is.size && aligned;
        let carries = matches!(request.command, RequestType::Read | RequestType::Write);
        if !inside || (carries && len > max as usize) || (carries && len == 0) {
            if self.structured && request.command == RequestType::Read {
                let len = error_chunk(&mut out, cookie, true, Errno::Inval, "no");
                return out[..len].to_vec();
            }
            return plain(Some(Errno::Inval));
        }
        let fua = request.flags.contains(CommandFlags::FUA);
        assert!(!fua || is.flags.contains(Flags::SEND_FUA), "only what was offered is asked for");
        let mut memory = self.inner.memory();
        if self.life != self.inner.deaths.load(Ordering::SeqCst) {
            return plain(Some(Errno::Io));
        }
        match request.command {
            RequestType::Write => memory[from..from + len].copy_from_slice(payload),
            RequestType::WriteZeroes | RequestType::Trim => memory[from..from + len].fill(0),
            RequestType::Flush if is.cannot_flush => return plain(Some(Errno::Io)),
            RequestType::Flush if is.forgets => self.inner.stable.lock().unwrap().copy_from_slice(&memory),
            RequestType::Read => return read_reply(request, &memory[from..from + len], self.structured, is),
            RequestType::BlockStatus => {
                let hole = |at: usize| memory[at..(at + 4096).min(is.size)].iter().all(|&b| b == 0);
                let first = hole(from);
                let ends = (from..from + len).step_by(4096).find(|&at| hole(at) != first);
                let run = u32::try_from(ends.unwrap_or(from + len) - from).unwrap();
                let state = if first { ExtentState::HOLE | ExtentState::ZERO } else { ExtentState::empty() };
                let at = block_status_header(&mut out, cookie, true, 9, 1);
                let end = at + block_descriptor(&mut out[at..], run, state);
                return out[..end].to_vec();
            }
            _ => {}
        }
        if fua && is.cannot_fua {
            return plain(Some(Errno::Io));
        }
        if fua && is.forgets {
            self.inner.stable.lock().unwrap()[from..from + len].copy_from_slice(&memory[from..from + len]);
        }
        if self.structured && len.is_multiple_of(8192) {
            let len = none_chunk(&mut out, cookie);
            return out[..len].to_vec();
        }
        plain(None)
    }
}

fn read_reply(request: &RequestHeader, bytes: &[u8], structured: bool, is: &Behaviour) -> Vec<u8> {
    let mut reply = vec![0; 64];
    if !structured {
        simple_reply(&mut reply, request.cookie, None);
        reply.truncate(16);
        return [&reply, bytes].concat();
    }
    let mut out = Vec::new();
    let piece = is.pieces.unwrap_or(bytes.len());
    for (number, part) in bytes.chunks(piece).enumerate().rev() {
        let at = request.offset + (number * piece) as u64;
        let len = u32::try_from(part.len()).unwrap();
        let last = number == 0 && is.pieces.is_none();
        if is.pieces.is_some() && part.iter().all(|&b| b == 0) {
            let head = offset_hole_chunk(&mut reply, request.cookie, last, at, len);
            out.extend(&reply[..head]);
        } else {
            let head = offset_data_header(&mut reply, request.cookie, last, at, len);
            out.extend(&reply[..head]);
            out.extend(part);
        }
    }
    if is.pieces.is_some() {
        let head = none_chunk(&mut reply, request.cookie);
        out.extend(&reply[..head]);
    }
    out
}

fn more_waits(stream: &UnixStream) -> bool {
    use rustix::net::{RecvFlags, recv};
    recv(stream, &mut [0_u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT).is_ok_and(|(n, _)| n > 0)
}
pub(crate) const WRITE: RequestType = RequestType::Write;
