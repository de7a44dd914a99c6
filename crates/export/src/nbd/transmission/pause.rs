//! The pause of a connection, for a handover.

use super::Transmission;
use super::take::Payload;
use crate::nbd::Bytes;
use crate::nbd::protocol::REQUEST_LEN;

/// The state of a connection's pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// The connection serves.
    No,
    /// The connection takes no more requests, and answers those it has taken.
    Coming,
    /// The connection's state is stored for the new server, and must not change.
    Paused,
}

impl Transmission {
    /// Pauses or resumes the connection as the server asks.
    pub(super) fn look_for_rest(&mut self) {
        match (self.stop.is_held(), self.rest) {
            (true, Rest::No) => self.rest = Rest::Coming,
            (false, Rest::Paused) => {
                self.rest = Rest::No;
                // Bytes may have arrived during the pause, and their event was ignored.
                self.readable = true;
                self.stop.remove_paused();
            }
            (false, Rest::Coming) => self.rest = Rest::No,
            _ => {}
        }
    }

    /// Returns true while no requests are taken. The payload of a refused write is received to its
    /// end first: its dropped bytes could not be stored.
    pub(super) fn rests(&self) -> bool {
        let refuses = matches!(&self.payload, Some(Payload { into: Err(_), .. }));
        self.rest != Rest::No && !(refuses && self.rest == Rest::Coming)
    }

    /// Stores the connection's state once all requests are answered. Returns true when it is
    /// stored.
    pub(super) fn lies_down(&mut self) -> bool {
        let is_due = self.rest == Rest::Coming
            && self.rests()
            && !self.closing
            && self.request_table.is_empty()
            && self.queue.in_flight() == 0
            && !self.queue.has_backlog();
        if is_due {
            let (ahead, owed) = (self.not_taken(), self.not_sent());
            self.stop.add_paused(self.negotiated.clone(), ahead, owed);
            self.rest = Rest::Paused;
        }
        self.rest == Rest::Paused
    }

    /// Returns the received bytes that were not taken: a write whose payload is incomplete, from
    /// its header on, and the bytes behind it.
    fn not_taken(&self) -> Bytes {
        let (inbox, ahead) = (self.inbox.rest(), self.wire.ahead());
        let begun = match &self.payload {
            Some(Payload { request, filled, into: Ok(data) }) => Some((request.encode(), &data[..*filled])),
            _ => None,
        };
        let begun_len = begun.as_ref().map_or(0, |(_, data)| REQUEST_LEN + data.len());
        // The vector has its full capacity from the start: growing it would leave copies of the
        // bytes behind.
        let mut bytes = Bytes::new(Vec::with_capacity(begun_len + inbox.len() + ahead.len()));
        if let Some((header, data)) = begun {
            bytes.extend_from_slice(&header);
            bytes.extend_from_slice(data);
        }
        bytes.extend_from_slice(inbox);
        bytes.extend_from_slice(ahead);
        bytes
    }

    fn not_sent(&self) -> Bytes {
        let len = self.wire.owed().len() + self.outbox.bytes();
        let mut bytes = Bytes::new(Vec::with_capacity(len));
        bytes.extend_from_slice(self.wire.owed());
        self.outbox.rest().for_each(|part| bytes.extend_from_slice(part));
        bytes
    }
}
