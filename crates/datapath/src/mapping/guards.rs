//! The refusals of a mapping: guarded ranges, a fixed size, no writes at all.

use std::ops::Range;

use underseal_volume::Guard;

use crate::{Error, ErrorKind, Mapping, Result};

impl Mapping {
    /// Refuses every request that would change a byte of the guarded range, in whole sectors,
    /// before anything of it is written. Under [`RefuseAll`](underseal_volume::GuardRule) one of
    /// them ends all writing: later requests that change anything are refused too, whichever queue
    /// they come to. The volume keeps its size.
    #[must_use]
    pub fn with_guard(mut self, guard: Guard) -> Self {
        self.guards.add(guard);
        self.fixed_size = true;
        self
    }

    /// Refuses another size: the volume's format fixes it.
    #[must_use]
    pub fn with_fixed_size(mut self) -> Self {
        self.fixed_size = true;
        self
    }

    /// Refuses every request that would change data, even on writable devices.
    #[must_use]
    pub fn without_writes(mut self) -> Self {
        self.shape.read_only = true;
        self.shape.discards = false;
        self.control.set_modifies(false);
        self
    }

    /// Refuses a request that would change `touched`, in bytes of the volume, with `ReadOnly`.
    #[inline]
    pub(crate) fn check_guards(&self, touched: Range<u64>) -> Result<()> {
        self.guards.check(touched, u64::from(self.shape.sector)).map_err(|refusal| {
            if refusal.ends_writing() {
                log::error!(
                    "{refusal} and was refused; so is every later write, until the volume is opened again"
                );
            }
            Error::new(ErrorKind::ReadOnly, refusal.to_string())
        })
    }
}
