//! The dispatch of requests: which thread runs the crypto, and in which order writes are submitted.

mod text;

use underseal_volume::DispatchFlags;

use crate::{Error, ErrorKind, Result};

/// The dispatch of a volume's requests. The policy can be read and changed at any time; each
/// request keeps the policy under which it arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// The threads that decrypt.
    pub read: Dispatch,
    /// The threads that encrypt.
    pub write: Dispatch,
    /// The order in which writes that workers encrypted go to the lower device.
    pub write_order: WriteOrder,
    /// Workers run at the highest priority that the process may give them.
    pub high_priority: bool,
    /// Longer reads are split, in bytes; none: reads stay whole. A part has at least one sector.
    pub max_read_size: Option<u32>,
    /// Longer writes are split, in bytes; none: writes stay whole.
    pub max_write_size: Option<u32>,
}

/// The threads that run the crypto of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dispatch {
    /// The thread that received the request.
    Inline,
    /// A pool of workers.
    Workers {
        /// The choice of the worker.
        affinity: Affinity,
    },
    /// The receiving thread while it keeps up; idle workers take the surplus.
    Adaptive,
}

/// The worker that a request goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Affinity {
    /// The first free worker, on any processor: the kernel's unbound queue.
    Any,
    /// The worker that is bound to the receiving thread's processor: dm-crypt's `same_cpu_crypt`.
    SameCpu,
}

/// The order in which encrypted writes go to the lower device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteOrder {
    /// The thread that encrypted a write submits it: dm-crypt's `submit_from_crypt_cpus`.
    AsReady,
    /// All ready writes by sector, through one submitter: dm-crypt's writer thread.
    Sorted,
    /// In order of arrival, never reordered.
    Arrival,
}

/// The length at which dm-crypt splits requests.
const KERNEL_SPLIT: u32 = 128 << 10;

impl Policy {
    /// Every request on the thread that received it.
    pub const INLINE: Self = Self::both(Dispatch::Inline, WriteOrder::AsReady);
    /// Inline while the queue keeps up, shared with idle workers when it does not.
    pub const ADAPTIVE: Self = Self::both(Dispatch::Adaptive, WriteOrder::AsReady);
    /// Workers on any processor; writes go as they are ready.
    pub const WORKERS: Self =
        Self::both(Dispatch::Workers { affinity: Affinity::Any }, WriteOrder::AsReady).split();
    /// Workers on the receiving thread's processor; writes go as they are ready.
    pub const SAME_CPU: Self =
        Self::both(Dispatch::Workers { affinity: Affinity::SameCpu }, WriteOrder::AsReady).split();

    const fn both(dispatch: Dispatch, write_order: WriteOrder) -> Self {
        Self {
            read: dispatch,
            write: dispatch,
            write_order,
            high_priority: false,
            max_read_size: None,
            max_write_size: None,
        }
    }

    const fn split(mut self) -> Self {
        (self.max_read_size, self.max_write_size) = (Some(KERNEL_SPLIT), Some(KERNEL_SPLIT));
        self
    }

    /// The kernel's dispatch under these flags: without flags, workers on any processor and one
    /// submitter that sorts.
    pub fn from_flags(flags: DispatchFlags) -> Self {
        let affinity = if flags.same_cpu_crypt { Affinity::SameCpu } else { Affinity::Any };
        let side = |inline| if inline { Dispatch::Inline } else { Dispatch::Workers { affinity } };
        Self {
            read: side(flags.no_read_workqueue || flags.force_inline),
            write: side(flags.no_write_workqueue || flags.force_inline),
            write_order: if flags.submit_from_crypt_cpus { WriteOrder::AsReady } else { WriteOrder::Sorted },
            high_priority: flags.high_priority,
            ..Self::WORKERS
        }
    }

    /// Refuses, with `Policy`, a policy that reorders writes in a zone: one under which several
    /// threads encrypt and writes are not submitted in order of arrival.
    pub(crate) fn fits_zones(&self) -> Result<()> {
        if self.write == Dispatch::Inline || self.write_order == WriteOrder::Arrival {
            return Ok(());
        }
        let context = format!("{self}: a zoned device takes writes only in the order of its sectors");
        Err(Error::new(ErrorKind::Policy, context))
    }
}
