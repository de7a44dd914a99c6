//! Who runs the crypto, and in which order writes go down.

mod text;

use underseal_volume::DispatchFlags;

use crate::{Error, ErrorKind, Result};

/// How a volume's requests are dispatched. A value: it can be read and changed while the volume is
/// busy, and each request goes the way that was set when it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Who decrypts.
    pub read: Dispatch,
    /// Who encrypts.
    pub write: Dispatch,
    /// In which order writes that others encrypted go to the lower device.
    pub write_order: WriteOrder,
    /// Workers run at the highest priority that the process may give them.
    pub high_priority: bool,
    /// Longer reads are split, in bytes; none: they stay whole. At least a sector is moved at a
    /// time.
    pub max_read_size: Option<u32>,
    /// Longer writes are split, in bytes; none: they stay whole.
    pub max_write_size: Option<u32>,
}

/// Who runs the crypto of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dispatch {
    /// The thread that brought it.
    Inline,
    /// A pool of threads.
    Workers {
        /// Which of them.
        affinity: Affinity,
    },
    /// The thread that brought it, as long as it keeps up; what is more goes to idle workers.
    Adaptive,
}

/// Which worker a request goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Affinity {
    /// The first that is free, on any processor: the kernel's unbound queue.
    Any,
    /// The one that is bound to the processor the request came on: dm-crypt's `same_cpu_crypt`.
    SameCpu,
}

/// In which order encrypted writes go to the lower device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteOrder {
    /// Whoever has encrypted one submits it: dm-crypt's `submit_from_crypt_cpus`.
    AsReady,
    /// All that are ready, by sector, through one submitter: dm-crypt's writer thread.
    Sorted,
    /// As they came, never reordered.
    Arrival,
}

/// Where dm-crypt splits requests.
const KERNEL_SPLIT: u32 = 128 << 10;

impl Policy {
    /// Every request on the thread that brought it.
    pub const INLINE: Self = Self::both(Dispatch::Inline, WriteOrder::AsReady);
    /// Inline while the queue keeps up, shared with idle workers when it does not.
    pub const ADAPTIVE: Self = Self::both(Dispatch::Adaptive, WriteOrder::AsReady);
    /// Workers on any processor, writes as they are ready.
    pub const WORKERS: Self =
        Self::both(Dispatch::Workers { affinity: Affinity::Any }, WriteOrder::AsReady).split();
    /// Workers on the processor that a request came on, writes as they are ready.
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

    /// What the kernel does under these flags: without any, workers on any processor and one
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

    /// Refuses what reorders the writes of a zone.
    ///
    /// # Errors
    /// `Policy` when writes that several threads encrypt would go down in another order than they
    /// came.
    pub(crate) fn fits_zones(&self) -> Result<()> {
        if self.write == Dispatch::Inline || self.write_order == WriteOrder::Arrival {
            return Ok(());
        }
        let context = format!("{self}: a zoned device takes writes only in the order of its sectors");
        Err(Error::new(ErrorKind::Policy, context))
    }
}
