//! A thread's way to what lies below, and how a step of the core ends.

use underseal_device::Error;

/// Which of the devices: they are one where there is no metadata device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// Where the data lies.
    Data,
    /// Where superblock, journal and tags lie.
    Meta,
}

/// Why a step did not come to its end.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It would have to wait, and this thread may not. So many bytes are done.
    Blocked(usize),
    /// It failed.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(e: Error) -> Self {
        Self::Failed(e)
    }
}

/// What a step gives.
pub(crate) type StepResult<T = ()> = Result<T, Stop>;

/// Requests to the devices below, one at a time. Offsets are bytes of the device.
pub(crate) trait LowerDisks {
    /// False: whatever would wait answers [`Stop::Blocked`] instead.
    fn may_wait(&self) -> bool;

    /// Fills `data`.
    fn read(&mut self, of: Side, offset: u64, data: &mut [u8]) -> StepResult;

    /// Writes `data`; `durable`: it is on stable storage afterwards.
    fn write(&mut self, to: Side, offset: u64, data: &[u8], durable: bool) -> StepResult;

    /// Writes parts to where they belong, in any order.
    fn write_all(&mut self, to: Side, parts: &[(u64, &[u8])]) -> StepResult {
        parts.iter().try_for_each(|(offset, part)| self.write(to, *offset, part, false))
    }

    /// What was written to the device is on stable storage.
    fn flush(&mut self, of: Side) -> StepResult;

    /// The same of both devices.
    fn flush_all(&mut self) -> StepResult;

    /// The bytes of the data device need not be kept.
    fn discard(&mut self, offset: u64, len: u64) -> StepResult;

    /// Reads blocks of a data device that keeps `tuple` bytes with each of them.
    fn read_tagged(&mut self, offset: u64, data: &mut [u8], tuples: &mut [u8]) -> StepResult;

    /// Writes such blocks.
    fn write_tagged(&mut self, offset: u64, data: &[u8], tuples: &[u8]) -> StepResult;
}

/// What something that may not wait is told, when it would have to.
pub(crate) fn may_wait(lower: &dyn LowerDisks) -> StepResult {
    if lower.may_wait() { Ok(()) } else { Err(Stop::Blocked(0)) }
}
