//! What a completion has to be answered with.

use crate::nbd::protocol::Request;

/// Requests in flight, by the number that the queue knows them under.
pub(super) struct Tickets {
    requests: Vec<Option<Request>>,
    free: Vec<u32>,
}

impl Tickets {
    pub(super) fn new(depth: u32) -> Self {
        Self { requests: vec![None; depth as usize], free: (0..depth).rev().collect() }
    }

    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.requests.len()
    }

    /// # Panics
    /// When full.
    pub(super) fn issue(&mut self, request: Request) -> u64 {
        let number = self.free.pop().expect("the caller has checked that a ticket is free");
        self.requests[number as usize] = Some(request);
        u64::from(number)
    }

    /// The request that a ticket was issued for.
    pub(super) fn redeem(&mut self, ticket: u64) -> Option<Request> {
        let number = u32::try_from(ticket).ok()?;
        let request = self.requests.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(request)
    }
}
