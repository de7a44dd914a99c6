//! A header that another program changes in the middle of its reencryption.

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::lock::HeaderLock;
use crate::luks2::reencrypt::arrange::Document;
use crate::reencrypt::{Claim, Foreground, Ledger as _, Pace, Progress};
use crate::{ErrorKind, LockTo, ReadAt, ReencryptionLock, Target, Volume};

/// A disk where another program changes the header before the second step.
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
    // As if no process could take the lock of reencryptions.
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

/// A disk whose header's lock another program holds whenever a step begins.
struct Contended<'r> {
    disk: &'r Recorder,
    denials: AtomicU32,
}

impl ReadAt for Contended<'_> {
    fn size(&self) -> io::Result<u64> {
        self.disk.size()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.disk.read_exact_at(buf, offset)
    }

    fn lock_within(&self, to: LockTo, _: Duration) -> Result<Option<HeaderLock<'_>>> {
        let one_less = |left: u32| left.checked_sub(1);
        match to {
            LockTo::Change if self.denials.fetch_update(SeqCst, SeqCst, one_less).is_ok() => {
                Err(crate::Error::new(ErrorKind::Locked, "another program holds it"))
            }
            _ => Ok(None),
        }
    }
}

impl Target for Contended<'_> {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.disk.write_all_at(bytes, offset)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.disk.sync_all()
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        self.disk.set_len(size)
    }
}

/// Users who count the waits for the lock, and lose no range.
struct Patient<'r> {
    on: &'r Contended<'r>,
    waits: Cell<u32>,
    claims: Cell<u32>,
    is_claimed: Cell<bool>,
    is_stopped: bool,
}

impl Foreground for Patient<'_> {
    fn claim(&self, _range: Range<u64>) -> Result<Box<dyn Claim + '_>> {
        assert!(!self.is_claimed.replace(true));
        // Another program has the lock three times: amid rows 2 and 3 of a step.
        let claims = self.claims.replace(self.claims.get() + 1);
        let denials = [2, 0, 1].get(claims as usize).copied();
        self.on.denials.store(denials.unwrap_or(0), SeqCst);
        Ok(Box::new(UsersKept { users: self }))
    }

    fn claims_ahead(&self) -> bool {
        false
    }

    fn pace(&self, _done: u64, _left: u64) -> Pace {
        Pace::Go
    }

    fn waits_for_lock(&self) {
        assert!(!self.is_claimed.get(), "users wait for another program");
        self.waits.set(self.waits.get() + 1);
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped
    }
}

struct UsersKept<'k> {
    users: &'k Patient<'k>,
}

impl Drop for UsersKept<'_> {
    fn drop(&mut self) {
        self.users.is_claimed.set(false);
    }
}

impl Claim for UsersKept<'_> {
    fn relay(&self, _volume: Volume) -> Result<()> {
        Ok(())
    }

    fn give_up(&self) {
        panic!("a lock that is held is no reason to give a range up");
    }
}

#[test]
fn a_lock_that_another_program_holds_costs_time_and_nothing_else() {
    let (disk, mut header, key) = disk();
    let both = begin(&disk, &mut header, key, &change(CHECKSUM));
    let on = Contended { disk: &disk, denials: AtomicU32::new(0) };
    let patient = |is_stopped| Patient {
        on: &on,
        waits: Cell::new(0),
        claims: Cell::new(0),
        is_claimed: Cell::new(false),
        is_stopped,
    };
    let size = (OFFSET + DATA) as u64;
    let options = ResumeOptions { hot_zone: Some(DATA as u64 / 2), ..ResumeOptions::default() };
    // A stop during a wait stops the reencryption before the step, and nothing is left to recover.
    let users = patient(true);
    let mut ledger = Ledger::resume(&on, &both, size, &options).unwrap();
    let stopped = run(&disk, &mut ledger, &users, &Options::default()).unwrap_err();
    assert_eq!(stopped.kind(), ErrorKind::Locked, "{stopped}");
    drop(ledger);
    on.denials.store(0, SeqCst);
    assert_eq!(read(&disk).unwrap().reencryption().unwrap().map(|of| of.stage), Some(Stage::Clean));
    let users = patient(false);
    let mut ledger = Ledger::resume(&on, &both, size, &options).unwrap();
    assert_eq!(run(&disk, &mut ledger, &users, &Options::default()).unwrap(), Outcome::Finished);
    // Two steps, both of which began again.
    assert_eq!((users.waits.get(), users.claims.get()), (2, 4));
    drop(ledger);
    let header = read(&disk).unwrap();
    assert!(header.reencryption().unwrap().is_none());
    let bytes = disk.bytes().clone();
    let volume = activate(&header, &both, bytes.len(), false).unwrap();
    assert!(plaintext(&volume, &bytes) == pattern(DATA));
}

/// Users who look at the header on the disk when they get a range back.
struct Looking<'r> {
    disk: &'r Recorder,
    relayed: Cell<u64>,
}

struct Looked<'l> {
    users: &'l Looking<'l>,
    range: Range<u64>,
}

impl Foreground for Looking<'_> {
    fn claim(&self, range: Range<u64>) -> Result<Box<dyn Claim + '_>> {
        Ok(Box::new(Looked { users: self, range }))
    }

    fn claims_ahead(&self) -> bool {
        false
    }

    fn pace(&self, _done: u64, _left: u64) -> Pace {
        Pace::Go
    }
}

impl Claim for Looked<'_> {
    fn relay(&self, _volume: Volume) -> Result<()> {
        let relayed = self.users.relayed.get() + self.range.end - self.range.start;
        self.users.relayed.set(relayed);
        let status = read(self.users.disk).unwrap().reencryption().unwrap();
        let stage = status.map(|status| status.stage);
        let expected = if relayed == DATA as u64 { None } else { Some(Stage::Clean) };
        assert_eq!(
            stage, expected,
            "a step that is done again would undo what users write to {:?}",
            self.range
        );
        Ok(())
    }

    fn give_up(&self) {
        panic!("nothing fails");
    }
}

#[test]
fn users_get_a_range_back_only_when_no_reader_of_the_header_does_its_step_again() {
    for protection in [CHECKSUM, Protection::Journal] {
        let (disk, mut header, key) = disk();
        let both = begin(&disk, &mut header, key, &change(protection));
        let options = ResumeOptions { hot_zone: Some(DATA as u64 / 2), ..ResumeOptions::default() };
        let mut ledger = Ledger::resume(&disk, &both, (OFFSET + DATA) as u64, &options).unwrap();
        let users = Looking { disk: &disk, relayed: Cell::new(0) };
        assert_eq!(run(&disk, &mut ledger, &users, &Options::default()).unwrap(), Outcome::Finished);
        assert_eq!(users.relayed.get(), DATA as u64);
    }
}

/// A disk whose header another program writes back as it was before an earlier step, with a change
/// of its own: it has read the header by another name of the disk, from memory.
struct Outdated<'d> {
    disk: &'d Recorder,
    /// The headers before each step.
    headers: RefCell<Vec<Document>>,
    /// The step whose header is written back, and the step before which that happens.
    from: usize,
    at: usize,
}

impl Foreground for Outdated<'_> {
    fn claim(&self, range: Range<u64>) -> Result<Box<dyn Claim + '_>> {
        Alone.claim(range)
    }

    fn claims_ahead(&self) -> bool {
        false
    }

    fn pace(&self, _: u64, _: u64) -> Pace {
        let mut headers = self.headers.borrow_mut();
        let mut now = read(self.disk).unwrap();
        headers.push(now.json().clone());
        if headers.len() == self.at + 1 {
            let edit = |document: &mut Document, _: &Metadata| {
                document.clone_from(&headers[self.from]);
                document["config"]["x"] = json!("y");
                Ok(())
            };
            now.update(self.disk, edit, |()| Ok(())).unwrap();
        }
        Pace::Go
    }
}

#[test]
fn an_older_record_of_the_same_run_is_followed_by_the_newer_one() {
    for protection in [CHECKSUM, Protection::Journal] {
        for (from, at) in [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)] {
            let (disk, mut header, key) = disk();
            let both = begin(&disk, &mut header, key, &change(protection));
            let options = ResumeOptions { hot_zone: Some(4 * KIB as u64), ..ResumeOptions::default() };
            let mut ledger = Ledger::resume(&disk, &both, (OFFSET + DATA) as u64, &options).unwrap();
            let users = Outdated { disk: &disk, headers: RefCell::default(), from, at };
            let outcome = run(&disk, &mut ledger, &users, &Options { workers: 1, ..Options::default() });
            assert_eq!(outcome.unwrap(), Outcome::Finished, "{from} {at}");
            assert!(users.headers.borrow().len() > at, "{from} {at}");
            let header = read(&disk).unwrap();
            assert_eq!(header.reencryption().unwrap(), None);
            assert_eq!(header.json()["config"]["x"], json!("y"), "the change is kept");
            let volume = activate(&header, &both, OFFSET + DATA, false).unwrap();
            let bytes = disk.bytes().clone();
            assert!(plaintext(&volume, &bytes) == pattern(DATA), "{from} {at}");
        }
    }
}

#[test]
fn an_older_record_is_replaced_before_the_bytes_that_protect_a_step_are() {
    let (disk, mut header, key) = disk();
    let both = begin(&disk, &mut header, key, &change(CHECKSUM));
    let size = (OFFSET + DATA) as u64;
    let mut ledger = Ledger::resume_under(None, &disk, &both, size, &ResumeOptions::default()).unwrap();
    let under_way = Progress { done: 0, hot: Some(4096) };
    ledger.record(under_way).unwrap();
    let old = read(&disk).unwrap().json().clone();
    let done = Progress { done: 4096, hot: None };
    ledger.record(done).unwrap();
    let write_back = |document: &mut Document, _: &Metadata| {
        document.clone_from(&old);
        Ok(())
    };
    read(&disk).unwrap().update(&disk, write_back, |()| Ok(())).unwrap();
    ledger.write_area(0, &[1; 32]).unwrap();
    let again = Ledger::resume_under(None, &disk, &both, size, &ResumeOptions::default()).unwrap();
    assert_eq!(again.progress(), done);
    // A newer record is another program's.
    ledger.record(Progress { done: 4096, hot: Some(4096) }).unwrap();
    let mut other = again;
    assert_eq!(other.write_area(0, &[2; 32]).unwrap_err().kind(), ErrorKind::Busy);
}
