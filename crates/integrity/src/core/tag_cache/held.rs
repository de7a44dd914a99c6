//! Pages that a request holds from its beginning to its end, while its bytes are in flight: they
//! contain its tags.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use super::{PAGE, Page, TagCache, lock, parts};

/// The number of pages considered to make room for one: the thread has other work.
const LOOKS: usize = 64;

/// Pages that stay in memory until this is dropped, and the tags in them.
pub(crate) struct TagGuard {
    /// The tags' offset from the base.
    at: u64,
    len: usize,
    first: u64,
    pages: Vec<Arc<Page>>,
    count: Arc<AtomicUsize>,
}

impl TagCache {
    /// Returns the pages of the tags at byte `at` of the metadata device: all of them, or `None`
    /// where there is no room now. Requests hold at most half of the room, so that others find
    /// some.
    pub(crate) fn hold(&self, at: u64, len: usize) -> Option<TagGuard> {
        let at = at.saturating_sub(self.base);
        let numbers = at / PAGE as u64..(at + len as u64).div_ceil(PAGE as u64);
        let count = usize::try_from(numbers.end - numbers.start).ok()?;
        if count > self.most / 2 {
            return None;
        }
        let mut held = TagGuard {
            at,
            len,
            first: numbers.start,
            pages: Vec::with_capacity(count),
            count: self.held.clone(),
        };
        let mut pages = self.pages();
        if self.held.load(SeqCst) + count > self.most / 2 {
            return None;
        }
        for number in numbers {
            let page = match pages.known.get(&number).cloned() {
                Some(page) => page,
                None if pages.known.len() < self.most || pages.forget_one(LOOKS) => pages.add(number),
                None => return None,
            };
            page.used.store(true, SeqCst);
            // The pages are counted one by one, so that a drop subtracts as many as were added.
            self.held.fetch_add(1, SeqCst);
            held.pages.push(page);
        }
        Some(held)
    }

    /// The range of pages that must be read before the tags can be [read](Self::get), or
    /// [written](Self::put) with `replaced`: from the first to the last, in bytes.
    pub(crate) fn unread(&self, held: &TagGuard, replaced: bool) -> Option<Range<u64>> {
        let whole = |number: u64| held.at <= number * PAGE as u64 && (number + 1) * PAGE as u64 <= held.end();
        let is_unread = |(number, page): &(u64, &Arc<Page>)| !(page.is_read() || replaced && whole(*number));
        let mut unread = (held.first..).zip(&held.pages).filter(is_unread).map(|(number, _)| number);
        let first = unread.next()?;
        let last = unread.last().unwrap_or(first);
        Some(self.base + first * PAGE as u64..self.base + (last + 1) * PAGE as u64)
    }

    /// Takes pages that were read from byte `at` of the device on. Pages in memory may be newer,
    /// and stay.
    pub(crate) fn came(&self, held: &TagGuard, at: u64, bytes: &[u8]) {
        let first = at.saturating_sub(self.base) / PAGE as u64;
        for (number, bytes) in (first..).zip(bytes.chunks_exact(PAGE)) {
            if let Some(page) = held.page(number) {
                lock(&page.bytes).get_or_insert_with(|| bytes.into());
            }
        }
    }

    /// Reads the tags. False: a page is missing.
    #[must_use]
    pub(crate) fn get(&self, held: &TagGuard, tags: &mut [u8]) -> bool {
        let mut done = 0;
        parts(held.at, held.len.min(tags.len())).all(|(number, from, len)| {
            let Some(page) = held.page(number) else { return false };
            let bytes = lock(&page.bytes);
            let Some(bytes) = bytes.as_deref() else { return false };
            tags[done..done + len].copy_from_slice(&bytes[from..from + len]);
            done += len;
            true
        })
    }

    /// Changes the tags in memory. False: a partly changed page is missing, and the tags from there
    /// on are unchanged.
    #[must_use]
    pub(crate) fn put(&self, held: &TagGuard, tags: &[u8]) -> bool {
        let mut done = 0;
        parts(held.at, held.len.min(tags.len())).all(|(number, from, len)| {
            let Some(page) = held.page(number) else { return false };
            {
                let mut bytes = lock(&page.bytes);
                if bytes.is_none() && len == PAGE {
                    *bytes = Some(vec![0; PAGE].into());
                }
                let Some(bytes) = bytes.as_deref_mut() else { return false };
                bytes[from..from + len].copy_from_slice(&tags[done..done + len]);
            }
            self.pages().marked.insert(number, page.clone());
            done += len;
            true
        })
    }
}

impl TagGuard {
    fn end(&self) -> u64 {
        self.at + self.len as u64
    }

    fn page(&self, number: u64) -> Option<&Arc<Page>> {
        self.pages.get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }
}

impl Drop for TagGuard {
    fn drop(&mut self) {
        self.count.fetch_sub(self.pages.len(), SeqCst);
    }
}
