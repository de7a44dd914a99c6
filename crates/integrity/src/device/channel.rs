//! A queue's way to the volume: what can be done at once, and what goes to a worker and comes back.

use std::sync::Arc;

use underseal_device::{Awaited, Channel, Finished, Io, Kind, Now, Ring, Started, Token};

use super::jobs::Job;
use super::lower::AtOnce;
use super::{Shared, untagged};
use crate::core::{Step, Stop};

fn no_bell(e: std::io::Error) -> underseal_device::Error {
    underseal_device::Error::new(underseal_device::ErrorKind::Open, "no descriptor is left").with_source(e)
}

fn as_now(step: Step) -> Now {
    match step {
        Ok(()) => Now::Done,
        Err(Stop::Blocked(n)) => Now::Blocked(n),
        Err(Stop::Failed(e)) => Now::Failed(e),
    }
}

/// A queue's channel.
pub(super) struct IntegrityChannel {
    at_once: AtOnce,
    shared: Arc<Shared>,
    awaited: Awaited<Finished>,
}

impl IntegrityChannel {
    /// For `depth` requests at a time.
    pub(super) fn new(shared: Arc<Shared>, depth: u32) -> underseal_device::Result<Self> {
        let awaited = Awaited::new(depth).map_err(no_bell)?;
        Ok(Self { at_once: AtOnce::new(&*shared.data, shared.meta.as_deref())?, shared, awaited })
    }

    fn after_write(&self, step: Step) -> Now {
        self.shared.rouse_keeper();
        as_now(step)
    }
}

impl Channel for IntegrityChannel {
    fn read_now(&mut self, offset: u64, data: &mut [u8]) -> Now {
        as_now(self.shared.core.read(&mut self.at_once, offset, data, &mut []))
    }

    fn write_now(&mut self, offset: u64, data: &[u8]) -> Now {
        if self.shared.geometry.tag_size > 0 {
            return Now::Failed(untagged(Kind::Write, offset));
        }
        let step = self.shared.core.write(&mut self.at_once, offset, data, &[]);
        self.after_write(step)
    }

    fn read_tagged_now(&mut self, offset: u64, data: &mut [u8], tags: &mut [u8]) -> Now {
        if self.shared.geometry.tag_size == 0 {
            return Now::Failed(not_kept(Kind::Read, offset));
        }
        as_now(self.shared.core.read(&mut self.at_once, offset, data, tags))
    }

    fn write_tagged_now(&mut self, offset: u64, data: &[u8], tags: &[u8]) -> Now {
        if self.shared.geometry.tag_size == 0 {
            return Now::Failed(not_kept(Kind::Write, offset));
        }
        let step = self.shared.core.write(&mut self.at_once, offset, data, tags);
        // All of it or nothing: what was put into the journal is put there again.
        match self.after_write(step) {
            Now::Blocked(_) => Now::Blocked(0),
            now => now,
        }
    }

    fn start(&mut self, ring: &mut Ring, slot: u32, io: Io) -> Started {
        match self.shared.refused(io, slot) {
            Err(refused) => Started::Finished(refused),
            Ok(io) => {
                if let Some(Job { slot, io, .. }) =
                    self.shared.jobs.push(Job { slot, io, to: self.awaited.replies() })
                {
                    let (kind, (offset, _)) = (io.kind(), io.extent());
                    let closed = kind.failed(offset, "the volume is closed", rustix::io::Errno::SHUTDOWN);
                    return Started::Finished(Finished::of(slot, io, Err(closed)));
                }
                self.awaited.expect(ring);
                Started::Pending
            }
        }
    }

    /// Nothing in the ring is a request's.
    fn finish(&mut self, _ring: &mut Ring, _token: Token, _result: i32) -> Option<Finished> {
        None
    }

    fn woken(&mut self, ring: &mut Ring, token: Token, _result: i32, over: &mut Vec<Finished>) {
        over.extend(self.awaited.woken(ring, token));
    }
}

fn not_kept(kind: Kind, offset: u64) -> underseal_device::Error {
    kind.failed(offset, "the volume makes its tags itself", rustix::io::Errno::OPNOTSUPP)
}
