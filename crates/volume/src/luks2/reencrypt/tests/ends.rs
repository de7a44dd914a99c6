//! Ends of reencryptions: no old bytes are left, and an attacker without the keys cannot cause an
//! end.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::*;
use crate::ErrorKind;
use crate::luks2::reencrypt::ledger::write_segments;
use crate::reencrypt::Ledger as _;

/// Returns the number of sectors of `plain` in `bytes`.
fn plain_sectors(bytes: &[u8], plain: &[u8]) -> usize {
    let known: HashSet<&[u8]> = plain.chunks(512).collect();
    bytes.chunks(512).filter(|sector| known.contains(sector)).count()
}

#[test]
fn no_plaintext_is_left_where_a_header_came_in_front() {
    let (plain, device, key) = in_front(200 * KIB, Some(96 * KIB));
    let bytes = device.bytes().clone();
    // The start clears all bytes by which a file system is recognized, and more.
    assert_eq!(plain_sectors(&bytes[..OFFSET], &plain), 0);
    assert_eq!(go_on(&device, &device, &key, false).unwrap(), Outcome::Finished);
    assert_eq!(plain_sectors(&device.bytes(), &plain), 0);
}

#[test]
fn no_plaintext_is_left_for_good_in_the_journal_wherever_the_end_is_cut_off() {
    let plain = pattern(DATA);
    let disk = Recorder::new([&plain[..], &vec![0; OFFSET]].concat());
    let (data, file) = (disk.part(0..DATA as u64), disk.part(DATA as u64..(DATA + OFFSET) as u64));
    let keyslots_size = Some((OFFSET - 32 * KIB) as u64);
    let options = EncryptOptions {
        format: FormatOptions { detached: true, data_offset: Some(0), keyslots_size, ..format_options() },
        direction: Direction::Forward,
        protection: Protection::Journal,
        reduce: None,
        size: None,
    };
    let new = NewVolume::prepare(DATA as u64, &passphrase(), options).unwrap();
    new.write(&file).unwrap();
    let key = new.into_key();
    disk.forget_events();
    let before = disk.bytes().clone();
    assert_eq!(go_on(&file, &data, &key, true).unwrap(), Outcome::Finished);
    let mut seen = [0; 3];
    disk.each_crash(before, |disk, at| {
        let (_, file) = disk.split_at(DATA);
        let mut header = read(file).unwrap_or_else(|| panic!("{at}"));
        let status = header.reencryption().unwrap();
        // cryptsetup would encrypt the data once more.
        assert_ne!(status.map(|status| status.stage), Some(Stage::Final), "{at}");
        let is_plain = plain_sectors(file, &plain) > 0;
        match (status, is_plain) {
            (None, true) => {
                // The header notes the areas to be wiped, and the next program that changes the
                // header wipes them.
                let file = Recorder::new(file.to_vec());
                header.repair(&file).unwrap();
                assert!(header.wipe_unwiped(&file).unwrap(), "{at}");
                assert_eq!(plain_sectors(&file.bytes(), &plain), 0, "{at}");
                assert!(!read(&file).unwrap().has_unwiped(), "{at}");
                seen[2] += 1;
            }
            (None, false) => seen[0] += 1,
            (Some(_), is_plain) => seen[1] += usize::from(is_plain),
        }
    });
    assert!(seen.iter().all(|&count| count > 1), "{seen:?}");
}

/// cryptsetup writes a header that calls all of the data new, and takes one for a reencryption that
/// has not begun: it would encrypt the data once more.
#[test]
fn an_end_that_cryptsetup_recorded_wipes_nothing_before_the_header_forgets_it() {
    let (disk, mut header, key) = disk();
    let both = begin(&disk, &mut header, key, &change(CHECKSUM));
    let finished = Recorder::new(disk.bytes().clone());
    assert_eq!(go_on(&finished, &finished, &both, false).unwrap(), Outcome::Finished);
    disk.write_all_at(&finished.bytes()[OFFSET..], OFFSET as u64).unwrap();
    let ledger = Ledger::resume(&disk, &both, (OFFSET + DATA) as u64, &ResumeOptions::default()).unwrap();
    let mut progress = ledger.progress();
    while let Some(step) = ledger.plan().step(progress) {
        progress = step.finished();
    }
    let parts = ledger.plan().parts(progress);
    drop(ledger);
    let mut header = read(&disk).unwrap();
    let of = Reencryption::parse(header.metadata()).unwrap().unwrap();
    let record =
        |document: &mut Map<String, Value>, _: &Metadata| write_segments(document, &of, &parts, None);
    header.update(&disk, record, |()| Ok(())).unwrap();
    disk.forget_events();
    let before = disk.bytes().clone();
    assert_eq!(read(&disk).unwrap().reencryption().unwrap().map(|status| status.stage), Some(Stage::Final));
    assert_eq!(go_on(&disk, &disk, &both, false).unwrap(), Outcome::Finished);
    let mut seen = [0; 2];
    disk.each_crash(before.clone(), |disk, at| {
        let header = read(disk).unwrap_or_else(|| panic!("{at}"));
        let is_over = header.reencryption().unwrap().is_none();
        if !is_over {
            assert!(disk[32 * KIB..] == before[32 * KIB..], "{at}: wiped before the header forgets it");
        }
        let volume = activate(&header, &both, disk.len(), false).unwrap_or_else(|e| panic!("{at}: {e}"));
        assert!(plaintext(&volume, disk) == pattern(DATA), "{at}");
        seen[usize::from(is_over)] += 1;
    });
    assert!(seen[0] > 0 && seen[1] > 1, "{seen:?}");
    assert!(!read(&disk).unwrap().has_unwiped());
}

#[test]
fn an_end_that_was_forged_without_the_keys_wipes_no_data() {
    let total = 1024 * KIB;
    let keyslots_size = Some((OFFSET - 32 * KIB) as u64);
    for mode in ["encrypt", "reencrypt"] {
        let file = Recorder::new(vec![0; OFFSET]);
        let format =
            FormatOptions { detached: true, data_offset: Some(0), keyslots_size, ..format_options() };
        NewHeader::prepare(total as u64, &passphrase(), format).unwrap().write(&file).unwrap();
        let data = Recorder::new(pattern(total));
        let mut header = read(&file).unwrap();
        let forge = |document: &mut Map<String, Value>, _: &Metadata| {
            document["keyslots"]["1"] = json!({
                "type": "reencrypt", "key_size": 1, "mode": mode, "direction": "backward", "priority": 0,
                "area": { "type": "datashift", "offset": "200704", "size": "4096", "shift_size": "262144" },
            });
            let mut regular = document["segments"]["0"].clone();
            let mut previous = regular.clone();
            regular["offset"] = json!("262144");
            let mut last = regular.clone();
            regular["size"] = json!("262144");
            last["flags"] = json!(["backup-final"]);
            let mut digest = document["digests"]["0"].clone();
            document["digests"]["0"]["segments"] = json!(["0", "2"]);
            let moved = json!({ "type": "linear", "offset": "524288", "size": "262144", "flags": ["backup-moved-segment"] });
            let mut segments = json!({ "0": regular, "2": last });
            if mode == "encrypt" {
                previous = json!({ "type": "linear", "offset": "0", "size": "262144" });
                segments["3"] = moved;
            } else {
                // A digest of an unknown key.
                (digest["keyslots"], digest["segments"]) = (json!([]), json!(["1"]));
                document["digests"]["2"] = digest.clone();
            }
            previous["flags"] = json!(["backup-previous"]);
            segments["1"] = previous;
            document.insert("segments".into(), segments);
            (digest["keyslots"], digest["segments"]) = (json!(["1"]), json!([]));
            document["digests"]["1"] = digest;
            document["config"]["requirements"] = json!({ "mandatory": ["online-reencrypt-v2"] });
            Ok(())
        };
        header.update(&file, forge, |()| Ok(())).unwrap();
        assert_eq!(header.reencryption().unwrap().map(|status| status.stage), Some(Stage::Final), "{mode}");
        let key = header.unlock(&file, &passphrase(), &UnlockOptions::default()).unwrap().key;
        let activated = activate(&header, &key, total, true).map(drop).map_err(|e| e.kind());
        let outcome = go_on(&file, &data, &key, true).map_err(|e| e.kind());
        let expected = if mode == "encrypt" { Err(ErrorKind::Untrusted) } else { Ok(()) };
        assert_eq!(activated, expected, "{mode}");
        assert_eq!(outcome.map(drop), expected, "{mode}");
        assert!(data.bytes()[..] == pattern(total), "{mode}");
    }
}
