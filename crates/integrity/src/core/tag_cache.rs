//! Tags in memory: a bounded number of pages, each written once for the many blocks with a tag in
//! it.
//!
//! A page is read for the first use of its tags, and written by [`TagCache::write_back`], or when
//! room is needed and no clean page is left. A thread that changes a page marks it afterwards,
//! while it has a reference to it; a page with a reference or a mark is not dropped. So memory is
//! never older than the disk. Order between blocks is not kept here: the lock on a block, and after
//! a power cut the journal or the bitmap, keep its data and tag consistent.

mod held;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use super::lock;
use super::lower::{LowerDisks, Side, StepResult, may_wait};
pub(crate) use held::TagGuard;

/// Bytes of a page. Every run of tags is a multiple of it, so a page contains tags only.
pub(crate) const PAGE: usize = 4096;
/// The fewest pages, whatever the limit is.
const FEWEST: usize = 8;
/// The most bytes of a write, and of writes in flight together.
const RUN: usize = 256 << 10;
const TOGETHER: usize = 1 << 20;

/// The pages of a volume's tags.
pub(crate) struct TagCache {
    /// The offset of page 0 on the metadata device.
    base: u64,
    most: usize,
    pages: Mutex<Pages>,
    /// Held to write pages, with memory for the pages of a write.
    writer: Mutex<Vec<u8>>,
    /// The number of pages that requests hold.
    held: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Pages {
    known: HashMap<u64, Arc<Page>>,
    /// Pages to be written, in their order on the disk.
    marked: BTreeMap<u64, Arc<Page>>,
    /// Pages in the order in which they are considered for dropping.
    order: VecDeque<u64>,
}

#[derive(Default)]
struct Page {
    /// `None` before the page was read.
    bytes: Mutex<Option<Box<[u8]>>>,
    /// Used since it was last considered.
    used: AtomicBool,
}

impl Page {
    fn is_read(&self) -> bool {
        lock(&self.bytes).is_some()
    }
}

impl TagCache {
    /// An empty cache of pages from byte `base` on, limited to `bytes`.
    pub(crate) fn new(base: u64, bytes: usize) -> Self {
        let most = (bytes / PAGE).max(FEWEST);
        Self { base, most, pages: Mutex::default(), writer: Mutex::default(), held: Arc::default() }
    }

    /// Reads tags at byte `at` of the metadata device.
    pub(crate) fn read(&self, lower: &mut dyn LowerDisks, at: u64, tags: &mut [u8]) -> StepResult {
        let mut done = 0;
        for (number, from, len) in parts(at.saturating_sub(self.base), tags.len()) {
            self.with(lower, number, false, |page| {
                tags[done..done + len].copy_from_slice(&page[from..from + len]);
            })?;
            done += len;
        }
        Ok(())
    }

    /// Changes tags in memory.
    pub(crate) fn write(&self, lower: &mut dyn LowerDisks, at: u64, tags: &[u8]) -> StepResult {
        let mut done = 0;
        for (number, from, len) in parts(at.saturating_sub(self.base), tags.len()) {
            let page = self.with(lower, number, len == PAGE, |page| {
                page[from..from + len].copy_from_slice(&tags[done..done + len]);
            })?;
            self.pages().marked.insert(number, page);
            done += len;
        }
        Ok(())
    }

    /// Sets a range of tags to one byte value.
    pub(crate) fn fill(&self, lower: &mut dyn LowerDisks, at: u64, len: usize, value: u8) -> StepResult {
        let bytes = vec![value; PAGE.min(len)];
        let mut done = 0;
        while done < len {
            let n = bytes.len().min(len - done);
            self.write(lower, at + done as u64, &bytes[..n])?;
            done += n;
        }
        Ok(())
    }

    /// Writes all changed pages, in runs. They are durable only after a flush of the device.
    pub(crate) fn write_back(&self, lower: &mut dyn LowerDisks) -> StepResult {
        may_wait(lower)?;
        let mut memory = lock(&self.writer);
        // The references keep the pages until they are written.
        let mut marked = std::mem::take(&mut self.pages().marked);
        while !marked.is_empty() {
            memory.clear();
            let (mut runs, mut last): (Vec<(u64, Range<usize>)>, _) = (Vec::new(), None);
            for (&number, page) in marked.iter().take(TOGETHER / PAGE) {
                let start = memory.len();
                if let Some(bytes) = lock(&page.bytes).as_deref() {
                    memory.extend_from_slice(bytes);
                }
                match runs.last_mut().filter(|(_, run)| last == number.checked_sub(1) && run.len() < RUN) {
                    Some((_, run)) => run.end = memory.len(),
                    None => runs.push((self.base + number * PAGE as u64, start..memory.len())),
                }
                last = Some(number);
            }
            let parts: Vec<_> = runs.iter().map(|(at, run)| (*at, &memory[run.clone()])).collect();
            let written = lower.write_all(Side::Meta, &parts);
            if written.is_err() {
                let mut pages = self.pages();
                marked.into_iter().for_each(|(number, page)| drop(pages.marked.insert(number, page)));
                return written;
            }
            marked = last
                .and_then(|last| last.checked_add(1))
                .map_or_else(BTreeMap::new, |next| marked.split_off(&next));
        }
        Ok(())
    }

    /// Drops clean pages, so that they are read again.
    pub(crate) fn forget(&self) {
        let mut guard = self.pages();
        let Pages { known, order, .. } = &mut *guard;
        // As in `forget_one`, a second reference shows that a page is marked or in use.
        known.retain(|_, page| Arc::strong_count(page) > 1);
        order.retain(|number| known.contains_key(number));
    }

    /// True when more than half of the pages are marked.
    pub(crate) fn is_crowded(&self) -> bool {
        self.pages().marked.len() > self.most / 2
    }

    /// True when no page is marked.
    pub(crate) fn are_written(&self) -> bool {
        self.pages().marked.is_empty()
    }

    /// Calls `use_it` with a page, which is read first unless it is `replaced` as a whole.
    fn with(
        &self,
        lower: &mut dyn LowerDisks,
        number: u64,
        replaced: bool,
        use_it: impl FnOnce(&mut [u8]),
    ) -> StepResult<Arc<Page>> {
        let page = self.page(lower, number)?;
        // The page's mutex is not held during the read. A concurrent reader reads the same bytes: a
        // page is only changed here, and not dropped while it has references.
        let mut fresh = (!page.is_read()).then(|| vec![0; PAGE].into_boxed_slice());
        if let Some(fresh) = fresh.as_deref_mut().filter(|_| !replaced) {
            lower.read(Side::Meta, self.base + number * PAGE as u64, fresh)?;
        }
        let mut bytes = lock(&page.bytes);
        if bytes.is_none() {
            *bytes = fresh;
        }
        if let Some(bytes) = bytes.as_deref_mut() {
            use_it(bytes);
        }
        drop(bytes);
        Ok(page)
    }

    /// Returns the page, and makes room for it.
    fn page(&self, lower: &mut dyn LowerDisks, number: u64) -> StepResult<Arc<Page>> {
        loop {
            let mut pages = self.pages();
            if let Some(page) = pages.known.get(&number) {
                page.used.store(true, Relaxed);
                return Ok(page.clone());
            }
            if pages.known.len() < self.most || pages.forget_one(usize::MAX) {
                return Ok(pages.add(number));
            }
            let nothing_to_write = pages.marked.is_empty();
            drop(pages);
            may_wait(lower)?;
            if nothing_to_write {
                // All pages are in use by other threads at this moment.
                std::thread::yield_now();
            } else {
                self.write_back(lower)?;
            }
        }
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        lock(&self.pages)
    }
}

impl Pages {
    /// Adds a new page.
    fn add(&mut self, number: u64) -> Arc<Page> {
        let page = Arc::new(Page::default());
        self.known.insert(number, page.clone());
        self.order.push_back(number);
        page
    }

    /// Drops a page without references that was not used lately. False: none of the `most` pages
    /// that were considered.
    fn forget_one(&mut self, most: usize) -> bool {
        // The search goes round twice: the first time clears the marks of use.
        for _ in 0..(self.order.len() * 2).min(most) {
            let Some(number) = self.order.pop_front() else { break };
            let Some(page) = self.known.get(&number) else { continue };
            // A page that is marked or in use has a second reference. References are made under the
            // mutex that is held here.
            if Arc::strong_count(page) == 1 && !page.used.swap(false, Relaxed) {
                self.known.remove(&number);
                return true;
            }
            self.order.push_back(number);
        }
        false
    }
}

/// The pages of a range: number, first byte, length.
fn parts(at: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let now = at + done as u64;
        #[expect(clippy::cast_possible_truncation, reason = "less than a page")]
        let from = (now % PAGE as u64) as usize;
        let n = (PAGE - from).min(len - done);
        done += n;
        (n > 0).then_some((now / PAGE as u64, from, n))
    })
}
