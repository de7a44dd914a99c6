//! Syncs that fail: the page cache shows the new bytes from then on, and the disk has the old ones.
//! The same command again, and a command that depends on the bytes, puts them on the disk.

use std::cell::RefCell;

use super::ReadAt as _;
use crate::reencrypt::tests::faults::{Disk, Fault};
use crate::storage::recorder::Recorder;
use crate::{
    Backup, Cost, FormatOptions, Header, Key, NewHeader, NewKeyslot, Pbkdf, PbkdfKind, RestoreOptions,
    Result, Settings, UnlockOptions, Version, repair,
};

/// Where the data begin: behind eight keyslots with keys of 32 bytes.
const DATA: usize = 260 << 12;
const SIZE: usize = DATA + (64 << 10);

/// Does something on a disk of which one sync fails, each in its turn, then `again` on the same
/// disk without a fault, and takes the power away. `check` gets what `again` said, and what the
/// disk has.
pub(crate) fn each(
    before: &[u8],
    first: impl Fn(&Disk) -> Result<()>,
    again: impl Fn(&Disk) -> Result<()>,
    check: impl Fn(Result<()>, Vec<u8>, u64),
) {
    for n in 0.. {
        let disk = Disk::new(before.to_vec());
        disk.set(Some(Fault::Sync(n)));
        let done = first(&disk);
        if disk.set(None).is_some() {
            done.unwrap();
            assert!(n > 0, "it syncs");
            return;
        }
        let told = again(&disk);
        disk.lose_power(|| false);
        let mut found = vec![0; before.len()];
        disk.get(&mut found, 0);
        check(told, found, n);
    }
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
    let header = Header::read(disk).unwrap();
    header.unlock(disk, &key(passphrase), &UnlockOptions::default()).is_ok()
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
                assert!(opens(&found, "old") && opens(&found, "two"), "{version:?}, sync {n}");
            },
        );
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
            assert!(opens(&found, "old"), "{version:?}, sync {n}");
            assert!(!opens(&found, "one") && !opens(&found, "two"), "{version:?}, sync {n}");
        });
        // Where there is nothing.
        each(&vec![0; SIZE], restore, restore, |told, found, n| {
            told.unwrap();
            assert!(opens(&found, "old"), "{version:?}, sync {n}");
        });
    }
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
            assert!(check.sound && opens(&found, "old"), "case {i}, sync {n}: {check:?}");
        });
    }
}

#[test]
fn a_conversion_that_failed_leaves_a_header_that_opens_whatever_follows() {
    for (from, to) in [(Version::Luks1, Version::Luks2), (Version::Luks2, Version::Luks1)] {
        let convert = |disk: &Disk| Header::read(disk)?.convert(disk, to).map(drop);
        each(&disk(from), convert, convert, |told, found, n| {
            assert!(opens(&found, "old"), "to {to:?}, sync {n}: {told:?}");
            let is_new =
                matches!(Header::read(&found[..]).unwrap(), Header::Luks1(_)) == (to == Version::Luks1);
            assert!(is_new || told.is_err(), "to {to:?}, sync {n}");
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
                    assert!(opens(&found, passphrase), "{version:?}, {what}, sync {n}");
                    assert_eq!(
                        Header::read(&found[..]).unwrap().uuid(),
                        uuid,
                        "{version:?}, {what}, sync {n}"
                    );
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
