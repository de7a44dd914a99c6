//! What somebody may do to a volume who can write to its disk: the table of `docs/integrity.md`.

use super::machine::Machine;
use super::world::read;
use super::{Case, hash, keyed};
use crate::{DISCARDED, ErrorKind, Mode};

#[test]
fn swapped_blocks_and_tags_are_noticed() {
    let case = Case::new("swapped", Mode::Direct, keyed("hmac(sha256)"), 512, None).sections(1);
    let machine = case.machine();
    let core = case.open(&machine);
    for block in 0..4 {
        core.write(&mut machine.way(), block * 512, &[block as u8 + 1; 512], &[]).unwrap();
    }
    core.close(&mut machine.way()).unwrap();
    let images = machine.images();
    let (one, two) = (core.geometry().place(1), core.geometry().place(2));
    let swap = |image: &mut [u8], a: u64, b: u64, len: usize| {
        (0..len).for_each(|i| image.swap(a as usize + i, b as usize + i));
    };
    // Data alone, tags alone, both: the sector's number is in the tag.
    for (data, tags) in [(true, false), (false, true), (true, true)] {
        let mut images = images.clone();
        if data {
            swap(&mut images[0], one.data, two.data, 512);
        }
        if tags {
            swap(&mut images[0], one.tag, two.tag, 32);
        }
        let machine = machine.after(&images);
        let core = case.open(&machine);
        let readable: Vec<bool> =
            (0..4).map(|block| read(&core, &mut machine.way(), block).is_ok()).collect();
        assert_eq!(readable, [true, false, false, true]);
    }
    // An old copy of a block with its old tag is as good as the new one: nothing in the format tells their age.
    core.close(&mut machine.way()).unwrap();
    let core = case.open(&machine);
    core.write(&mut machine.way(), 512, &[9; 512], &[]).unwrap();
    core.close(&mut machine.way()).unwrap();
    let mut newer = machine.images();
    newer[0][one.data as usize..][..512].copy_from_slice(&images[0][one.data as usize..][..512]);
    newer[0][one.tag as usize..][..32].copy_from_slice(&images[0][one.tag as usize..][..32]);
    let machine = machine.after(&newer);
    assert_eq!(read(&case.open(&machine), &mut machine.way(), 1).unwrap(), [2; 512]);
}

#[test]
fn swapped_areas_are_noticed() {
    let case = Case::new("areas", Mode::Direct, hash("sha256"), 512, None).sections(1);
    let machine = case.machine();
    let core = case.open(&machine);
    core.write(&mut machine.way(), 0, &[1; 64 * 512], &[]).unwrap();
    core.write(&mut machine.way(), 64 * 512, &[1; 64 * 512], &[]).unwrap();
    core.close(&mut machine.way()).unwrap();
    let (first, second) = (core.geometry().place(0), core.geometry().place(64));
    let mut images = machine.images();
    let len = (second.tag - first.tag) as usize;
    (0..len).for_each(|i| images[0].swap(first.tag as usize + i, second.tag as usize + i));
    let machine = machine.after(&images);
    let core = case.open(&machine);
    assert!((0..128).all(|block| read(&core, &mut machine.way(), block).is_err()));
}

/// A volume whose journal has a section with one block for sector 16, and the byte where that section begins.
fn with_an_entry(case: &Case) -> (Machine, usize) {
    let machine = case.machine();
    let core = case.open(&machine);
    core.write(&mut machine.way(), 16 * 512, &vec![3; core.geometry().block_size()], &[]).unwrap();
    core.flush(&mut machine.way()).unwrap();
    let journal = core.geometry().journal_offset() as usize;
    (machine, journal)
}

#[test]
fn a_journal_that_was_changed_is_not_replayed() {
    let case = Case::new("journal", Mode::Journal, hash("sha256"), 512, Some(200));
    let (machine, journal) = with_an_entry(&case);
    let copy = machine.after(&machine.images());
    assert_eq!(read(&case.open(&copy), &mut copy.way(), 16).unwrap(), [3; 512]);
    // The entry's sector, its tag, its data, a commit id.
    let places = [
        (0, ErrorKind::Integrity),
        (16, ErrorKind::Integrity),
        (8 * 512, ErrorKind::Integrity),
        (504, ErrorKind::BadJournal),
    ];
    for (at, kind) in places {
        let changed = machine.after(&machine.images());
        changed.change(0, journal + at, |byte| *byte ^= 8);
        let before = changed.images();
        assert_eq!(case.try_open(&changed).err().map(|e| e.kind()), Some(kind), "byte {at}");
        assert!(changed.images() == before, "what is refused is left as it was");
        let recovery = case.clone().with(|options| options.mode = Mode::Recovery).open(&changed);
        assert_eq!(read(&recovery, &mut changed.way(), 16).unwrap(), [0; 512]);
    }
    let case = case.with(|options| options.journal_mac = keyed("hmac(sha256)"));
    let (machine, journal) = with_an_entry(&case);
    let with_hash = |case: &Case| case.try_open(&machine).err().map(|e| e.kind());
    assert_eq!(with_hash(&case), None);
    // A sector's low bits in an entry that nobody uses are in the MAC, and in nothing else.
    machine.change(0, journal + 512, |byte| *byte ^= 8);
    assert_eq!(with_hash(&case), Some(ErrorKind::Integrity));
}

#[test]
fn an_old_journal_in_place_of_a_new_one_is_not_noticed() {
    let case = Case::new("journal", Mode::Journal, keyed("hmac(sha256)"), 512, None).sections(1);
    let (machine, _) = with_an_entry(&case);
    let old = machine.after(&machine.images());
    let core = case.open(&machine);
    core.write(&mut machine.way(), 16 * 512, &[4; 512], &[]).unwrap();
    core.close(&mut machine.way()).unwrap();
    // The whole device as it was: nothing tells its age.
    assert_eq!(read(&case.open(&old), &mut old.way(), 16).unwrap(), [3; 512]);
}

#[test]
fn tags_with_a_key_are_not_made_anew_because_the_superblock_says_so() {
    let case = Case::new("keyed", Mode::Direct, keyed("hmac(sha256)"), 512, None).sections(1);
    let machine = case.machine();
    // The flag RECALCULATING.
    machine.change(0, 24, |byte| *byte |= 2);
    assert_eq!(case.try_open(&machine).err().map(|e| e.kind()), Some(ErrorKind::Unsupported));
    let with_mac = Case::new("mac", Mode::Direct, keyed("hmac(sha256)"), 512, None).sections(1);
    let with_mac = with_mac.with(|options| options.journal_mac = keyed("hmac(sha256)"));
    let machine = with_mac.machine();
    machine.change(0, 24, |byte| *byte |= 2);
    assert_eq!(with_mac.try_open(&machine).err().map(|e| e.kind()), Some(ErrorKind::Integrity));
}

#[test]
fn a_bitmap_that_somebody_claims_does_not_make_forged_data_authentic() {
    for mode in [Mode::Journal, Mode::Direct] {
        let case = Case::new("keyed", mode, keyed("hmac(sha256)"), 512, None).sections(1);
        let machine = case.machine();
        let place = case.open(&machine).geometry().place(5);
        machine.change(0, place.data as usize, |byte| *byte = 66);
        // The flag DIRTY_BITMAP.
        machine.change(0, 24, |byte| *byte |= 4);
        assert_eq!(case.try_open(&machine).err().map(|e| e.kind()), Some(ErrorKind::Unsupported), "{mode:?}");
        let recovery = case.clone().with(|options| options.mode = Mode::Recovery).open(&machine);
        assert_eq!(read(&recovery, &mut machine.way(), 5).unwrap()[0], 66);
        case.with(|options| options.legacy_recalculate = true).open(&machine);
    }
}

#[test]
fn who_allows_discards_lets_a_forger_have_any_data() {
    let case = Case::new("discards", Mode::Direct, keyed("hmac(sha256)"), 512, None).sections(1);
    let machine = case.machine();
    let place = case.open(&machine).geometry().place(5);
    (0..32).for_each(|i| machine.change(0, place.tag as usize + i, |byte| *byte = DISCARDED));
    machine.change(0, place.data as usize, |byte| *byte = 66);
    assert!(read(&case.open(&machine), &mut machine.way(), 5).is_err());
    let allowed = case.with(|options| options.allow_discards = true).open(&machine);
    assert_eq!(read(&allowed, &mut machine.way(), 5).unwrap()[0], 66);
}

#[test]
fn a_device_that_was_cut_short_is_smaller_or_refused() {
    let case = Case::new("short", Mode::Direct, hash("crc32c"), 512, None).sections(1);
    let machine = case.machine();
    let mut images = machine.images();
    let whole = images[0].len();
    images[0].truncate(whole - 16384);
    let shorter = machine.after(&images);
    let core = case.open(&shorter);
    assert!(core.size() < case.open(&machine).size());
    assert_eq!(read(&core, &mut shorter.way(), 0).unwrap(), [0; 512]);
    images[0].truncate(8192);
    let none = machine.after(&images);
    assert_eq!(case.try_open(&none).err().map(|e| e.kind()), Some(ErrorKind::TooSmall));
}
