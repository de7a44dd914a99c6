//! Syncs that fail: the page cache shows the new bytes from then on, and the disk has the old ones.
//! The same command again, and a command that depends on the bytes, puts them on the disk.

use std::cell::RefCell;
use std::ops::Range;

use super::ReadAt as _;
use crate::reencrypt::tests::faults::{Disk, Fault, Keeps};
use crate::storage::recorder::{Recorder, once};
use crate::{
    Backup, Cost, FormatOptions, Header, Key, NewHeader, NewKeyslot, Pbkdf, PbkdfKind, RestoreOptions,
    Result, Settings, UnlockOptions, Version, repair,
};

/// Where the data begin: behind eight keyslots with keys of 32 bytes.
const DATA: usize = 260 << 12;
/// A part of the keyslots' areas in both versions.
const MATERIAL: Range<usize> = 32 << 10..1 << 20;
const SIZE: usize = DATA + (64 << 10);
/// How many writes are lost alone, at most.
const SOME: usize = 16;

/// Does something on a disk of which one sync fails, each in its turn. `then` gets the disk,
/// without a fault by now. Of the writes that the sync was for, the disk loses all, or one alone:
/// each in turn, or some of many.
fn each_failure(before: &[u8], first: impl Fn(&Disk) -> Result<()>, mut then: impl FnMut(&Disk, &str)) {
    for n in 0.. {
        let mut choices = vec![Keeps::EachThird, Keeps::Nothing];
        while let Some(keeps) = choices.pop() {
            let disk = Disk::that_keeps(before.to_vec(), keeps);
            disk.set(Some(Fault::Sync(n)));
            let done = first(&disk);
            if disk.set(None).is_some() {
                done.unwrap();
                assert!(n > 0, "it syncs");
                return;
            }
            if keeps == Keeps::Nothing {
                let lost: Vec<_> = disk.lost().collect();
                choices.extend(
                    lost.iter().step_by(lost.len().div_ceil(SOME).max(1)).copied().map(Keeps::AllBut),
                );
            }
            then(&disk, &format!("sync {n}, the disk keeps {keeps:?}"));
        }
    }
}

/// Does something on a disk of which one sync fails, then `again` on the same disk without a fault,
/// and takes the power away. `check` gets what `again` said, and what the disk has.
pub(crate) fn each(
    before: &[u8],
    first: impl Fn(&Disk) -> Result<()>,
    again: impl Fn(&Disk) -> Result<()>,
    check: impl Fn(Result<()>, Vec<u8>, &str),
) {
    each_failure(before, first, |disk, name| {
        let told = again(disk);
        check(told, without_power(disk), name);
    });
}

/// Puts other bytes on the disk as a program does that syncs once, at its end: the material, and
/// then the header.
fn by_another_program(disk: &Disk, bytes: &[u8], with_header: bool) -> Result<()> {
    let seen = seen_on(disk);
    let put = |range: Range<usize>| {
        let differs = |at: &usize| seen[*at..at + 512] != bytes[*at..at + 512];
        let differing: Vec<usize> = range.step_by(512).filter(differs).collect();
        let (Some(first), Some(last)) = (differing.first(), differing.last()) else { return Ok(()) };
        super::write(disk, *first as u64, &bytes[*first..last + 512])
    };
    let is_luks2 = matches!(Header::read(bytes)?, Header::Luks2(_));
    let header = if is_luks2 { 32 << 10 } else { 4096 };
    put(header..DATA)?;
    if with_header {
        put(0..header)?;
    }
    super::sync(disk)
}

/// As [`each`], but the power goes at each call of `again`. `check` gets what the disk has.
pub(crate) fn each_cut(
    before: &[u8],
    first: impl Fn(&Disk) -> Result<()>,
    again: impl Fn(&Disk) -> Result<()>,
    check: impl Fn(&[u8], &str),
) {
    each_failure(before, first, |disk, name| {
        for calls in 0.. {
            let disk = disk.copied();
            disk.set(Some(Fault::Dead(calls)));
            let is_done = again(&disk).is_ok();
            disk.set(None);
            check(&without_power(&disk), &format!("{name}, power until call {calls}"));
            if is_done {
                break;
            }
        }
    });
}

/// Returns what a program sees on the disk.
fn seen_on(disk: &Disk) -> Vec<u8> {
    let mut seen = vec![0; usize::try_from(disk.size().unwrap()).unwrap()];
    disk.get(&mut seen, 0);
    seen
}

/// Takes the power away, and returns what the disk has.
fn without_power(disk: &Disk) -> Vec<u8> {
    disk.lose_power(|| false);
    seen_on(disk)
}

fn key(text: &str) -> Key {
    Key::new(text.as_bytes()).unwrap()
}

fn pbkdf() -> Pbkdf {
    Pbkdf { kind: PbkdfKind::Pbkdf2, cost: Cost::Iterations(1000), ..Pbkdf::pbkdf2() }
}

fn slot(number: u32) -> NewKeyslot {
    NewKeyslot { number: Some(number), ..NewKeyslot::new(pbkdf()) }
}

/// A header that the passphrase opens.
fn prepared(version: Version, passphrase: &str) -> NewHeader {
    let defaults = if version == Version::Luks1 { FormatOptions::luks1() } else { FormatOptions::luks2() };
    let options = FormatOptions {
        data_offset: Some(DATA as u64),
        cipher: "aes-cbc-essiv:sha256".parse().unwrap(),
        sector_size: (version == Version::Luks2).then_some(underseal_cipher::SectorSize::S512),
        pbkdf: pbkdf(),
        ..defaults
    };
    NewHeader::prepare(SIZE as u64, &key(passphrase), options).unwrap()
}

/// A disk with a header that the passphrase `old` opens.
fn disk(version: Version) -> Vec<u8> {
    let disk = Recorder::new(vec![0; SIZE]);
    prepared(version, "old").write(&disk).unwrap();
    disk.bytes().clone()
}

fn opens(disk: &[u8], passphrase: &str) -> bool {
    once(&[disk, passphrase.as_bytes()], || {
        let options = UnlockOptions::default();
        Header::read(disk).is_ok_and(|header| header.unlock(disk, &key(passphrase), &options).is_ok())
    })
}

/// Gives the volume another passphrase, in this keyslot.
fn add(disk: &Disk, passphrase: &str, number: u32) -> Result<()> {
    let mut header = Header::read(disk)?;
    let opened = header.unlock(disk, &key("old"), &UnlockOptions::default())?;
    header.add_keyslot(disk, &opened.key, &key(passphrase), &slot(number)).map(drop)
}

#[test]
fn a_change_after_one_that_failed_is_kept() {
    for version in [Version::Luks1, Version::Luks2] {
        each(
            &disk(version),
            |disk| add(disk, "one", 6),
            |disk| add(disk, "two", 7),
            |told, found, n| {
                told.unwrap();
                assert!(opens(&found, "old") && opens(&found, "two"), "{version:?}, {n}");
            },
        );
    }
}

/// The header that is read is in memory only, and the next change overwrites what the header on
/// the disk needs.
#[test]
fn a_change_that_is_cut_after_one_that_failed_leaves_a_header_that_opens() {
    for version in [Version::Luks1, Version::Luks2] {
        let replace = |disk: &Disk| {
            let mut header = Header::read(disk)?;
            let opened = header.unlock(disk, &key("old"), &UnlockOptions::default())?;
            let number = header.add_keyslot(disk, &opened.key, &key("new"), &slot(1))?;
            assert_eq!(number, 1);
            header.remove_keyslot(disk, 0, false)
        };
        let add = |disk: &Disk| {
            let mut header = Header::read(disk)?;
            let passphrase = if opens(&seen_on(disk), "old") { "old" } else { "new" };
            let opened = header.unlock(disk, &key(passphrase), &UnlockOptions::default())?;
            header.add_keyslot(disk, &opened.key, &key("third"), &NewKeyslot::new(pbkdf())).map(drop)
        };
        each_cut(&disk(version), replace, add, |found, n| {
            assert!(opens(found, "old") || opens(found, "new"), "{version:?}, {n}");
        });
    }
}

#[test]
fn a_header_that_is_restored_again_is_kept() {
    for version in [Version::Luks1, Version::Luks2] {
        let good = disk(version);
        let backup = Backup::take(&good[..]).unwrap();
        // The place of the backup's keyslot is in use by another passphrase.
        let now = Recorder::new(good.clone());
        let mut header = Header::read(&now).unwrap();
        let opened = header.unlock(&now, &key("old"), &UnlockOptions::default()).unwrap();
        header.add_keyslot(&now, &opened.key, &key("one"), &slot(1)).unwrap();
        header.remove_keyslot(&now, 0, false).unwrap();
        header.add_keyslot(&now, &opened.key, &key("two"), &slot(0)).unwrap();
        let now = now.bytes().clone();
        let restore = |disk: &Disk| {
            let found = backup.found_on(disk)?;
            backup.restore(disk, &found, &RestoreOptions::default()).map(drop)
        };
        each(&now, restore, restore, |told, found, n| {
            told.unwrap();
            assert!(opens(&found, "old"), "{version:?}, {n}");
            assert!(!opens(&found, "one") && !opens(&found, "two"), "{version:?}, {n}");
            // The material of keyslots that are gone is gone.
            assert!(found[MATERIAL] == good[MATERIAL], "{version:?}, {n}");
        });
        // Where there is nothing.
        each(&vec![0; SIZE], restore, restore, |told, found, n| {
            told.unwrap();
            assert!(opens(&found, "old"), "{version:?}, {n}");
        });
    }
}

/// Another program synced material and header at once, and that failed: each may be in memory only.
#[test]
fn material_of_another_program_is_on_the_disk_before_something_depends_on_it() {
    for version in [Version::Luks1, Version::Luks2] {
        let before = disk(version);
        let changed = Recorder::new(before.clone());
        let mut header = Header::read(&changed).unwrap();
        let opened = header.unlock(&changed, &key("old"), &UnlockOptions::default()).unwrap();
        header.add_keyslot(&changed, &opened.key, &key("new"), &slot(1)).unwrap();
        header.remove_keyslot(&changed, 0, false).unwrap();
        let changed = changed.bytes().clone();
        let theirs = |disk: &Disk| by_another_program(disk, &changed, true);
        let open = |disk: &Disk| Header::read(disk)?.secure(disk);
        let other = if version == Version::Luks1 { Version::Luks2 } else { Version::Luks1 };
        let convert = |disk: &Disk| Header::read(disk)?.convert(disk, other).map(drop);
        for (what, again) in [("open", &open as &dyn Fn(&Disk) -> Result<()>), ("convert", &convert)] {
            each(&before, theirs, again, |told, found, n| {
                told.unwrap();
                assert!(opens(&found, "new"), "{version:?}, {what}, {n}");
            });
        }
        // The material of a backup is there already, in memory.
        let backup = Backup::take(&before[..]).unwrap();
        let material = |disk: &Disk| by_another_program(disk, &before, false);
        let restore = |disk: &Disk| {
            let found = backup.found_on(disk)?;
            backup.restore(disk, &found, &RestoreOptions::default()).map(drop)
        };
        each_cut(&changed, material, restore, |found, n| {
            assert!(opens(found, "old") || opens(found, "new"), "{version:?}, {n}");
        });
    }
}

/// The second copy of an older header, behind the new header's keyslots.
#[test]
fn a_copy_that_is_wiped_again_is_gone() {
    const PLACE: usize = 2 << 20;
    let old = disk(Version::Luks2);
    let mut before = vec![0; 3 << 20];
    before[PLACE..PLACE + 4096].copy_from_slice(&old[16 << 10..20 << 10]);
    assert!(before[PLACE..].starts_with(&crate::luks2::SECOND_MAGIC));
    let options = FormatOptions { data_offset: Some(5 << 19), pbkdf: pbkdf(), ..FormatOptions::luks1() };
    let new = NewHeader::prepare(before.len() as u64, &key("new"), options).unwrap();
    assert!(matches!(new.write(&Recorder::new(before.clone())).unwrap(), Header::Luks1(header)
        if header.keyslots_end() < PLACE as u64));
    let format = |disk: &Disk| new.write(disk).map(drop);
    each(&before, format, format, |told, found, n| {
        told.unwrap();
        assert!(opens(&found, "new"), "{n}");
        assert!(!found[PLACE..].starts_with(&crate::luks2::SECOND_MAGIC), "{n}");
    });
}

#[test]
fn what_is_repaired_again_is_kept() {
    let (luks1, luks2) = (disk(Version::Luks1), disk(Version::Luks2));
    let damaged = |disk: &[u8], at: usize, with: &[u8]| {
        let mut disk = disk.to_vec();
        disk[at..at + with.len()].copy_from_slice(with);
        disk
    };
    let cases = [damaged(&luks2, 5000, b"x"), damaged(&luks2, 20_000, b"x"), damaged(&luks1, 72, b"SHA256")];
    for (i, before) in cases.iter().enumerate() {
        let repair = |disk: &Disk| repair(disk, false).map(drop);
        each(before, repair, repair, |told, found, n| {
            told.unwrap();
            let check = crate::Check::of(&found[..], Some(SIZE as u64)).unwrap();
            assert!(check.sound && opens(&found, "old"), "case {i}, {n}: {check:?}");
        });
    }
}

#[test]
fn a_conversion_that_failed_leaves_a_header_that_opens_whatever_follows() {
    for (from, to) in [(Version::Luks1, Version::Luks2), (Version::Luks2, Version::Luks1)] {
        let convert = |disk: &Disk| Header::read(disk)?.convert(disk, to).map(drop);
        each(&disk(from), convert, convert, |told, found, n| {
            assert!(opens(&found, "old"), "to {to:?}, {n}: {told:?}");
            let is_new =
                matches!(Header::read(&found[..]).unwrap(), Header::Luks1(_)) == (to == Version::Luks1);
            assert!(is_new || told.is_err(), "to {to:?}, {n}");
        });
    }
}

#[test]
fn what_is_opened_for_writing_is_what_is_found_after_a_loss_of_power() {
    for version in [Version::Luks1, Version::Luks2] {
        let new = prepared(version, "new");
        let format = |disk: &Disk| new.write(disk).map(drop);
        let uuid = Some(uuid::Uuid::from_u128(7));
        let set = |disk: &Disk| Header::read(disk)?.set(disk, &Settings { uuid, ..Settings::default() });
        for (what, change) in [("format", &format as &dyn Fn(&Disk) -> Result<()>), ("set", &set)] {
            let seen = RefCell::new(None);
            let open = |disk: &Disk| {
                seen.take();
                let mut header = Header::read(disk)?;
                let passphrase = if what == "format" { "new" } else { "old" };
                header.unlock(disk, &key(passphrase), &UnlockOptions::default())?;
                header.secure(disk)?;
                *seen.borrow_mut() = Some((header.uuid(), passphrase));
                Ok(())
            };
            each(&disk(version), change, open, |told, found, n| {
                // A header that is half written does not open.
                if told.is_ok() {
                    let (uuid, passphrase) = seen.take().unwrap();
                    assert!(opens(&found, passphrase), "{version:?}, {what}, {n}");
                    assert_eq!(Header::read(&found[..]).unwrap().uuid(), uuid, "{version:?}, {what}, {n}");
                }
            });
        }
    }
}

#[test]
fn a_header_that_cannot_be_secured_is_not_opened_and_one_that_was_changed_is_read_again() {
    for version in [Version::Luks1, Version::Luks2] {
        let disk = Disk::new(disk(version));
        let mut header = Header::read(&disk).unwrap();
        disk.set(Some(Fault::Sync(0)));
        assert_eq!(header.secure(&disk).unwrap_err().kind(), crate::ErrorKind::Io);
        disk.set(None);
        add(&disk, "one", 3).unwrap();
        assert_eq!(header.secure(&disk).unwrap_err().kind(), crate::ErrorKind::Busy);
        let size = disk.size().unwrap();
        let mut before = vec![0; usize::try_from(size).unwrap()];
        disk.get(&mut before, 0);
        Header::read(&disk).unwrap().secure(&disk).unwrap();
        let mut after = before.clone();
        disk.get(&mut after, 0);
        assert!(before == after, "{version:?}: no byte changes");
    }
}
