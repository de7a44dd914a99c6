//! The states in which a file may be found after its writers were cut off.
//!
//! A file may be in any state since it was last durable: its size is one of those that it had, and
//! each page, by itself, is one of those that were there. A page that was never durable may be
//! missing, and so may a page that a truncate removed and a later write did not make durable: the
//! size in the header and the length of the lower file are written at different times.

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

    /// Adds the state that follows the next change.
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

    /// Adds the sizes of a growth to `end` in requests that end at pages: the kernel sometimes
    /// splits a write.
    pub(crate) fn grows_through(&mut self, end: usize) {
        let from = self.now.len() / PAGE + 1;
        self.sizes.extend((from..=end / PAGE).map(|number| number * PAGE));
    }

    /// Keeps only the present state: later checks find it, or a state added since.
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

/// A name in a folder, with the possible files behind it.
#[derive(Debug, Clone)]
pub(crate) enum Entry {
    /// The same file throughout.
    File { file: Expected, must_exist: bool },
    /// Any of several files, each durable before it got the name.
    Replaced { versions: Vec<Vec<u8>>, must_exist: bool },
    /// A removed or renamed file: its contents, if it is still there.
    Leaving(Expected),
}
