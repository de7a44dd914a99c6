//! From chains to requests in flight.

use underseal_datapath::Request as Job;

use super::{PendingRequest, Trouble, Worker};
use crate::vhost_user::chain::Malformed;
use crate::vhost_user::guest::{scatter, share};
use crate::vhost_user::request::{Operation, Request, Status, parse};

/// A request that was taken while the queue has no room.
pub(super) struct Stalled {
    cookie: PendingRequest,
    pub(super) operation: Operation,
}

/// The result of looking for a chain.
pub(super) enum Next {
    Nothing,
    Answered,
    Request(Stalled),
}

impl Worker {
    /// Takes the next chain, and parses its request.
    pub(super) fn next(&mut self) -> Result<Next, Trouble> {
        let ram = self.memory.ram();
        let head = match self.again.pop() {
            Some(head) => head,
            None if self.stopping || self.rests() => return Ok(Next::Nothing),
            None => match self.ring.take(ram)? {
                Some(head) => {
                    if let Some(tracker) = &mut self.tracker {
                        if tracker.is_in_flight(head) {
                            return Err(Malformed::InUse(head).into());
                        }
                        tracker.take(head);
                    }
                    head
                }
                None => return Ok(Next::Nothing),
            },
        };
        let mut data = self.spare.pop().unwrap_or_default();
        self.ring.follow(ram, head, &mut data)?;
        let Request { operation, status, writable } = parse(ram, &mut data, self.mapping.discards())?;
        // A request that was read of memory which is gone is not the front end's.
        if self.is_lost() {
            return Err(Malformed::Lost.into());
        }
        let cookie = PendingRequest { head, status, writable, data };
        match operation {
            Ok(Operation::GetId) => {
                let how = match scatter(ram, &cookie.data, &self.serial) {
                    Ok(()) => Status::Ok,
                    Err(how) => how,
                };
                self.give_back(cookie, how)?;
            }
            Ok(operation) => return Ok(Next::Request(Stalled { cookie, operation })),
            Err(how) => self.give_back(cookie, how)?,
        }
        Ok(Next::Answered)
    }

    /// Puts a request into the queue, or returns it when the queue has no room.
    pub(super) fn start(&mut self, stalled: Stalled) -> Result<Result<(), Stalled>, Trouble> {
        let Stalled { cookie, operation } = stalled;
        let durable = self.durable;
        let job = match operation {
            Operation::Read { offset, len } | Operation::Write { offset, len } => {
                let mut bytes = self.queue.shared_bytes(self.held.clone());
                if let Err(how) = share(&self.held, &cookie.data, len, &mut bytes) {
                    self.give_back(cookie, how)?;
                    return Ok(Ok(()));
                }
                if let Operation::Read { .. } = operation {
                    Job::ReadShared { offset, into: bytes }
                } else {
                    let Some(data) = self.queue.alloc(len as usize) else {
                        return Ok(Err(Stalled { cookie, operation }));
                    };
                    Job::WriteShared { offset, from: bytes, data, durable }
                }
            }
            Operation::Discard { offset, len } => Job::Discard { offset, len, durable },
            Operation::WriteZeroes { offset, len, punch } => {
                Job::WriteZeroes { offset, len, durable, punch, fast: false }
            }
            Operation::Flush | Operation::GetId => Job::Flush,
        };
        let tag = self.request_table.insert(cookie);
        if let Err(back) = self.queue.submit(tag, job) {
            if let Some(data) = back.into_buffer() {
                self.queue.free(data);
            }
            let cookie = self.request_table.remove(tag).expect("it was issued just now");
            return Ok(Err(Stalled { cookie, operation }));
        }
        Ok(Ok(()))
    }
}
