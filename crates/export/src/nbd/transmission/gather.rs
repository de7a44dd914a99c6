//! The decision to receive once more before replies are sent.
//!
//! A client that keeps several requests in flight sends further ones while the server works. When
//! the first look after a send has found some, replies wait for one more receive, so that one send
//! carries the replies to all of them. A receive that finds nothing delays the replies by its own
//! time alone.

/// The turns without a further try after a receive that found nothing.
const BREAK: u32 = 16;

/// A connection's experience.
#[derive(Debug, Default)]
pub(super) struct Gather {
    /// True when requests had arrived by the first look after a send.
    pays: bool,
    /// True when this turn's wait has looked already.
    has_looked: bool,
    /// Turns until the next try.
    turns: u32,
}

impl Gather {
    pub(super) fn begin_turn(&mut self) {
        self.has_looked = false;
        self.turns = self.turns.saturating_sub(1);
    }

    /// Notes what a look after a send has found.
    pub(super) fn looked(&mut self, found: bool) {
        if !self.has_looked {
            self.pays = found;
            self.has_looked = true;
        }
    }

    /// Notes that a receive before a send has found nothing.
    pub(super) fn missed(&mut self) {
        self.pays = false;
        self.turns = BREAK;
    }

    pub(super) fn pays(&self) -> bool {
        self.pays && self.turns == 0
    }
}
