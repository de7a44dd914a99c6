//! Requests whose bytes move in a ring without a waiting thread: all resources of a request are
//! taken at its beginning, all or none, and kept to its end. So the request waits for the disk
//! only, and for no other request.
//!
//! [`Core::read`] and [`Core::write`] do other requests, in a thread that may wait: those with
//! locked blocks, without room for their tags, with blocks in several runs, or with a write to the
//! journal.

use std::ops::Range;

use underseal_device::{Error, IoKind};

use super::Core;
use super::claims::BlockGuard;
use super::journal::JournaledBlock;
use super::lower::StepResult;
use super::tag_cache::TagGuard;
use crate::WriteMode;

/// Blocks that are being read or written in place, in one run.
pub(crate) struct BlockTransfer {
    /// The run's offset on the data device.
    pub(crate) place: u64,
    blocks: Range<u64>,
    writes: bool,
    verifies: bool,
    /// The pages of the blocks' tags; `None` where tags are not needed.
    held: Option<TagGuard>,
    /// The blocks' data in the journal.
    found: Vec<JournaledBlock>,
    /// Tags that are made here.
    own: Vec<u8>,
    /// The lock on the blocks, held to the end.
    _claim: BlockGuard,
}

impl BlockTransfer {
    /// True when some of the blocks are in the journal.
    pub(crate) fn is_in_journal(&self) -> bool {
        !self.found.is_empty()
    }
}

impl Core {
    /// Begins to read blocks; `tags`: with their tags. `None`: only a thread that may wait can read
    /// them.
    pub(crate) fn begin_read(&self, offset: u64, len: usize, tags: bool) -> Option<BlockTransfer> {
        let (blocks, claim) = self.claim_run(offset, len, false)?;
        let verifies = self.verifies(&blocks);
        let held = if tags || verifies { Some(self.hold(&blocks)?) } else { None };
        let found = self.journal.as_ref().map(|journal| journal.find(blocks.clone())).unwrap_or_default();
        let place = self.place(&blocks);
        Some(BlockTransfer {
            place,
            blocks,
            writes: false,
            verifies,
            held,
            found,
            own: Vec::new(),
            _claim: claim,
        })
    }

    /// Begins to write blocks in place. `None`: only a thread that may wait can write them. Fails
    /// for a volume without writes.
    pub(crate) fn begin_write(&self, offset: u64, data: &[u8]) -> StepResult<Option<BlockTransfer>> {
        self.check_writable(IoKind::Write, offset)?;
        if self.journal.is_some() || self.is_unrecorded(&self.blocks(offset, data.len())) {
            return Ok(None);
        }
        Ok(self.begin_to_write(offset, data))
    }

    fn begin_to_write(&self, offset: u64, data: &[u8]) -> Option<BlockTransfer> {
        let (blocks, claim) = self.claim_run(offset, data.len(), true)?;
        let held = self.hold(&blocks)?;
        if let Some(regions) = &self.regions
            && !regions.begin_now(&self.sectors(&blocks))
        {
            return None;
        }
        let mut own = Vec::new();
        if let Some(hash) = &self.hash {
            own.resize(self.count(&blocks) * self.geometry.tag_size(), 0);
            hash.make(offset / 512, data, &mut own);
        }
        let place = self.place(&blocks);
        let (held, found) = (Some(held), Vec::new());
        Some(BlockTransfer { place, blocks, writes: true, verifies: false, held, found, own, _claim: claim })
    }

    /// Ends a transfer of which no part was started.
    pub(crate) fn give_up(&self, flight: &BlockTransfer) {
        if let (true, Some(regions)) = (flight.writes, &self.regions) {
            regions.end(&self.sectors(&flight.blocks));
        }
    }

    /// The range of the metadata device that must be read before the transfer can end.
    pub(crate) fn unread(&self, flight: &BlockTransfer) -> Option<Range<u64>> {
        self.cache.unread(flight.held.as_ref()?, flight.writes)
    }

    /// Takes pages that were read from byte `at` on.
    pub(crate) fn pages_came(&self, flight: &BlockTransfer, at: u64, bytes: &[u8]) {
        flight.held.iter().for_each(|held| self.cache.came(held, at, bytes));
    }

    /// Ends a read, after its bytes and pages have come or failed.
    pub(crate) fn end_read(
        &self,
        flight: &BlockTransfer,
        came: Result<(), Error>,
        data: &mut [u8],
        tags: &mut [u8],
    ) -> StepResult {
        came?;
        let (size, tag_size) = (self.geometry.block_size(), self.geometry.tag_size());
        let mut own = Vec::new();
        let tags = if flight.verifies && tags.is_empty() {
            own.resize(self.count(&flight.blocks) * tag_size, 0);
            &mut own[..]
        } else {
            tags
        };
        let offset = flight.blocks.start * size as u64;
        if let Some(held) = &flight.held
            && !self.cache.get(held, tags)
        {
            return Err(no_tags(IoKind::Read, offset).into());
        }
        for known in &flight.found {
            let i = self.count(&(flight.blocks.start..known.block));
            let tag = tags.get_mut(i * tag_size..(i + 1) * tag_size).unwrap_or_default();
            if let Some(journal) = &self.journal {
                journal.get(known, &mut data[i * size..(i + 1) * size], tag);
            }
        }
        if flight.verifies { self.verify(offset, data, tags) } else { Ok(()) }
    }

    /// Ends a write, after its bytes were written or failed; its pages have come before. `tags` are
    /// those of the layer above.
    pub(crate) fn end_write(
        &self,
        flight: &BlockTransfer,
        written: Result<(), Error>,
        tags: &[u8],
    ) -> StepResult {
        let tags = if self.hash.is_some() { &flight.own[..] } else { tags };
        let kept = written.and_then(|()| match &flight.held {
            Some(held) if !self.cache.put(held, tags) => {
                Err(no_tags(IoKind::Write, flight.blocks.start * self.geometry.block_size() as u64))
            }
            _ => Ok(()),
        });
        self.give_up(flight);
        Ok(kept?)
    }

    /// Locks the blocks of a range without waiting, if they lie in one run.
    fn claim_run(&self, offset: u64, len: usize, alone: bool) -> Option<(Range<u64>, BlockGuard)> {
        if len == 0 || self.mode == WriteMode::Inline {
            return None;
        }
        let blocks = self.blocks(offset, len);
        let sectors = self.sectors(&blocks);
        if self.geometry.place(sectors.start).sectors < sectors.end - sectors.start {
            return None;
        }
        let claim = self.claims.try_take(blocks.clone(), alone)?;
        Some((blocks, claim))
    }

    fn hold(&self, blocks: &Range<u64>) -> Option<TagGuard> {
        let tag = self.geometry.place(self.sectors(blocks).start).tag;
        self.cache.hold(tag, self.count(blocks) * self.geometry.tag_size())
    }

    fn place(&self, blocks: &Range<u64>) -> u64 {
        self.geometry.place(self.sectors(blocks).start).data
    }
}

fn no_tags(kind: IoKind, offset: u64) -> Error {
    kind.failed(offset, "the tags were not read", rustix::io::Errno::IO)
}
