//! Replies to completed and refused requests.

use std::time::{Duration, Instant};

use underseal_datapath::{Buffer, Completion, Error as Failure, ErrorKind as Kind};

use super::take::Taken;
use super::{MAX_PAYLOAD, Transmission};
use crate::nbd::protocol::{
    BLOCK_DESCRIPTOR_LEN, CommandFlags, Errno, ExtentState, RequestHeader, RequestType, block_descriptor,
    block_status_header, error_chunk, none_chunk, offset_data_header, simple_reply,
};

/// The most extents in one answer.
const EXTENTS: usize = 500;

/// How long extents are looked for. Meanwhile the client's other requests wait.
const LIMIT: Duration = Duration::from_millis(100);

impl Transmission {
    /// Returns the error for a request that is refused because of its command and flags.
    pub(super) fn refuse(&self, request: &RequestHeader) -> Option<Errno> {
        let allowed = match request.command {
            RequestType::Read if self.negotiated.structured_replies => CommandFlags::DF,
            RequestType::WriteZeroes => CommandFlags::NO_HOLE | CommandFlags::FAST_ZERO,
            RequestType::BlockStatus if self.negotiated.base_allocation.is_some() => CommandFlags::REQ_ONE,
            RequestType::Read | RequestType::Write | RequestType::Flush | RequestType::Cache => {
                CommandFlags::empty()
            }
            RequestType::Trim if self.mapping.discards() || self.mapping.read_only() => CommandFlags::empty(),
            RequestType::Trim
            | RequestType::BlockStatus
            | RequestType::Disconnect
            | RequestType::Other(_) => {
                return Some(Errno::Inval);
            }
        };
        (!(allowed | CommandFlags::FUA).contains(request.flags)).then_some(Errno::Inval)
    }

    /// Returns the error for a write that is refused before its payload is received: it then needs
    /// no memory.
    pub(super) fn refuse_write(&self, request: &RequestHeader) -> Option<Errno> {
        let aligned = |n: u64| n.is_multiple_of(u64::from(self.mapping.block()));
        if self.mapping.read_only() {
            return Some(Errno::Perm);
        }
        if request.end().is_none_or(|end| end > self.mapping.size()) {
            return Some(Errno::NoSpc);
        }
        let fits = (1..=MAX_PAYLOAD).contains(&request.length);
        (!fits || !aligned(request.offset) || !aligned(request.length.into())).then_some(Errno::Inval)
    }

    /// Answers a completed request.
    pub(super) fn answer_request(&mut self, request: &RequestHeader, completion: Completion) {
        match (completion.result, completion.buffer) {
            (Ok(()), Some(body)) if request.command == RequestType::Read => self.answer_data(request, body),
            (Ok(()), buffer) => {
                self.answer_done(request);
                self.give_back(buffer);
            }
            (Err(failure), buffer) if failure.kind() == Kind::Abandoned => self.give_back(buffer),
            (Err(failure), buffer) => {
                let RequestHeader { command, offset, length, .. } = request;
                let what = format_args!("{}: {command:?} of {length} bytes at {offset}", self.peer);
                self.failure_log.tell(what, &failure);
                self.answer_error(request, errno(request, &failure), &failure.to_string());
                self.give_back(buffer);
            }
        }
    }

    fn give_back(&mut self, buffer: Option<Buffer>) {
        if let Some(buffer) = buffer {
            self.queue.free(buffer);
        }
    }

    fn answer_data(&mut self, request: &RequestHeader, body: Buffer) {
        let RequestHeader { cookie, offset, length, .. } = *request;
        if self.negotiated.structured_replies {
            let head = |out: &mut [u8]| offset_data_header(out, cookie, true, offset, length);
            self.outbox.push(self.queue.clock(), head, Some(body), length as usize);
        } else {
            self.outbox.push(
                self.queue.clock(),
                |out| simple_reply(out, cookie, None),
                Some(body),
                length as usize,
            );
        }
    }

    fn answer_done(&mut self, request: &RequestHeader) {
        let cookie = request.cookie;
        if self.negotiated.structured_replies {
            self.outbox.push(self.queue.clock(), |out| none_chunk(out, cookie), None, 0);
        } else {
            self.outbox.push(self.queue.clock(), |out| simple_reply(out, cookie, None), None, 0);
        }
    }

    pub(super) fn answer_error(&mut self, request: &RequestHeader, errno: Errno, why: &str) {
        let cookie = request.cookie;
        if self.negotiated.structured_replies {
            self.outbox.push(self.queue.clock(), |out| error_chunk(out, cookie, true, errno, why), None, 0);
        } else {
            self.outbox.push(self.queue.clock(), |out| simple_reply(out, cookie, Some(errno)), None, 0);
        }
    }

    /// Reports which parts of a range are stored, without the queue.
    pub(super) fn answer_block_status(&mut self, request: &RequestHeader) -> Taken {
        let Some(context) = self.negotiated.base_allocation else {
            self.answer_error(request, Errno::Inval, "base:allocation was not negotiated");
            return Taken::Yes;
        };
        let aligned = |n: u64| n.is_multiple_of(u64::from(self.mapping.block()));
        let whole = aligned(request.offset) && aligned(request.length.into()) && request.length > 0;
        if !whole || request.end().is_none_or(|end| end > self.mapping.size()) {
            self.answer_error(request, Errno::Inval, "not whole blocks within the export");
            return Taken::Yes;
        }
        let Some(mut body) = self.queue.alloc(EXTENTS * BLOCK_DESCRIPTOR_LEN) else {
            return Taken::NeedsRoom;
        };
        let most = if request.flags.contains(CommandFlags::REQ_ONE) { 1 } else { EXTENTS };
        let mut extents: u32 = 0;
        for (len, state) in self.extents(request).take(most) {
            block_descriptor(&mut body[extents as usize * BLOCK_DESCRIPTOR_LEN..], len, state);
            extents += 1;
        }
        let cookie = request.cookie;
        let head = |out: &mut [u8]| block_status_header(out, cookie, true, context, extents);
        self.outbox.push(self.queue.clock(), head, Some(body), extents as usize * BLOCK_DESCRIPTOR_LEN);
        Taken::Yes
    }

    /// Returns the extents of a range; adjacent extents of one kind are merged. Where the lower
    /// device takes long to tell them, the first ones.
    fn extents(&self, request: &RequestHeader) -> impl Iterator<Item = (u32, ExtentState)> + '_ {
        let (mut at, end) = (request.offset, request.offset + u64::from(request.length));
        let state = move |at: u64| {
            let status = self.mapping.status(at, end - at)?;
            let mut state = ExtentState::empty();
            state.set(ExtentState::HOLE, status.hole);
            state.set(ExtentState::ZERO, status.zero);
            Some((status.len.min(end - at), state))
        };
        let (start, begun, mut ahead) = (request.offset, Instant::now(), None);
        std::iter::from_fn(move || {
            if at >= end || at > start && begun.elapsed() > LIMIT {
                return None;
            }
            let (mut len, kind) = ahead.take().or_else(|| state(at))?;
            while at + len < end && begun.elapsed() <= LIMIT {
                match state(at + len) {
                    Some((more, next)) if next == kind => len += more,
                    other => {
                        ahead = other;
                        break;
                    }
                }
            }
            at += len;
            // The range's length has 32 bits, so this length has, too.
            Some((u32::try_from(len).unwrap_or(u32::MAX), kind))
        })
    }
}

/// Converts the error number. The protocol has fewer numbers than the kernel, and ENOSPC for writes
/// beyond the end.
fn errno(request: &RequestHeader, failure: &Failure) -> Errno {
    let writes = matches!(request.command, RequestType::WriteZeroes | RequestType::Write);
    match crate::errno::errno(failure) {
        _ if writes && failure.kind() == Kind::OutOfRange => Errno::NoSpc,
        rustix::io::Errno::INVAL => Errno::Inval,
        rustix::io::Errno::ROFS => Errno::Perm,
        rustix::io::Errno::OPNOTSUPP => Errno::NotSup,
        rustix::io::Errno::NOSPC => Errno::NoSpc,
        _ => Errno::Io,
    }
}
