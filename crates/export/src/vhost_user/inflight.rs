//! In-flight tracking: memory that outlives this process, and lists the chains that were taken and
//! not returned.
//!
//! The front end keeps the memory. When the server is killed and started again, the front end sends
//! the memory, and the requests that were in flight are repeated in their order. The layout is the
//! vhost-user specification's, "Inflight I/O tracking", for split rings:
//!
//! ```text
//!   a ring:   features u64 | version u16 | size u16 | last head u16 | used index u16 | entries
//!   entry:    in flight u8 | padding | next u16 | counter u64
//! ```
//! No feature has a meaning yet. In those of the first ring a server that holds acknowledged writes
//! in its own memory has a number of its process, until it ends: another server that finds one
//! knows that the first one was killed.
//!
//! A chain is returned in four steps: its entry is linked to the previous one, its head becomes the
//! last head, the used index is published in guest memory, and the entry is cleared. After a kill
//! between any two steps, the difference of the two used indices shows which entries of the last
//! batch are done.

use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, OnceLock};

use rustix::fs::{MemfdFlags, SealFlags};
use vhost::vhost_user::message::VhostUserInflight;
use vm_memory::{Bytes, MmapRegion, VolatileMemory};

use super::carried::CarriedInflight;
use super::ring::LARGEST;
use super::shared::{self, Watch};
use super::{broken, no_memory};

const HEADER: usize = 16;
const ENTRY: usize = 16;
/// The alignment of a ring's part.
const ALIGN: usize = 64;

/// Offsets in a ring's part.
const FEATURES: usize = 0;
const VERSION: usize = 8;
const SIZE: usize = 10;
const LAST: usize = 12;
const USED: usize = 14;

/// Offsets in an entry.
const IN_FLIGHT: usize = 0;
const LINK: usize = 6;
const COUNTER: usize = 8;

/// The memory for all rings.
pub(super) struct Inflight {
    mapped: Arc<(Watch, MmapRegion)>,
    size: u16,
    queues: u16,
}

/// A ring's part of the memory.
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
    /// Makes memory for `queues` rings of `size` descriptors. Fails for invalid sizes, and when no
    /// memory is left.
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

    /// Maps memory that the front end sends. Fails when it is too short or cannot be mapped.
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

    /// Returns the memory for the new server of a handover; `None` where it has no file.
    pub(super) fn carried(&self) -> Option<(CarriedInflight, &File)> {
        let of = self.mapped.1.file_offset()?;
        let len = part(self.size) as u64 * u64::from(self.queues);
        let carried = CarriedInflight { len, offset: of.start(), queues: self.queues, size: self.size };
        Some((carried, of.file()))
    }

    /// Notes the process that holds acknowledged writes; none when all are stored. Returns true,
    /// and changes nothing, when another process held some and did not end: all later ones see
    /// that.
    pub(super) fn set_holder(&self, holder: Option<u64>) -> bool {
        // Every memory has the part of a ring.
        let Some(first) = self.tracker(0, self.size) else { return false };
        let before: u64 = first.load(FEATURES);
        let was_killed = holder.is_some() && before != 0 && Some(before) != holder;
        if !was_killed {
            first.store(FEATURES, holder.unwrap_or(0));
        }
        was_killed
    }

    /// Returns the part of a ring, if the memory has one of at least this size.
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
    /// Returns the memory in the front end's form.
    pub(super) fn as_said(&self) -> VhostUserInflight {
        VhostUserInflight::new(self.len, self.offset, self.queues, self.size)
    }
}

impl Tracker {
    /// Returns the heads that were in flight when the memory was last used, in the order in which
    /// they were taken. `used` is the index of the ring's used part.
    pub(super) fn recover(&mut self, used: u16) -> Vec<u16> {
        if self.load::<u16>(VERSION) == 0 {
            self.store(SIZE, self.size);
            self.store(USED, used);
            self.store(VERSION, 1_u16);
            return Vec::new();
        }
        // Chains published with the last index are done, though their entries were not cleared.
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

    /// Notes that a chain was taken.
    pub(super) fn take(&mut self, head: u16) {
        let entry = self.entry(head);
        self.store(entry + COUNTER, self.counter);
        self.counter = self.counter.wrapping_add(1);
        self.store(entry + IN_FLIGHT, 1_u8);
    }

    /// Notes that a chain is done; the used index is not published yet.
    pub(super) fn put(&mut self, head: u16) {
        let last: u16 = self.load(LAST);
        self.store(self.entry(head) + LINK, last);
        self.store(LAST, head);
        self.batch.push(head);
    }

    /// Notes that the used index is published.
    pub(super) fn published(&mut self, used: u16) {
        fence(Ordering::SeqCst);
        while let Some(head) = self.batch.pop() {
            self.store(self.entry(head) + IN_FLIGHT, 0_u8);
        }
        self.store(USED, used);
    }

    /// Returns true when the memory was removed while it was in use.
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

/// A random number of this process.
pub(super) fn process_number() -> u64 {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    // 0 stands for no process.
    *NUMBER.get_or_init(|| RandomState::new().build_hasher().finish() | 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory for two rings of eight descriptors, as a second process maps it.
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
        // Before the used index is published, both are repeated; after it, none of them.
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
    fn a_server_that_was_killed_is_known_by_the_next_one() {
        let (of, file) = Inflight::make(2, 8).unwrap();
        let open = || Inflight::open(&of, file.try_clone().unwrap()).unwrap();
        assert!(!open().set_holder(Some(3)), "it is new");
        assert!(!open().set_holder(Some(3)), "it is this process");
        assert!(open().set_holder(Some(5)));
        assert!(open().set_holder(Some(5)), "and by the one after");
        open().set_holder(None);
        assert!(!open().set_holder(Some(7)), "it has ended");
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
