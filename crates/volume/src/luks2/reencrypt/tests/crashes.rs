//! Power cuts at every write of a start, of a whole reencryption and of its end: the data survives,
//! and the passphrase opens it.

use std::cell::Cell;
use std::ops::Range;

use super::*;
use crate::storage::recorder::left_of;

#[test]
fn a_crash_at_the_start_leaves_the_old_volume_or_one_that_is_being_reencrypted() {
    let (disk, mut header, key) = disk();
    let before = disk.bytes().clone();
    let both = begin(&disk, &mut header, key, &change(CHECKSUM));
    let mut seen = [false; 2];
    disk.each_crash(before, |disk, at| {
        let header = read(disk).unwrap_or_else(|| panic!("{at}"));
        let begun = header.reencryption().unwrap_or_else(|e| panic!("{at}: {e}")).is_some();
        assert_eq!(opened(&header, disk), 1 + u8::from(begun), "{at}");
        let volume = activate(&header, &both, disk.len(), false).unwrap_or_else(|e| panic!("{at}: {e}"));
        assert!(plaintext(&volume, disk) == pattern(DATA), "{at}");
        seen[usize::from(begun)] = true;
    });
    assert_eq!(seen, [true; 2], "both sides of the start were seen");
}

#[test]
fn a_crash_anywhere_in_a_whole_reencryption_loses_nothing() {
    for (protection, direction) in
        [(CHECKSUM, Direction::Forward), (Protection::Journal, Direction::Backward)]
    {
        let (disk, mut header, key) = disk();
        let both = begin(&disk, &mut header, key, &BeginOptions { direction, ..change(protection) });
        let slot = Reencryption::parse(header.metadata()).unwrap().unwrap().slot;
        let areas = [0, slot].map(|slot| {
            let (_, area) = header.areas().into_iter().find(|(number, _)| *number == slot).unwrap();
            usize::try_from(area.start).unwrap()..usize::try_from(area.end).unwrap()
        });
        disk.forget_events();
        let before = disk.bytes().clone();
        assert_eq!(go_on(&disk, &disk, &both, false).unwrap(), Outcome::Finished);
        for Range { start, end } in areas {
            // At least the contents of the old keyslot are wiped.
            let end = end.min(start + 64_000);
            assert_eq!(left_of(&before[start..end], &disk.bytes()[start..end]), 0, "{protection:?}");
        }
        let (seen, recovered) = ([(); 4].map(|()| Cell::new(0)), Cell::new(0));
        let mut states = 0;
        disk.each_crash(before, |disk, at| {
            // Many states are alike, and other tests cover interrupted updates of a header.
            states += 1;
            if states % 4 != 0 {
                return;
            }
            let header = read(disk).unwrap_or_else(|| panic!("{at}"));
            let status = header.reencryption().unwrap_or_else(|e| panic!("{at}: {e}"));
            let stage = status.map_or(3, |status| status.stage as usize);
            seen[stage].set(seen[stage].get() + 1);
            assert!(opened(&header, disk) > 0, "{at}");
            let right = once(&[&disk[..32 * KIB], &disk[160 * KIB..]], || {
                if stage != Stage::Hot as usize {
                    let volume =
                        activate(&header, &both, disk.len(), false).unwrap_or_else(|e| panic!("{at}: {e}"));
                    return plaintext(&volume, disk) == pattern(DATA);
                }
                recovered.set(recovered.get() + 1);
                let disk = Recorder::new(disk.to_vec());
                go_on(&disk, &disk, &both, false).unwrap_or_else(|e| panic!("{at}: {e}"));
                let header = read(&disk).unwrap();
                let volume = activate(&header, &both, disk.bytes().len(), false).unwrap();
                let bytes = disk.bytes().clone();
                header.reencryption().unwrap().is_none() && plaintext(&volume, &bytes) == pattern(DATA)
            });
            assert!(right, "{at}");
        });
        let seen = seen.map(|count| count.get());
        // cryptsetup takes a reencryption with all of the data new for one that has not begun.
        let [clean, hot, last, over] = seen;
        assert!([clean, hot, over].iter().all(|&count| count > 5), "{seen:?}");
        assert!(last == 0 && recovered.get() > 10, "{seen:?}, {recovered:?}");
    }
}
