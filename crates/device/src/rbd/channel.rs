//! A queue's channel to an image.

use std::sync::{Arc, PoisonError};

use rustix::io::Errno;

use super::Shared;
use super::library::{ImageRequest, errno};
use crate::losses::unflushed;
use crate::{
    Channel, Finished, Immediate, Io, IoKind, ReplyReceiver, ReplySender, Result, Ring, RingToken, Started,
};

/// The error of a request beyond the end of an image that was shrunk.
const BEYOND: Errno = Errno::OVERFLOW;

/// A request in librbd. The request owns its memory, also after its channel was closed.
struct Request {
    slot: u32,
    io: Io,
    /// The time at which the lock was this client's.
    sent: u64,
    to: Arc<ReplySender<ImageCompletion>>,
}

/// A finished request. It does not own its sender, so that an untaken one is dropped with the
/// mailbox.
struct ImageCompletion {
    slot: u32,
    io: Io,
    sent: u64,
    result: i64,
}

impl ImageRequest for Request {
    fn io(&mut self) -> &mut Io {
        &mut self.io
    }

    fn over(self: Box<Self>, result: i64) {
        let Self { slot, io, sent, to } = *self;
        to.send(ImageCompletion { slot, io, sent, result });
    }
}

pub(super) struct RbdChannel {
    shared: Arc<Shared>,
    awaited: ReplyReceiver<ImageCompletion>,
}

impl RbdChannel {
    /// Makes a channel for `depth` requests at a time.
    pub(super) fn new(shared: Arc<Shared>, depth: u32) -> std::io::Result<Self> {
        Ok(Self { shared, awaited: ReplyReceiver::new(depth)? })
    }

    /// Gives a request to librbd, unless this client was shut out.
    fn hand_over(&self, mut request: Box<Request>) -> std::result::Result<(), (Box<Request>, Errno)> {
        if self.shared.was_shut_out() {
            return Err((request, Errno::SHUTDOWN));
        }
        // librbd never completes a write that begins beyond the end, and silently cuts off one that
        // reaches beyond it.
        let (offset, len) = request.io.extent();
        if offset.checked_add(len).is_none_or(|end| end > self.shared.size()) {
            return Err((request, BEYOND));
        }
        match &*self.shared.image.read().unwrap_or_else(PoisonError::into_inner) {
            Some(image) => {
                match self.shared.ownership.as_ref().map(|ownership| ownership.prove(image)) {
                    Some(Ok(now)) => request.sent = now,
                    Some(Err(errno)) => return Err((request, errno)),
                    None => {}
                }
                image.start(request)
            }
            None => Err((request, Errno::BADF)),
        }
    }
}

/// The result of a request.
fn outcome(shared: &Shared, io: &Io, result: i64) -> Result<()> {
    let (kind, (offset, _)) = (io.kind(), io.extent());
    if result < 0 {
        return Err(failed(shared, kind, offset, errno(result)));
    }
    match io {
        // Beyond the end librbd reads fewer bytes, without an error.
        Io::Read { range, .. } if u64::try_from(result).unwrap_or(0) < range.len() as u64 => {
            Err(kind.failed(offset, "the image ends before", Errno::IO))
        }
        _ => Ok(()),
    }
}

fn failed(shared: &Shared, kind: IoKind, offset: u64, errno: Errno) -> crate::Error {
    if errno == Errno::SHUTDOWN {
        shared.is_shut_out();
        return kind.failed(offset, "the cluster has shut this client out", errno);
    }
    if errno == BEYOND {
        return kind.failed(offset, "the image ends before", Errno::IO);
    }
    if kind == IoKind::Flush {
        shared.losses.fail(errno);
        return unflushed(errno);
    }
    if errno == Errno::ROFS && !shared.geometry.read_only {
        return kind.failed(offset, "the image, or its exclusive lock, is gone", errno);
    }
    kind.failed(offset, "Ceph", errno)
}

impl Channel for RbdChannel {
    /// Blocks always: a cluster never answers at once.
    fn read_now(&mut self, _offset: u64, _data: &mut [u8]) -> Immediate {
        Immediate::Blocked(0)
    }

    fn write_now(&mut self, _offset: u64, _data: &[u8]) -> Immediate {
        Immediate::Blocked(0)
    }

    fn start(&mut self, ring: &mut Ring, slot: u32, io: Io) -> Started {
        let io = match io.without_tags(slot) {
            Ok(io) => io,
            Err(refused) => return Started::Finished(refused),
        };
        if let Io::Prefetch { .. } = io {
            // The machines of the cluster have the caches.
            return Started::Finished(Finished::bare(slot, Ok(())));
        }
        let request = Box::new(Request { slot, io, sent: 0, to: self.awaited.replies() });
        if let Err((request, errno)) = self.hand_over(request) {
            let (kind, (offset, _)) = (request.io.kind(), request.io.extent());
            return Started::Finished(Finished::of(
                slot,
                request.io,
                Err(failed(&self.shared, kind, offset, errno)),
            ));
        }
        self.awaited.expect(ring);
        Started::Pending
    }

    /// Never has a request: none of the ring's operations belongs to one.
    fn finish(&mut self, _ring: &mut Ring, _token: RingToken, _result: i32) -> Option<Finished> {
        None
    }

    fn woken(&mut self, ring: &mut Ring, token: RingToken, _result: i32, over: &mut Vec<Finished>) {
        for ImageCompletion { slot, io, sent, result } in self.awaited.woken(ring, token) {
            let outcome = outcome(&self.shared, &io, result);
            if let (Some(ownership), Ok(())) = (&self.shared.ownership, &outcome) {
                ownership.was_carried_out(sent);
            }
            over.push(Finished::of(slot, io, outcome));
        }
    }
}
