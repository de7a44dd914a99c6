//! The lower devices of a thread, and the result of a step of the core.

use underseal_device::Error;

/// The device of a request; both are one without a metadata device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The device of the data.
    Data,
    /// The device of superblock, journal and tags.
    Meta,
}

/// The reason for an unfinished step.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The step would have to wait, and this thread may not. This many bytes are done.
    Blocked(usize),
    /// The step failed.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(e: Error) -> Self {
        Self::Failed(e)
    }
}

/// The result of a step.
pub(crate) type StepResult<T = ()> = Result<T, Stop>;

/// Requests to the lower devices, one at a time. Offsets are bytes of the device.
pub(crate) trait LowerDisks {
    /// False: a call that would wait returns [`Stop::Blocked`] instead.
    fn may_wait(&self) -> bool;

    /// Reads into `data`.
    fn read(&mut self, of: Side, offset: u64, data: &mut [u8]) -> StepResult;

    /// Writes `data`; `durable`: it is on stable storage afterwards.
    fn write(&mut self, to: Side, offset: u64, data: &[u8], durable: bool) -> StepResult;

    /// Writes parts to their offsets, in any order.
    fn write_all(&mut self, to: Side, parts: &[(u64, &[u8])]) -> StepResult {
        parts.iter().try_for_each(|(offset, part)| self.write(to, *offset, part, false))
    }

    /// Makes earlier writes to the device durable.
    fn flush(&mut self, of: Side) -> StepResult;

    /// Makes earlier writes to both devices durable.
    fn flush_all(&mut self) -> StepResult;

    /// Discards bytes of the data device.
    fn discard(&mut self, offset: u64, len: u64) -> StepResult;

    /// Reads blocks of a data device, with their tuples.
    fn read_tagged(&mut self, offset: u64, data: &mut [u8], tuples: &mut [u8]) -> StepResult;

    /// Writes blocks of a data device, with their tuples.
    fn write_tagged(&mut self, offset: u64, data: &[u8], tuples: &[u8]) -> StepResult;
}

/// Returns `Blocked` for devices that may not wait.
pub(crate) fn may_wait(lower: &dyn LowerDisks) -> StepResult {
    if lower.may_wait() { Ok(()) } else { Err(Stop::Blocked(0)) }
}
