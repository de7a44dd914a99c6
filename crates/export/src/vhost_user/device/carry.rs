//! The pause of a device, and its resume in this process or another one.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Instant;

use vhost::vhost_user::Result;

use super::{Device, Virtqueue};
use crate::vhost_user::broken;
use crate::vhost_user::carried::{CarriedDevice, CarriedQueue, Descriptors};
use crate::vhost_user::guest::Memory;
use crate::vhost_user::inflight::Inflight;
use crate::vhost_user::running::Running;

impl Device {
    /// Pauses all rings. Returns false when a ring has unanswered requests at `until`; it is asked
    /// to pause all the same.
    pub(in crate::vhost_user) fn rest(&mut self, until: Instant) -> bool {
        let asked = self.queues.iter().map(|queue| queue.running.as_ref().map(Running::ask_to_rest));
        let asked: Vec<_> = asked.collect();
        for (queue, heard) in self.queues.iter_mut().zip(asked) {
            let Some(heard) = heard else { continue };
            match heard.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(rested) => (queue.base, queue.broken) = (rested.next, rested.broken),
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => queue.broken = true,
            }
        }
        true
    }

    /// Resumes all rings.
    pub(in crate::vhost_user) fn go_on(&self) {
        self.queues.iter().filter_map(|queue| queue.running.as_ref()).for_each(Running::go_on);
    }

    /// Returns the paused device for the new server of a handover, and appends its descriptors to
    /// `fds`. Fails when no descriptor is left.
    pub(in crate::vhost_user) fn carried(&self, fds: &mut Vec<OwnedFd>) -> io::Result<CarriedDevice> {
        let mut add = |file: &File| file.try_clone().map(|file| fds.push(file.into()));
        let mut inflight = None;
        if let Some(of) = &self.inflight {
            let (carried, file) = of.carried().ok_or_else(no_file)?;
            add(file)?;
            inflight = Some(carried);
        }
        let mut memory = Vec::new();
        for region in self.memory.carried() {
            let (carried, file) = region.ok_or_else(no_file)?;
            add(file)?;
            memory.push(carried);
        }
        let mut queues = Vec::new();
        for queue in &self.queues {
            let Virtqueue { size, at, lies, base, enabled, broken, .. } = *queue;
            for file in [&queue.kick, &queue.call, &queue.error].into_iter().flatten() {
                add(file)?;
            }
            let (kick, call, error) = (queue.kick.is_some(), queue.call.is_some(), queue.error.is_some());
            let runs = queue.running.is_some() && !broken;
            queues.push(CarriedQueue { size, at, lies, base, enabled, runs, broken, kick, call, error });
        }
        Ok(CarriedDevice { said: self.said, features: self.features, inflight, memory, queues })
    }

    /// Restores the device of an old server. Its rings are paused until [`go_on`](Self::go_on).
    /// Fails when it cannot be served here as it was there.
    pub(in crate::vhost_user) fn restore(
        &mut self,
        carried: &CarriedDevice,
        fds: &mut Descriptors,
    ) -> Result<()> {
        if carried.queues.len() != self.queues.len() {
            return Err(broken("it has another number of rings"));
        }
        (self.said, self.features) = (carried.said, carried.features);
        let inflight = fds.take_if(carried.inflight.is_some())?;
        let opened = carried.inflight.zip(inflight).map(|(of, file)| Inflight::open(&of.as_said(), file));
        self.inflight = opened.transpose()?;
        let mut regions = Vec::new();
        for region in &carried.memory {
            regions.extend(fds.take_if(true)?.map(|file| (region.as_said(), file)));
        }
        self.memory = Memory::of(regions)?.into();
        for (queue, carried) in self.queues.iter_mut().zip(&carried.queues) {
            let CarriedQueue { size, at, lies, base, enabled, broken, .. } = *carried;
            let mut file = |there| fds.take_if(there);
            let (kick, call, error) = (file(carried.kick)?, file(carried.call)?, file(carried.error)?);
            let new = Virtqueue::default();
            *queue = Virtqueue { size, at, lies, base, kick, call, error, enabled, broken, ..new };
        }
        let runs = carried.queues.iter().enumerate().filter(|(_, queue)| queue.runs);
        for (index, _) in runs {
            self.start_at(index, true)?;
            if self.queues[index].running.is_none() {
                return Err(broken(format!("ring {index} does not start here")));
            }
        }
        Ok(())
    }
}

fn no_file() -> io::Error {
    io::Error::other("memory that is shared has no file")
}
