//! A header that somebody else changes in the middle of its reencryption.

use std::cell::Cell;
use std::ops::Range;

use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::luks2::reencrypt::arrange::Document;
use crate::reencrypt::{Claim, Foreground, Ledger as _, Pace, Progress};
use crate::{ErrorKind, LockTo, ReencryptionLock};

/// Before the second step somebody changes the header.
struct Meddling<'d> {
    disk: &'d Recorder,
    steps: Cell<u32>,
    edit: fn(&mut Document),
}

impl Foreground for Meddling<'_> {
    fn claim(&self, range: Range<u64>) -> Result<Box<dyn Claim + '_>> {
        Alone.claim(range)
    }

    fn claims_ahead(&self) -> bool {
        false
    }

    fn pace(&self, _: u64, _: u64) -> Pace {
        self.steps.set(self.steps.get() + 1);
        if self.steps.get() == 2 {
            let edit = |document: &mut Document, _: &Metadata| {
                (self.edit)(document);
                Ok(())
            };
            read(self.disk).unwrap().update(self.disk, edit, |()| Ok(())).unwrap();
        }
        Pace::Go
    }
}

fn go_on_beside(disk: &Recorder, key: &VolumeKey, edit: fn(&mut Document)) -> Result<Outcome> {
    let options = ResumeOptions { hot_zone: Some(4 * KIB as u64), ..ResumeOptions::default() };
    let mut ledger = Ledger::resume(disk, key, (OFFSET + DATA) as u64, &options)?;
    let meddling = Meddling { disk, steps: Cell::new(0), edit };
    run(disk, &mut ledger, &meddling, &Options { workers: 1, ..Options::default() })
}

#[test]
fn what_is_not_the_reencryptions_may_change_meanwhile() {
    let edits: [fn(&mut Document); 2] = [
        |document| document["config"]["x"] = json!("y"),
        // As cryptsetup removes a keyslot, here the old key's only one.
        |document| {
            document["keyslots"].as_object_mut().unwrap().shift_remove("0");
            document["digests"]["0"]["keyslots"] = json!([]);
        },
    ];
    for (number, edit) in edits.into_iter().enumerate() {
        let (disk, mut header, key) = disk();
        let both = begin(&disk, &mut header, key, &change(CHECKSUM));
        assert_eq!(go_on_beside(&disk, &both, edit).unwrap(), Outcome::Finished, "{number}");
        let header = read(&disk).unwrap();
        assert_eq!(header.reencryption().unwrap(), None);
        assert_eq!(number == 0, header.json()["config"]["x"] == json!("y"));
        let volume = activate(&header, &both, OFFSET + DATA, false).unwrap();
        let bytes = disk.bytes().clone();
        assert!(plaintext(&volume, &bytes) == pattern(DATA), "{number}");
    }
}

#[test]
fn who_does_not_know_how_far_it_is_leaves_alone_what_protects_a_step() {
    let (disk, mut header, key) = disk();
    let both = begin(&disk, &mut header, key, &change(CHECKSUM));
    let resume =
        || Ledger::resume_under(None, &disk, &both, (OFFSET + DATA) as u64, &ResumeOptions::default());
    // As where nobody can take the lock of reencryptions.
    let (mut one, mut other) = (resume().unwrap(), resume().unwrap());
    one.write_area(0, &[1; 32]).unwrap();
    one.record(Progress { done: 0, hot: Some(4096) }).unwrap();
    let before = disk.bytes().clone();
    let e = other.write_area(0, &[2; 32]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
    assert!(*disk.bytes() == before);
}

#[test]
fn the_lock_of_another_volume_is_none() {
    let (disk, mut header, key) = disk();
    let both = begin(&disk, &mut header, key, &change(CHECKSUM));
    let uuid = Uuid::from_u128(0x5eed_0000_0000_4000_8000_0000_0000_0003);
    let Some(lock) = ReencryptionLock::take(Some(uuid), LockTo::Change).unwrap() else {
        return underseal_testing::skip("the lock of reencryptions", "only root can take it");
    };
    let size = (OFFSET + DATA) as u64;
    let e = Ledger::resume_under(Some(&lock), &disk, &both, size, &ResumeOptions::default())
        .map(drop)
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
}
