//! Memory that outlives this process: which chains were taken and not given back.
//!
//! The front end keeps it. When the server is killed and started again, the front end hands it
//! over, and the requests that were under way are done again, in their order. The layout is the
//! vhost-user specification's, "Inflight I/O tracking", for split rings:
//!
//! ```text
//!   a ring:   features u64 | version u16 | size u16 | last head u16 | used index u16 | an entry for each descriptor
//!   entry:    in flight u8 | padding | next u16 | counter u64
//! ```
//!
//! A chain goes back in four steps: its entry is linked to the one before, it becomes the last
//! head, the used index is published in guest memory, and the entry is cleared. Wherever a kill
//! comes between them, comparing the two used indices tells which entries of the last batch are
//! done.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use rustix::fs::{MemfdFlags, SealFlags};
use vhost::vhost_user::message::VhostUserInflight;
use vm_memory::{Bytes, MmapRegion, VolatileMemory};

use super::carried::CarriedInflight;
use super::ring::LARGEST;
use super::shared::{self, Watch};
use super::{broken, no_memory};

const HEADER: usize = 16;
const ENTRY: usize = 16;
/// What a ring's part begins at a multiple of.
const ALIGN: usize = 64;

/// Where things are in a ring's part.
const VERSION: usize = 8;
const SIZE: usize = 10;
const LAST: usize = 12;
const USED: usize = 14;

/// Where things are in an entry.
const IN_FLIGHT: usize = 0;
const LINK: usize = 6;
const COUNTER: usize = 8;

/// The whole memory.
pub(super) struct Inflight {
    mapped: Arc<(Watch, MmapRegion)>,
    size: u16,
    queues: u16,
}

/// One ring's part of it.
pub(super) struct Tracker {
    mapped: Arc<(Watch, MmapRegion)>,
    start: usize,
    size: u16,
    counter: u64,
    /// Heads that are done since the used index was last published.
    batch: Vec<u16>,
}

fn part(size: u16) -> usize {
    (HEADER + ENTRY * usize::from(size)).next_multiple_of(ALIGN)
}

impl Inflight {
    /// Makes memory for so many rings of such a size.
    ///
    /// # Errors
    /// For sizes that no ring has, and when there is no memory.
    pub(super) fn make(queues: u16, size: u16) -> vhost::vhost_user::Result<(VhostUserInflight, File)> {
        if queues == 0 || size == 0 || size > LARGEST {
            return Err(broken(format!("tracking of {queues} rings of {size} descriptors")));
        }
        let len = part(size) * usize::from(queues);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("underseal-inflight", flags).map_err(no_memory)?;
        rustix::fs::ftruncate(&file, len as u64).map_err(no_memory)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)
            .map_err(no_memory)?;
        Ok((VhostUserInflight::new(len as u64, 0, queues, size), File::from(file)))
    }

    /// Takes memory over.
    ///
    /// # Errors
    /// When it is too short or cannot be mapped.
    pub(super) fn open(of: &VhostUserInflight, file: File) -> vhost::vhost_user::Result<Self> {
        let VhostUserInflight { num_queues, queue_size, mmap_size, mmap_offset } = *of;
        let needed = part(queue_size) as u64 * u64::from(num_queues);
        if queue_size == 0 || queue_size > LARGEST || num_queues == 0 || mmap_size < needed {
            let context =
                format!("{mmap_size} bytes to track {num_queues} rings of {queue_size} descriptors");
            return Err(broken(context));
        }
        let len = part(queue_size) * usize::from(num_queues);
        let mapped = shared::map(file, mmap_offset, len, "memory to track requests with")?;
        Ok(Self { mapped: Arc::new(mapped), size: queue_size, queues: num_queues })
    }

    /// As it is given to another process; none where it has no file.
    pub(super) fn carried(&self) -> Option<(CarriedInflight, &File)> {
        let of = self.mapped.1.file_offset()?;
        let len = part(self.size) as u64 * u64::from(self.queues);
        let carried = CarriedInflight { len, offset: of.start(), queues: self.queues, size: self.size };
        Some((carried, of.file()))
    }

    /// The part of a ring, if it has one of this size.
    pub(super) fn tracker(&self, queue: usize, size: u16) -> Option<Tracker> {
        let there = queue < usize::from(self.queues) && size <= self.size;
        there.then(|| Tracker {
            mapped: self.mapped.clone(),
            start: queue * part(self.size),
            size,
            counter: 0,
            batch: Vec::with_capacity(usize::from(size)),
        })
    }
}

impl CarriedInflight {
    /// As the front end has described it.
    pub(super) fn as_said(&self) -> VhostUserInflight {
        VhostUserInflight::new(self.len, self.offset, self.queues, self.size)
    }
}

impl Tracker {
    /// What was under way when the memory was last used, in the order in which it was taken. `used`
    /// is the index of the ring's used part.
    pub(super) fn recover(&mut self, used: u16) -> Vec<u16> {
        if self.load::<u16>(VERSION) == 0 {
            self.store(SIZE, self.size);
            self.store(USED, used);
            self.store(VERSION, 1_u16);
            return Vec::new();
        }
        // What went out with the last index is done, though it was not said so any more.
        let done = used.wrapping_sub(self.load(USED)).min(self.size);
        let mut head = self.load::<u16>(LAST);
        for _ in 0..done {
            if head >= self.size {
                break;
            }
            self.store(self.entry(head) + IN_FLIGHT, 0_u8);
            head = self.load(self.entry(head) + LINK);
        }
        self.store(USED, used);
        let left = (0..self.size).filter(|&head| self.is_in_flight(head));
        let mut left: Vec<(u64, u16)> =
            left.map(|head| (self.load(self.entry(head) + COUNTER), head)).collect();
        left.sort_unstable();
        self.counter = left.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        left.into_iter().map(|(_, head)| head).collect()
    }

    pub(super) fn is_in_flight(&self, head: u16) -> bool {
        self.load::<u8>(self.entry(head) + IN_FLIGHT) != 0
    }

    /// A chain was taken.
    pub(super) fn take(&mut self, head: u16) {
        let entry = self.entry(head);
        self.store(entry + COUNTER, self.counter);
        self.counter = self.counter.wrapping_add(1);
        self.store(entry + IN_FLIGHT, 1_u8);
    }

    /// A chain is done; the used index that says so is not published yet.
    pub(super) fn put(&mut self, head: u16) {
        let last: u16 = self.load(LAST);
        self.store(self.entry(head) + LINK, last);
        self.store(LAST, head);
        self.batch.push(head);
    }

    /// The used index is published.
    pub(super) fn published(&mut self, used: u16) {
        fence(Ordering::SeqCst);
        while let Some(head) = self.batch.pop() {
            self.store(self.entry(head) + IN_FLIGHT, 0_u8);
        }
        self.store(USED, used);
    }

    /// The memory went while it was in use.
    pub(super) fn is_lost(&self) -> bool {
        self.mapped.0.is_lost()
    }

    fn entry(&self, head: u16) -> usize {
        HEADER + ENTRY * usize::from(head)
    }

    fn load<T: vm_memory::AtomicAccess>(&self, at: usize) -> T {
        let part = self.mapped.1.as_volatile_slice();
        part.load(self.start + at, Ordering::Acquire).expect("the part was mapped as a whole, and is aligned")
    }

    fn store<T: vm_memory::AtomicAccess>(&self, at: usize, value: T) {
        let part = self.mapped.1.as_volatile_slice();
        part.store(value, self.start + at, Ordering::Release)
            .expect("the part was mapped as a whole, and is aligned");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory for two rings of eight descriptors, and what a second process makes of it.
    fn make() -> impl Fn() -> Tracker {
        let (of, file) = Inflight::make(2, 8).unwrap();
        move || Inflight::open(&of, file.try_clone().unwrap()).unwrap().tracker(1, 8).unwrap()
    }

    #[test]
    fn what_was_taken_and_not_given_back_is_found_in_its_order() {
        let open = make();
        let mut first = open();
        assert!(first.recover(100).is_empty());
        for head in [5, 0, 7, 3] {
            first.take(head);
        }
        first.put(0);
        first.published(101);
        let mut second = open();
        assert_eq!(second.recover(101), [5, 7, 3]);
        second.take(1);
        assert_eq!(open().recover(101), [5, 7, 3, 1], "counters go on");
    }

    #[test]
    fn a_kill_at_any_point_of_giving_back_loses_and_repeats_nothing_that_was_published() {
        // Before the used index was published, both are done again; after it, none of them.
        for (published, left) in [(u16::MAX, vec![2, 4, 6]), (1, vec![6])] {
            let open = make();
            let mut first = open();
            assert!(first.recover(u16::MAX).is_empty());
            [2, 4, 6].into_iter().for_each(|head| first.take(head));
            first.put(4);
            first.put(2);
            assert_eq!(open().recover(published), left, "the index is {published}");
            assert_eq!(open().recover(published), left, "and the same once more");
        }
    }

    #[test]
    fn nonsense_in_it_does_no_harm() {
        let open = make();
        let tracker = open();
        for at in (0..part(8)).step_by(2) {
            tracker.store(at, 0xffff_u16);
        }
        assert!(open().recover(3).len() <= 8);
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        for (queues, size) in [(0, 8), (1, 0), (1, LARGEST + 1)] {
            assert!(Inflight::make(queues, size).is_err());
        }
        let (of, file) = Inflight::make(1, 8).unwrap();
        let more = VhostUserInflight { num_queues: 3, ..of };
        assert!(Inflight::open(&more, file.try_clone().unwrap()).is_err(), "longer than it says");
        let longer = VhostUserInflight { mmap_size: 1 << 20, ..more };
        assert!(Inflight::open(&longer, file).is_err(), "longer than its file");
    }
}
