//! Replies that wait to be sent to the client.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::time::Instant;

use underseal_datapath::{Buffer, Queue};

use super::wire::Wire;

/// The longest head of a reply: an error with a short message.
const HEAD: usize = 96;

/// The slices of one send: a head and a body for each of 32 replies.
const SLICES: usize = 64;

/// The most replies that may wait: no requests are taken from a client that sends without reading.
const MOST: usize = 1024;

struct Reply {
    head: [u8; HEAD],
    head_len: usize,
    body: Option<Buffer>,
    body_len: usize,
    ready: Instant,
}

/// Replies in order, each with a head and an optional body, which is sent from where it was
/// decrypted.
pub(super) struct Outbox {
    replies: VecDeque<Reply>,
    /// The number of bytes of the first reply that are sent already.
    sent: usize,
    bytes: usize,
}

impl Outbox {
    pub(super) fn new(depth: usize) -> Self {
        Self { replies: VecDeque::with_capacity(depth), sent: 0, bytes: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    /// Returns true when the client has left [`MOST`] replies unread: it gets no more until it
    /// reads.
    pub(super) fn is_full(&self) -> bool {
        self.replies.len() >= MOST
    }

    /// Returns how many bytes wait.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the bytes that the client has not received yet, in order.
    pub(super) fn rest(&self) -> impl Iterator<Item = &[u8]> {
        let parts = self.replies.iter().flat_map(|reply| {
            let body = reply.body.as_deref().map_or(&[][..], |body| &body[..reply.body_len]);
            [&reply.head[..reply.head_len], body]
        });
        let mut skip = self.sent;
        parts.map(move |part| {
            let gone = skip.min(part.len());
            skip -= gone;
            &part[gone..]
        })
    }

    /// Adds a reply that was ready at `ready`: `encode` writes its head and returns the head's
    /// length; the reply's body is the first `body_len` bytes of `body`.
    pub(super) fn push(
        &mut self,
        ready: Instant,
        encode: impl FnOnce(&mut [u8]) -> usize,
        body: Option<Buffer>,
        body_len: usize,
    ) {
        let mut head = [0; HEAD];
        let head_len = encode(&mut head);
        self.bytes += head_len + body_len;
        self.replies.push_back(Reply { head, head_len, body, body_len, ready });
    }

    /// Sends as much as the socket accepts, and returns the memory of sent bodies to the queue.
    /// Returns true when nothing is left.
    pub(super) fn send(&mut self, wire: &mut Wire, queue: &mut Queue) -> io::Result<bool> {
        while !self.replies.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let mut used = 0;
            let mut skip = self.sent;
            for reply in self.replies.iter().take(SLICES / 2) {
                let body = reply.body.as_deref().map_or(&[][..], |b| &b[..reply.body_len]);
                for part in [&reply.head[..reply.head_len], body] {
                    let gone = skip.min(part.len());
                    skip -= gone;
                    if gone < part.len() {
                        slices[used] = IoSlice::new(&part[gone..]);
                        used += 1;
                    }
                }
            }
            match wire.send(&slices[..used]) {
                Ok(n) => self.gone(n, queue),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        wire.flush()
    }

    fn gone(&mut self, n: usize, queue: &mut Queue) {
        let now = Instant::now();
        self.bytes -= n;
        self.sent += n;
        while let Some(reply) = self.replies.front()
            && self.sent >= reply.head_len + reply.body_len
        {
            self.sent -= reply.head_len + reply.body_len;
            if let Some(Reply { body, ready, .. }) = self.replies.pop_front() {
                queue.replied(ready, now);
                body.into_iter().for_each(|body| queue.free(body));
            }
        }
    }
}
