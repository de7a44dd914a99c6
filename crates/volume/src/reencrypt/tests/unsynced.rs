//! Users who do not sync their writes: after a loss of power each write has arrived or not, and all
//! other bytes are intact.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use super::faults::{Disk, Fault};
use super::users::Random;
use super::*;
use crate::storage::bytes::Bytes;
use crate::{Error, ErrorKind};

/// Writes to each range just before it is claimed.
struct Hasty<'a> {
    disk: &'a Disk,
    volume: RefCell<Volume>,
    /// The present contents.
    model: RefCell<Vec<u8>>,
    /// The number of reads, writes and syncs of the second step before the disk dies.
    dies_after: u64,
    claims: Cell<u64>,
}

impl Foreground for Hasty<'_> {
    fn claim(&self, range: Range<u64>) -> Result<Box<dyn Claim + '_>> {
        if self.claims.get() == 2 {
            return Err(Error::new(ErrorKind::Busy, "not now"));
        }
        let at = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
        let mut model = self.model.borrow_mut();
        model[at.clone()].iter_mut().for_each(|byte| *byte ^= 0x5a);
        // The disk keeps its bytes with each third write, but with no write of the second step.
        let pieces = if self.claims.get() == 0 { 2 } else { 1 };
        let len = at.len() / pieces;
        for (start, piece) in (range.start..).step_by(len).zip(model[at].chunks(len)) {
            write(&self.volume.borrow(), self.disk, start, piece);
        }
        self.claims.set(self.claims.get() + 1);
        if self.claims.get() == 2 {
            self.disk.set(Some(Fault::Dead(self.dies_after)));
        }
        Ok(Box::new(Held(self)))
    }

    fn claims_ahead(&self) -> bool {
        false
    }

    fn pace(&self, _done: u64, _left: u64) -> Pace {
        Pace::Go
    }
}

struct Held<'a>(&'a Hasty<'a>);

impl Claim for Held<'_> {
    fn relay(&self, volume: Volume) -> Result<()> {
        *self.0.volume.borrow_mut() = volume;
        Ok(())
    }

    fn give_up(&self) {}
}

#[test]
fn what_users_did_not_sync_is_old_or_new_after_a_loss_of_power_and_nothing_else_is_lost() {
    let random = Random::new(13);
    let (mut hot, mut lost) = (0, 0);
    for protection in [checksum(4096), Protection::Journal] {
        let shape = in_place(form(XTS, 512, 0), form(XTS, 4096, 0), 64 << 10, protection);
        for dies_after in (0..24).flat_map(|n| [n; 3]) {
            let plain = shape.plain();
            let disk = Disk::new(shape.disk(&plain));
            let plan = shape.plan();
            let volume = plan.volume(Progress::default()).unwrap().into();
            let model = RefCell::new(plain.clone());
            let users = Hasty { disk: &disk, volume, model, dies_after, claims: Cell::new(0) };
            let area = Bytes::new(vec![0; usize::try_from(plan.area).unwrap()]);
            let mut ledger = Notes::new(plan, &area, &|_| Ok(()));
            let options = Options { workers: 1, ..Options::default() };
            run(&disk, &mut ledger, &users, &options).unwrap_err();
            disk.lose_power(|| random.below(2) == 0);
            disk.set(None);
            hot += u64::from(ledger.progress.hot.is_some());
            assert_eq!(run(&disk, &mut ledger, &Alone, &options).unwrap(), Outcome::Finished);
            let volume = ledger.plan.volume(Progress { done: shape.size, hot: None }).unwrap();
            let found = read(&volume, &disk, 0, plain.len());
            let model = users.model.borrow();
            for (i, block) in found.chunks(512).enumerate() {
                let at = i * 512..(i + 1) * 512;
                assert!(block == &plain[at.clone()] || block == &model[at.clone()], "block {i}");
                lost += u64::from(block != &model[at]);
            }
        }
    }
    assert!(hot > 0 && lost > 0, "{hot} {lost}");
}
