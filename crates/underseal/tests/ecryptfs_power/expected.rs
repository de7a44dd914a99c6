//! What a file may be, when it was cut off from those who write to it.
//!
//! Everything that it was since it was last made durable: its size is one of those that it had, and
//! each page, by itself, is one of those that were there. A page that was never durable may be
//! missing, as may one that a cut took away and that did not come back for good: the size in the
//! header and the length of the lower file are written at times of their own.

use std::collections::BTreeSet;
use std::sync::Arc;

pub(crate) const PAGE: usize = 4096;

/// A whole page, zeros behind the file's end.
type Page = Arc<[u8]>;

/// A file.
#[derive(Debug, Clone)]
pub(crate) struct Expected {
    now: Vec<u8>,
    sizes: BTreeSet<usize>,
    pages: Vec<Vec<Page>>,
    /// The shortest that it was.
    floor: usize,
    /// Whether it was ever durable.
    durable: bool,
}

impl Expected {
    /// A file that is being made, empty.
    pub(crate) fn new() -> Self {
        Self { now: Vec::new(), sizes: BTreeSet::from([0]), pages: Vec::new(), floor: 0, durable: false }
    }

    pub(crate) fn now(&self) -> &[u8] {
        &self.now
    }

    /// This is about to be done to it.
    pub(crate) fn becomes(&mut self, next: Vec<u8>) {
        self.sizes.insert(next.len());
        self.floor = self.floor.min(next.len());
        for (number, page) in pages(&next).enumerate() {
            match self.pages.get_mut(number) {
                None => self.pages.push(vec![page]),
                Some(seen) if seen.last() != Some(&page) => seen.push(page),
                Some(_) => {}
            }
        }
        self.now = next;
    }

    /// It is about to grow to `end` in requests that end at pages: the kernel makes several of a
    /// write now and then.
    pub(crate) fn grows_through(&mut self, end: usize) {
        let from = self.now.len() / PAGE + 1;
        self.sizes.extend((from..=end / PAGE).map(|number| number * PAGE));
    }

    /// It will be found as it is now, or as it becomes.
    pub(crate) fn is_durable(&mut self) {
        self.durable = true;
        self.floor = self.now.len();
        self.sizes = BTreeSet::from([self.floor]);
        self.pages = pages(&self.now).map(|page| vec![page]).collect();
    }

    /// Whether this size is one that it may have.
    pub(crate) fn may_have_size(&self, size: usize) -> bool {
        self.sizes.contains(&size)
    }

    pub(crate) fn sizes(&self) -> &BTreeSet<usize> {
        &self.sizes
    }

    /// Whether these bytes may be a page, or its part inside the file.
    pub(crate) fn may_have_page(&self, number: usize, bytes: &[u8]) -> bool {
        self.pages.get(number).is_some_and(|seen| seen.iter().any(|page| page[..bytes.len()] == *bytes))
    }

    /// Whether a page may not be there at all.
    pub(crate) fn may_lack_page(&self, number: usize) -> bool {
        number * PAGE >= self.floor
    }

    pub(crate) fn was_durable(&self) -> bool {
        self.durable
    }
}

fn pages(content: &[u8]) -> impl Iterator<Item = Page> {
    content.chunks(PAGE).map(|chunk| {
        let mut page = chunk.to_vec();
        page.resize(PAGE, 0);
        page.into()
    })
}

/// A name in a folder, and what is behind it.
#[derive(Debug, Clone)]
pub(crate) enum Entry {
    /// One file, all along.
    File { file: Expected, must_exist: bool },
    /// One of several files, each of which was durable before it was put there.
    Replaced { versions: Vec<Vec<u8>>, must_exist: bool },
    /// It was removed, or moved away: what it was, if it is still there.
    Leaving(Expected),
}
