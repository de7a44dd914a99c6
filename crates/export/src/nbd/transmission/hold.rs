//! A connection that comes to rest, so that another process may go on with it.

use super::Transmission;
use super::take::Payload;
use crate::nbd::Bytes;
use crate::nbd::protocol::REQUEST_LEN;

/// How far a connection is on its way to rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// It serves.
    No,
    /// It takes no more, and answers what it has taken.
    Coming,
    /// All that this process knows of it is laid down: nothing of it may change.
    LaidDown,
}

impl Transmission {
    /// Looks whether it is to rest, or to go on.
    pub(super) fn look_for_rest(&mut self) {
        match (self.stop.is_held(), self.rest) {
            (true, Rest::No) => self.rest = Rest::Coming,
            (false, Rest::LaidDown) => {
                self.rest = Rest::No;
                // Whatever came meanwhile may have been heard and passed over.
                self.readable = true;
                self.stop.take_up();
            }
            (false, Rest::Coming) => self.rest = Rest::No,
            _ => {}
        }
    }

    /// Whether nothing more is taken. The payload of a write that is refused is taken to its end:
    /// what is thrown away cannot be laid down.
    pub(super) fn rests(&self) -> bool {
        let refuses = matches!(&self.payload, Some(Payload { into: Err(_), .. }));
        self.rest != Rest::No && !(refuses && self.rest == Rest::Coming)
    }

    /// Lays down what there is once all that was taken is answered. True when it has been.
    pub(super) fn lies_down(&mut self) -> bool {
        let is_due = self.rest == Rest::Coming
            && self.rests()
            && !self.closing
            && self.tickets.is_empty()
            && self.queue.in_flight() == 0
            && !self.queue.has_backlog();
        if is_due {
            let (ahead, owed) = (self.not_taken(), self.not_sent());
            self.stop.lay_down(self.negotiated.clone(), ahead, owed);
            self.rest = Rest::LaidDown;
        }
        self.rest == Rest::LaidDown
    }

    /// What was received and not taken: a write whose payload is not all there, from its header on,
    /// and what came behind it.
    fn not_taken(&self) -> Bytes {
        let (inbox, ahead) = (self.inbox.rest(), self.wire.ahead());
        let begun = match &self.payload {
            Some(Payload { request, filled, into: Ok(data) }) => Some((request.encode(), &data[..*filled])),
            _ => None,
        };
        let begun_len = begun.as_ref().map_or(0, |(_, data)| REQUEST_LEN + data.len());
        // In one piece: what is moved leaves its bytes behind.
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
