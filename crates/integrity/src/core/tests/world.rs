//! The requests to a volume, and its possible contents after any part of them.

use super::super::{Core, LowerDisks, StepResult, Stop};
use super::machine::Machine;
use crate::WriteMode;

/// Pseudorandom numbers, the same each time.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n.max(1)
    }
}

pub(super) fn blocks(core: &Core) -> u64 {
    core.size() / core.geometry().block_size() as u64
}

/// A block's contents: each sector depends on its version.
pub(super) fn contents(size: usize, block: u64, version: u64) -> Vec<u8> {
    let mut dice = Dice::new((block << 32) ^ version);
    (0..size / 8).flat_map(|_| dice.below(u64::MAX).to_le_bytes()).collect()
}

/// The tags that the layer above passes with these blocks; empty where tags are made below.
pub(super) fn handed_tag(core: &Core, data: &[u8]) -> Vec<u8> {
    let size = core.handed_tags();
    let block = core.geometry().block_size();
    let one = |block: &[u8]| {
        let crc = crc32c::crc32c(block).to_le_bytes();
        (0..size).map(move |i| crc[i % 4] ^ i as u8).collect::<Vec<_>>()
    };
    data.chunks(block).flat_map(one).collect()
}

/// Reads a block, and checks its tag for the layer above.
pub(super) fn read(core: &Core, way: &mut dyn LowerDisks, block: u64) -> StepResult<Vec<u8>> {
    let mut data = vec![0; core.geometry().block_size()];
    let mut tag = vec![0; core.handed_tags()];
    core.read(way, block * data.len() as u64, &mut data, &mut tag)?;
    if tag != handed_tag(core, &data) {
        return Err(underseal_device::IoKind::Read
            .failed(block, "the tag is wrong", rustix::io::Errno::ILSEQ)
            .into());
    }
    Ok(data)
}

/// A change of a block: to these contents, or to any.
struct Change {
    /// The number of events before the change.
    before: usize,
    block: u64,
    to: Option<Vec<u8>>,
}

/// The requests so far, in order.
#[derive(Default)]
pub(super) struct World {
    changes: Vec<Change>,
    /// Flushes: the number of events at the flush, and of changes that it covers.
    flushes: Vec<(usize, usize)>,
    version: u64,
}

impl World {
    /// Makes a random request.
    pub(super) fn act(&mut self, core: &Core, machine: &Machine, dice: &mut Dice) -> StepResult {
        let way = &mut machine.way();
        let most = if dice.below(8) == 0 { 40 } else { 4 };
        let block = dice.below(blocks(core));
        let count = (1 + dice.below(most)).min(blocks(core) - block);
        let size = core.geometry().block_size();
        match dice.below(20) {
            0..=2 => self.flush(core, machine)?,
            3 if core.takes_discards() => {
                let before = machine.count();
                self.changes.extend((block..block + count).map(|block| Change { before, block, to: None }));
                core.discard(way, block * size as u64, count * size as u64)?;
            }
            4 | 5 => core.tend(way)?,
            6 | 7 => {
                core.recalculate(way)?;
            }
            _ => {
                self.version += 1;
                let version = self.version;
                let made: Vec<_> = (block..block + count).map(|b| contents(size, b, version)).collect();
                let before = machine.count();
                let data = made.concat();
                let new = (block..).zip(made).map(|(block, to)| Change { before, block, to: Some(to) });
                self.changes.extend(new);
                let tags = handed_tag(core, &data);
                // A channel does the same: at once if possible, else from the beginning.
                let at_once = core.write(&mut machine.way_at_once(), block * size as u64, &data, &tags);
                match at_once {
                    Err(Stop::Blocked(_)) => core.write(way, block * size as u64, &data, &tags)?,
                    done => done?,
                }
            }
        }
        Ok(())
    }

    pub(super) fn flush(&mut self, core: &Core, machine: &Machine) -> StepResult {
        core.flush(&mut machine.way())?;
        self.flushed(machine);
        Ok(())
    }

    /// Notes that all changes so far are durable.
    pub(super) fn flushed(&mut self, machine: &Machine) {
        self.flushes.push((machine.count(), self.changes.len()));
    }

    /// Begins another life of the same volume, with an empty record.
    pub(super) fn begin_again(&mut self) {
        self.changes.iter_mut().for_each(|change| change.before = 0);
        self.flushes = vec![(0, self.changes.len())];
    }

    /// The possible contents of a block after a power cut at `events`: the values since the last
    /// flush, the last one before it first; `None`: any contents.
    fn may_hold(&self, block: u64, size: usize, events: usize) -> Vec<Option<Vec<u8>>> {
        let flushed =
            self.flushes.iter().rev().find(|(at, _)| *at <= events).map_or(0, |(_, changes)| *changes);
        let of_block = |change: &&Change| change.block == block;
        let old = self.changes[..flushed].iter().rfind(of_block);
        let old = old.map_or_else(|| Some(vec![0; size]), |change| change.to.clone());
        let new = self.changes[flushed..].iter().filter(of_block).filter(|change| change.before < events);
        std::iter::once(old).chain(new.map(|change| change.to.clone())).collect()
    }

    /// Checks a volume that was opened after a power cut.
    pub(super) fn check(&self, core: &Core, machine: &Machine, events: usize, what: &str) {
        let size = core.geometry().block_size();
        let mut way = machine.way();
        for block in 0..blocks(core) {
            let may = self.may_hold(block, size, events);
            let data = match read(core, &mut way, block) {
                Ok(data) => data,
                Err(_) if core.mode() == WriteMode::Direct && may.len() > 1 => continue,
                Err(e) => panic!("{what}: block {block} cannot be read: {e:?}"),
            };
            let is_one = |data: &[u8], from: usize| {
                may.iter().any(|value| value.as_ref().is_none_or(|v| v[from..from + data.len()] == *data))
            };
            // Where tags are recalculated, the sectors of a block may differ in version.
            let is_right = match core.mode() {
                WriteMode::Bitmap => data.chunks(512).enumerate().all(|(i, sector)| is_one(sector, i * 512)),
                _ => is_one(&data, 0),
            };
            assert!(is_right, "{what}: block {block} is none of the {} that it may be", may.len());
        }
    }

    /// Checks a volume without lost writes.
    pub(super) fn check_newest(&mut self, core: &Core, machine: &Machine, what: &str) {
        self.begin_again();
        self.check(core, machine, usize::MAX, what);
    }
}
