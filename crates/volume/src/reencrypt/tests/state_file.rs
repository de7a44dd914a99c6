//! Incomplete state files, and devices that do not fit their state files.

use super::state::{Keys, State, StateLedger};
use super::*;
use crate::storage::recorder::Recorder;
use crate::{Error, ErrorKind, LockTo};

const SIZE: u64 = 4096;

/// Creates a state file.
fn create(file: &Recorder, iterations: u32) -> Result<()> {
    let shape = in_place(form(None, 512, 0), form(XTS, 512, 0), SIZE, checksum(512));
    let key = shape.new.key(NEW);
    let keys = Keys { old: None, new: key.as_ref() };
    StateLedger::create(file, shape.plan(), keys, SIZE, iterations).map(drop)
}

fn file() -> Recorder {
    let shape = in_place(form(None, 512, 0), form(XTS, 512, 0), SIZE, checksum(512));
    Recorder::new(vec![0; (32 << 10) + usize::try_from(shape.plan().area).unwrap()])
}

fn unlocked(file: &Recorder, size: u64) -> Result<()> {
    let key = form(XTS, 512, 0).key(NEW);
    State::read(file, LockTo::Change)?.unlock(Keys { old: None, new: key.as_ref() }, size).map(drop)
}

#[test]
fn a_state_that_was_cut_off_as_it_was_made_says_that_nothing_has_begun() {
    let whole = file();
    create(&whole, 1).unwrap();
    let read = |bytes: &[u8]| -> Error { unlocked(&Recorder::new(bytes.to_vec()), SIZE).unwrap_err() };
    let whole = whole.bytes().clone();
    for len in [0, 512] {
        let mut torn = vec![0; whole.len()];
        torn[..len].copy_from_slice(&whole[..len]);
        let e = read(&torn);
        assert!(e.to_string().contains("nothing has begun"), "{len}: {e}");
    }
    // Other files must not be removed, nor a state file of a resumed reencryption.
    let mut later = whole.clone();
    later[100] ^= 1;
    later[(16 << 10) + 5] = 1;
    for other in [&later[..], b"something else", &[&[1][..], &[0; 40_000]].concat()] {
        let e = read(other);
        assert!(!e.to_string().contains("nothing has begun"), "{e}");
    }
}

#[test]
fn nothing_is_begun_that_nobody_could_go_on_with() {
    let file = file();
    let e = create(&file, 1 << 30).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::TooCostly, "{e}");
    create(&file, 1).unwrap();
    unlocked(&file, SIZE).unwrap();
}

#[test]
fn a_device_that_was_made_larger_is_told_how_large_it_was() {
    let file = file();
    create(&file, 1).unwrap();
    let e = unlocked(&file, 2 * SIZE).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::BadLayout);
    assert!(e.to_string().contains("make it 4096 bytes long again"), "{e}");
}
