//! Pages that a request refers to from its beginning to its end, while its bytes are under way: its
//! tags are in them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use super::{PAGE, Page, TagCache, lock, parts};

/// So many pages are looked at to make room for one: the thread has other things to do.
const LOOKS: usize = 64;

/// Pages that stay in memory until this is dropped, and the tags in them.
pub(crate) struct TagGuard {
    /// Where the tags lie, behind the base.
    at: u64,
    len: usize,
    first: u64,
    pages: Vec<Arc<Page>>,
    count: Arc<AtomicUsize>,
}

impl TagCache {
    /// The pages of the tags that lie at byte `at` of the metadata's device, behind the base: all
    /// of them, or none where there is no room for them now. Requests have half of the room at
    /// most, so that others find some.
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
            // One by one: what is given up gives back as many as it has.
            self.held.fetch_add(1, SeqCst);
            held.pages.push(page);
        }
        Some(held)
    }

    /// Where the pages lie that have to be read before the tags can be [got](Self::get), or
    /// [put](Self::put) with `replaced`: from the first of them to the last, in bytes.
    pub(crate) fn unread(&self, held: &TagGuard, replaced: bool) -> Option<Range<u64>> {
        let whole = |number: u64| held.at <= number * PAGE as u64 && (number + 1) * PAGE as u64 <= held.end();
        let is_unread = |(number, page): &(u64, &Arc<Page>)| !(page.is_read() || replaced && whole(*number));
        let mut unread = (held.first..).zip(&held.pages).filter(is_unread).map(|(number, _)| number);
        let first = unread.next()?;
        let last = unread.last().unwrap_or(first);
        Some(self.base + first * PAGE as u64..self.base + (last + 1) * PAGE as u64)
    }

    /// Pages were read from byte `at` of the device on. What is in memory already may be newer, and
    /// stays.
    pub(crate) fn came(&self, held: &TagGuard, at: u64, bytes: &[u8]) {
        let first = at.saturating_sub(self.base) / PAGE as u64;
        for (number, bytes) in (first..).zip(bytes.chunks_exact(PAGE)) {
            if let Some(page) = held.page(number) {
                lock(&page.bytes).get_or_insert_with(|| bytes.into());
            }
        }
    }

    /// Copies the tags out. False: a page was not read.
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

    /// Changes the tags, in memory. False: a page of which only a part is changed was not read, and
    /// the tags from there on are as they were.
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
