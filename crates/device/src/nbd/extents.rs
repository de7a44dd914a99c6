//! Stored parts of an export: block status, over a separate connection.
//!
//! Only servers with multi-conn are asked, since only there a write on one connection is no hole on
//! another. After any error all is data, and the server is not asked for a while: no caller waits
//! for a hint.

use std::io::IoSlice;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use underseal_nbd_protocol::{
    CHUNK_HEADER_LEN, CommandFlags, ExtentState, RequestHeader, RequestType, STRUCTURED_REPLY_MAGIC, chunk,
};

use super::Shared;
use super::handshake::HandshakeRefusal;
use super::socket::{ConnectFailure, NbdSocket, connect_now, wait};
use crate::{Extent, monotonic};

/// The time limit for a reply.
const LIMIT: Duration = Duration::from_secs(3);
/// The time without questions after an error.
const REST: Duration = Duration::from_secs(10);

/// The connection for questions, and its state.
#[derive(Default)]
pub(super) struct ExtentQuery(Mutex<State>);

#[derive(Default)]
struct State {
    asked: Option<PendingQuery>,
    /// The time before which the server is not asked.
    rests_until: Duration,
    questions: u64,
}

struct PendingQuery {
    socket: Arc<NbdSocket>,
    /// The number of the context `base:allocation`.
    context: u32,
}

impl ExtentQuery {
    /// Returns the extent at `offset`, of whole blocks, at most `len` bytes.
    pub(super) fn at(&self, shared: &Shared, offset: u64, len: u64) -> Extent {
        let data = Extent { len, hole: false };
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if monotonic() < state.rests_until {
            return data;
        }
        match state.ask(shared, offset, len) {
            Ok(extent) => extent,
            Err(e) => {
                log::debug!("{}: no block status: {e}", shared.name);
                state.asked = None;
                state.rests_until = monotonic() + REST;
                data
            }
        }
    }
}

impl State {
    fn ask(&mut self, shared: &Shared, offset: u64, len: u64) -> Result<Extent, ConnectFailure> {
        let asked = match &self.asked {
            Some(asked) => asked,
            None => self.asked.insert(connect(shared)?),
        };
        self.questions += 1;
        let block = u64::from(shared.export.min_block);
        let most = (1 << 31) / block * block;
        let request = RequestHeader {
            flags: CommandFlags::REQ_ONE,
            command: RequestType::BlockStatus,
            cookie: self.questions.to_be_bytes(),
            offset,
            length: u32::try_from(len.min(most)).unwrap_or(u32::MAX),
        };
        let deadline = monotonic() + LIMIT;
        send(&asked.socket, &request.encode(), deadline)?;
        let mut found = None;
        loop {
            let mut header = [0; CHUNK_HEADER_LEN];
            receive(&asked.socket, &mut header, deadline)?;
            let (magic, flags, kind, len) =
                (word(&header, 0), word(&header, 4) >> 16, word(&header, 4) & 0xffff, word(&header, 16));
            if magic != STRUCTURED_REPLY_MAGIC || header[8..16] != request.cookie {
                return Err(HandshakeRefusal::from("a reply to another question").into());
            }
            match (u16::try_from(kind).unwrap_or(u16::MAX), len) {
                (chunk::NONE, 0) => {}
                (chunk::BLOCK_STATUS, 12) => {
                    let mut body = [0; 12];
                    receive(&asked.socket, &mut body, deadline)?;
                    if word(&body, 0) == asked.context {
                        found =
                            Some((u64::from(word(&body, 4)), ExtentState::from_bits_retain(word(&body, 8))));
                    }
                }
                _ => return Err(HandshakeRefusal::from("the server reports no block status").into()),
            }
            if u16::try_from(flags).is_ok_and(|flags| flags & chunk::DONE != 0) {
                break;
            }
        }
        match found {
            Some((length, state)) if length > 0 => {
                // An unallocated range may hold anything; a hole reads as zeros, as a file's does.
                let hole = state.contains(ExtentState::HOLE | ExtentState::ZERO);
                Ok(Extent { len: length.min(len), hole })
            }
            _ => Err(HandshakeRefusal::from("the reply is malformed").into()),
        }
    }
}

fn connect(shared: &Shared) -> Result<PendingQuery, ConnectFailure> {
    let (socket, export) = connect_now(&shared.address, &shared.addresses, true, LIMIT)?;
    if let Some(why) = shared.differs(&export) {
        return Err(HandshakeRefusal::from(&*why).into());
    }
    let context =
        export.allocation.ok_or_else(|| HandshakeRefusal::from("the server has no base:allocation"))?;
    Ok(PendingQuery { socket, context })
}

fn send(socket: &NbdSocket, mut bytes: &[u8], deadline: Duration) -> Result<(), ConnectFailure> {
    while !bytes.is_empty() {
        match socket.send(&[IoSlice::new(bytes)]) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(Errno::AGAIN) if monotonic() < deadline => wait(socket, true, deadline),
            Err(e) => return Err(ConnectFailure::System("cannot ask", e)),
        }
    }
    Ok(())
}

fn receive(socket: &NbdSocket, mut into: &mut [u8], deadline: Duration) -> Result<(), ConnectFailure> {
    while !into.is_empty() {
        match socket.recv(into) {
            Ok(0) => return Err(HandshakeRefusal::from("the server closed the connection").into()),
            Ok(received) => into = &mut into[received..],
            Err(Errno::AGAIN) if monotonic() < deadline => wait(socket, false, deadline),
            Err(e) => return Err(ConnectFailure::System("no answer", e)),
        }
    }
    Ok(())
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
