//! From received bytes to requests in flight.

use std::io;

use underseal_datapath::{Buffer, Full, Request as Job};

use super::Transmission;
use super::inbox::IN_PLACE;
use crate::nbd::protocol::{CommandFlags, Errno, REQUEST_LEN, RequestHeader, RequestType};
use crate::{Error, ErrorKind, Result};

/// A large write that is being received, or a refused write whose payload still has to arrive.
pub(super) struct Payload {
    pub(super) request: RequestHeader,
    pub(super) filled: usize,
    /// The payload's memory, or the error of a refused write, whose payload is dropped.
    pub(super) into: std::result::Result<Buffer, Errno>,
}

/// The result of taking the next request from the inbox.
#[derive(PartialEq, Eq)]
pub(super) enum Taken {
    /// The request is in flight or answered.
    Yes,
    /// Not all of the request has arrived.
    NeedsBytes,
    /// The queue has no room: completions come first.
    NeedsRoom,
}

impl Transmission {
    /// Receives into the inbox or the current payload. Returns true when bytes or the stream's end
    /// arrived.
    pub(super) fn receive(&mut self) -> Result<bool> {
        let (wanted, received) = match &mut self.payload {
            Some(Payload { into: Ok(buffer), filled, .. }) => {
                let rest = &mut buffer[*filled..];
                (rest.len(), self.wire.receive(rest).inspect(|n| *filled += n))
            }
            _ => {
                let most = if self.header_alone && self.inbox.is_empty() { REQUEST_LEN } else { usize::MAX };
                (most, self.inbox.fill(&mut self.wire, most))
            }
        };
        match received {
            Ok(0) => {
                self.is_left();
                if !self.inbox.is_empty() || self.payload.is_some() {
                    log::info!("{}: left in the middle of a request", self.peer);
                }
            }
            Ok(n) => {
                self.readable = n == wanted || self.wire.may_hold_more();
                self.may_change = false;
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                return Ok(false);
            }
            Err(e) => return Err(e.into()),
        }
        Ok(true)
    }

    /// Returns true when the next request changes the volume, and requests of another connection,
    /// which the client may have repeated here, have not ended.
    pub(super) fn is_held(&mut self) -> bool {
        if self.may_change {
            return false;
        }
        let next = self.inbox.header().and_then(|header| RequestHeader::parse(header).ok());
        let changes = next.is_some_and(|request| {
            matches!(request.command, RequestType::Write | RequestType::WriteZeroes | RequestType::Trim)
        });
        if !changes {
            return false;
        }
        self.may_change = !self.stop.others_have_left();
        // Two connections that have both left must not wait for each other.
        if !self.may_change && self.stop.has_left() {
            self.is_left();
        }
        !self.may_change
    }

    pub(super) fn take_request(&mut self) -> Result<Taken> {
        let Some(header) = self.inbox.header() else { return Ok(Taken::NeedsBytes) };
        let request = RequestHeader::parse(header)
            .map_err(|e| Error::new(ErrorKind::Protocol, "the client sent no request").with_source(e))?;
        if self.request_table.is_full() {
            return Ok(Taken::NeedsRoom);
        }
        if request.command == RequestType::Write {
            return Ok(self.take_write(request));
        }
        let taken = if request.command == RequestType::Disconnect {
            self.closing = true;
            self.stop.disconnects();
            Taken::Yes
        } else {
            self.start(request)
        };
        if taken == Taken::Yes {
            self.inbox.take(REQUEST_LEN);
        }
        Ok(taken)
    }

    /// Starts a write whose header is in the inbox.
    fn take_write(&mut self, request: RequestHeader) -> Taken {
        let len = request.length as usize;
        let refused = self.refuse(&request).or_else(|| self.refuse_write(&request));
        if refused.is_none() && len <= IN_PLACE {
            let Some(data) = self.inbox.payload(len) else { return Taken::NeedsBytes };
            let durable = request.flags.contains(CommandFlags::FUA);
            let cookie = self.request_table.insert(request);
            if self.queue.write_in_place(cookie, request.offset, data, durable) == Err(Full) {
                self.request_table.remove(cookie);
                return Taken::NeedsRoom;
            }
            self.inbox.take(REQUEST_LEN + len);
            return Taken::Yes;
        }
        let into = match refused {
            Some(errno) => Err(errno),
            None => match self.queue.alloc(len) {
                Some(buffer) => Ok(buffer),
                None => return Taken::NeedsRoom,
            },
        };
        self.inbox.take(REQUEST_LEN);
        self.payload = Some(Payload { request, filled: 0, into });
        Taken::Yes
    }

    /// Continues a payload: from the inbox first, then straight from the socket.
    pub(super) fn take_payload(&mut self, mut payload: Payload) -> Result<Taken> {
        let len = payload.request.length as usize;
        let arrived = self.inbox.take(len - payload.filled);
        if let Ok(buffer) = &mut payload.into {
            buffer[payload.filled..payload.filled + arrived.len()].copy_from_slice(arrived);
        }
        payload.filled += arrived.len();
        if payload.filled < len {
            self.payload = Some(payload);
            return Ok(Taken::NeedsBytes);
        }
        if self.request_table.is_full() {
            self.payload = Some(payload);
            return Ok(Taken::NeedsRoom);
        }
        let request = payload.request;
        match payload.into {
            Err(errno) => self.answer_error(&request, errno, "refused"),
            Ok(data) => {
                self.header_alone = true;
                let durable = request.flags.contains(CommandFlags::FUA);
                let cookie = self.request_table.insert(request);
                let write = Job::Write { offset: request.offset, data, durable };
                if let Err(Job::Write { data, .. }) = self.queue.submit(cookie, write) {
                    self.request_table.remove(cookie);
                    self.payload = Some(Payload { request, filled: len, into: Ok(data) });
                    return Ok(Taken::NeedsRoom);
                }
            }
        }
        Ok(Taken::Yes)
    }

    /// Starts a request that has no payload.
    fn start(&mut self, request: RequestHeader) -> Taken {
        self.header_alone = false;
        if let Some(errno) = self.refuse(&request) {
            self.answer_error(&request, errno, "not a request that this export takes");
            return Taken::Yes;
        }
        let (offset, len) = (request.offset, u64::from(request.length));
        let has = |flag| request.flags.contains(flag);
        let durable = has(CommandFlags::FUA);
        let job = match request.command {
            RequestType::Read => Job::Read { offset, len: request.length as usize },
            RequestType::Flush => Job::Flush,
            RequestType::Trim => Job::Discard { offset, len, durable },
            RequestType::Cache => Job::Prefetch { offset, len },
            RequestType::WriteZeroes => {
                let (punch, fast) = (!has(CommandFlags::NO_HOLE), has(CommandFlags::FAST_ZERO));
                Job::WriteZeroes { offset, len, durable, punch, fast }
            }
            RequestType::BlockStatus => return self.answer_block_status(&request),
            RequestType::Write | RequestType::Disconnect | RequestType::Other(_) => return Taken::Yes,
        };
        let cookie = self.request_table.insert(request);
        if self.queue.submit(cookie, job).is_err() {
            self.request_table.remove(cookie);
            return Taken::NeedsRoom;
        }
        Taken::Yes
    }
}
