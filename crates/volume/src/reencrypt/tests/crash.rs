//! Power cuts at every write of a whole reencryption, with its state in a file: recovery restores
//! all of the data.

use std::ops::Range;

use super::state::{Keys, State, StateLedger};
use super::*;
use crate::storage::recorder::{Recorder, once};
use crate::{ErrorKind, LockTo};

/// Stops before its first step: recovers if necessary, and does nothing else.
struct Stopped;

impl Foreground for Stopped {
    fn claim(&self, range: Range<u64>) -> Result<Box<dyn Claim + '_>> {
        Alone.claim(range).map(|_| -> Box<dyn Claim> { Box::new(Alone) })
    }

    fn claims_ahead(&self) -> bool {
        true
    }

    fn pace(&self, _done: u64, _left: u64) -> Pace {
        Pace::Stop
    }
}

/// A volume and its state file, on disks that lose power together.
struct Case {
    shape: Shape,
    plan: Plan,
    plain: Vec<u8>,
    keys: [Option<Key>; 2],
    /// Both disks, one behind the other, before the start.
    before: Vec<u8>,
    data: u64,
}

impl Case {
    fn new(shape: Shape) -> Self {
        let (plan, plain) = (shape.plan(), shape.plain());
        let mut before = shape.disk(&plain);
        let data = before.len() as u64;
        before.resize(before.len() + (32 << 10) + usize::try_from(plan.area).unwrap(), 0);
        Self { shape, plan, plain, keys: [shape.old.key(OLD), shape.new.key(NEW)], before, data }
    }

    fn keys(&self) -> Keys<'_> {
        Keys { old: self.keys[0].as_ref(), new: self.keys[1].as_ref() }
    }

    fn parts(&self) -> (Range<u64>, Range<u64>) {
        (0..self.data, self.data..self.before.len() as u64)
    }

    fn begin(&self, disks: &Recorder) {
        let (data, file) = self.parts();
        let (data, file) = (disks.part(data), disks.part(file));
        let mut ledger = StateLedger::create(&file, self.plan.clone(), self.keys(), self.data, 1).unwrap();
        assert_eq!(run(&data, &mut ledger, &Alone, &options()).unwrap(), Outcome::Finished);
    }

    /// Opens the volume after a crash, recovers it, compares all of it, resumes to the end, and
    /// compares again. Returns true when a step was recovered.
    fn reopen(&self, disks: &Recorder, what: &str) -> bool {
        let (data, file) = self.parts();
        let (data, file) = (disks.part(data), disks.part(file));
        let state = match State::read(&file, LockTo::Change) {
            Ok(state) => state,
            Err(e) => {
                // The state file did not exist yet.
                let says_so = e.to_string().contains("nothing has begun");
                assert!(says_so || e.kind() == ErrorKind::NoHeader, "{what}: {e}");
                assert!(matches!(e.kind(), ErrorKind::NoHeader | ErrorKind::BadHeader), "{what}: {e}");
                let data = usize::try_from(self.data).unwrap();
                assert!(disks.bytes()[..data] == self.before[..data], "{what}");
                return false;
            }
        };
        let hot = state.about().hot;
        let mut ledger = state.unlock(self.keys(), self.data).unwrap();
        let recovered = run(&data, &mut ledger, &Stopped, &options());
        assert!(recovered.is_ok(), "{what}: {}", recovered.unwrap_err());
        assert_eq!(ledger.progress().hot, None);
        self.compare(&ledger, &data, what);
        assert_eq!(run(&data, &mut ledger, &Alone, &options()).unwrap(), Outcome::Finished, "{what}");
        self.compare(&ledger, &data, what);
        assert!(ledger.about().finished);
        hot
    }

    fn compare(&self, ledger: &StateLedger<'_>, data: &dyn Target, what: &str) {
        let volume = self.plan.volume(ledger.progress()).unwrap();
        let now = read(&volume, data, 0, self.plain.len());
        assert!(now == self.plain, "{what}: {:?} of {:?}", ledger.progress(), self.shape);
    }
}

fn options() -> Options {
    // The order of reads and writes is the same with one worker.
    Options { workers: 1, ..Options::default() }
}

/// Tries every crash of a whole reencryption; for every `nth` crash with a step to recover, also
/// every crash of the recovery and of the rest.
fn every_crash(shape: Shape, nth: usize) {
    let case = Case::new(shape);
    let disks = Recorder::new(case.before.clone());
    case.begin(&disks);
    let mut cuts = Vec::new();
    disks.each_crash(case.before.clone(), |left, what| {
        let disks = || Recorder::new(left.to_vec());
        let hot = once(&[left, &case.plain, &case.data.to_le_bytes()], || case.reopen(&disks(), what));
        if hot {
            cuts.push((left.to_vec(), what.to_owned()));
        }
    });
    assert!(!cuts.is_empty(), "nothing was ever under way");
    for (left, cut) in cuts.into_iter().step_by(nth) {
        let disks = Recorder::new(left.clone());
        assert!(case.reopen(&disks, &cut));
        disks.each_crash(left, |left, what| {
            let disks = || Recorder::new(left.to_vec());
            let what = format!("{cut}, then {what}");
            once(&[left, &case.plain, &case.data.to_le_bytes()], || case.reopen(&disks(), &what));
        });
    }
}

/// A part of the crashes within a crash is enough.
const SOME: usize = 97;

#[test]
fn a_crash_in_place_loses_nothing() {
    let (small, large) = (form(XTS, 512, 1024), form(XTS, 4096, 1024));
    let tiny = |old, new, protection| in_place(old, new, 4096, protection);
    every_crash(tiny(small, small, checksum(512)), SOME);
    every_crash(tiny(small, form(CBC, 512, 1024), Protection::Journal), SOME);
    let backward = Shape { direction: Direction::Backward, ..tiny(small, small, checksum(1024)) };
    every_crash(backward, SOME);
    // Torn sectors: the hash tells the old parts, or the journal has all old bytes.
    let larger = |old, new, protection| Shape { hot_zone: 4096, ..in_place(old, new, 12_288, protection) };
    every_crash(larger(small, large, checksum(4096)), SOME);
    every_crash(larger(large, form(CBC, 512, 1024), Protection::Journal), SOME);
}

#[test]
fn a_crash_while_a_plain_image_is_encrypted_or_decrypted_in_place_loses_nothing() {
    let (plain, crypt) = (form(None, 512, 0), form(XTS, 512, 0));
    every_crash(in_place(plain, crypt, 3072, checksum(512)), SOME);
    every_crash(in_place(crypt, plain, 3072, checksum(512)), SOME);
    every_crash(in_place(plain, crypt, 3072, Protection::Journal), SOME);
}

#[test]
fn a_crash_by_shift_loses_nothing() {
    every_crash(encrypt_shifted(1024, 2560), SOME);
    every_crash(decrypt_shifted(1536, 1024, 4096, checksum(512)), SOME);
    every_crash(decrypt_shifted(1024, 1024, 2560, Protection::Journal), SOME);
    every_crash(shifted(form(XTS, 512, 0), form(CBC, 512, 1024), 2560), SOME);
    every_crash(shifted(form(XTS, 512, 1024), form(CBC, 512, 0), 2560), SOME);
}

#[test]
fn a_crash_among_the_largest_sectors_loses_nothing() {
    let (small, largest) = (form(XTS, 512, 0), form(XTS, 65_536, 0));
    let shape = Shape { hot_zone: 65_536, ..in_place(small, largest, 131_072, Protection::Journal) };
    every_crash(shape, 1000);
}
