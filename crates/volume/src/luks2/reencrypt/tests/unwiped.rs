//! Keyslot areas after the end of a reencryption: another program changes the header then, or the
//! end is interrupted.

use std::cell::Cell;
use std::ops::Range;

use serde_json::json;

use super::*;
use crate::luks2::reencrypt::arrange::Document;
use crate::reencrypt::{Claim, Foreground, Pace};
use crate::storage::recorder::left_of;

/// A disk where another program changes the header between its last update and the wipe.
struct AtTheEnd<'d> {
    disk: &'d Recorder,
    edit: &'d dyn Fn(&mut Document),
    changed: Cell<bool>,
}

struct Last<'l>(&'l AtTheEnd<'l>);

impl Foreground for AtTheEnd<'_> {
    fn claim(&self, _range: Range<u64>) -> Result<Box<dyn Claim + '_>> {
        Ok(Box::new(Last(self)))
    }

    fn claims_ahead(&self) -> bool {
        false
    }

    fn pace(&self, _done: u64, _left: u64) -> Pace {
        Pace::Go
    }
}

impl Claim for Last<'_> {
    fn relay(&self, _volume: Volume) -> Result<()> {
        let mut header = read(self.0.disk).unwrap();
        if header.reencryption().unwrap().is_none() {
            // cryptsetup does not wipe the noted areas.
            let noted = header.json()["tokens"].clone();
            let edit = |document: &mut Document, _: &Metadata| {
                (self.0.edit)(document);
                document.insert("tokens".into(), noted);
                Ok(())
            };
            header.update_unwiped(self.0.disk, edit).unwrap();
            self.0.changed.set(true);
        }
        Ok(())
    }

    fn give_up(&self) {
        panic!("nothing fails");
    }
}

/// Returns the places of the old keyslot and of a step's protection.
fn areas(header: &Header) -> [Range<usize>; 2] {
    let slot = Reencryption::parse(header.metadata()).unwrap().unwrap().slot;
    [0, slot].map(|slot| {
        let (_, area) = header.areas().into_iter().find(|(number, _)| *number == slot).unwrap();
        usize::try_from(area.start).unwrap()..usize::try_from(area.end).unwrap()
    })
}

fn finish_beside(disk: &Recorder, key: &VolumeKey, edit: &dyn Fn(&mut Document)) {
    let options = ResumeOptions { hot_zone: Some(DATA as u64 / 2), ..ResumeOptions::default() };
    let mut ledger = Ledger::resume(disk, key, (OFFSET + DATA) as u64, &options).unwrap();
    let users = AtTheEnd { disk, edit, changed: Cell::new(false) };
    assert_eq!(run(disk, &mut ledger, &users, &Options::default()).unwrap(), Outcome::Finished);
    assert!(users.changed.get());
}

#[test]
fn the_old_keyslot_is_wiped_though_another_program_changes_the_header_meanwhile() {
    let (disk, mut header, key) = disk();
    let both = begin(&disk, &mut header, key, &change(CHECKSUM));
    let [old, _] = areas(&header);
    let old = old.start..old.start + 64_000;
    let before = disk.bytes()[old.clone()].to_vec();
    finish_beside(&disk, &both, &|document| document["config"]["x"] = json!("y"));
    let header = read(&disk).unwrap();
    assert_eq!(header.json()["config"]["x"], json!("y"));
    assert_eq!(left_of(&before, &disk.bytes()[old]), 0);
    assert!(!header.has_unwiped());
    assert_eq!(header.json()["tokens"], json!({}));
}

#[test]
fn a_keyslot_that_came_meanwhile_stays_and_the_rest_is_wiped() {
    const SLOT: usize = 64 * KIB;
    const JOURNAL: usize = DATA / 2;
    let (disk, mut header, key) = disk();
    let both = begin(&disk, &mut header, key, &change(Protection::Journal));
    let [_, area] = areas(&header);
    let slot = area.start + JOURNAL..area.start + JOURNAL + SLOT;
    assert!(slot.end < area.end);
    let came = json!([slot.start.to_string(), SLOT.to_string()]);
    let before = disk.bytes().clone();
    finish_beside(&disk, &both, &|document| {
        let (number, digest) = {
            let digests = document["digests"].as_object().unwrap();
            let (name, digest) = digests.iter().next().unwrap();
            (digest["keyslots"][0].as_str().unwrap().to_owned(), name.clone())
        };
        let mut slot = document["keyslots"][&number].clone();
        (slot["area"]["offset"], slot["area"]["size"]) = (came[0].clone(), came[1].clone());
        document["keyslots"]["9"] = slot;
        document["digests"][&digest]["keyslots"].as_array_mut().unwrap().push(json!("9"));
    });
    let now = disk.bytes().clone();
    assert!(now[slot.clone()] == before[slot.clone()]);
    // The last step's old bytes.
    assert_eq!(left_of(&before[OFFSET + JOURNAL..], &now[area.start..slot.start]), 0);
    assert!(now[slot.end..area.end] != before[slot.end..area.end]);
    assert!(!read(&disk).unwrap().has_unwiped());
}

#[test]
fn a_power_cut_after_the_last_update_leaves_nothing_for_good() {
    let (disk, mut header, key) = disk();
    let both = begin(&disk, &mut header, key, &change(CHECKSUM));
    let [old, _] = areas(&header);
    let old = old.start..old.start + 64_000;
    disk.forget_events();
    let before = disk.bytes().clone();
    let material = before[old.clone()].to_vec();
    assert_eq!(go_on(&disk, &disk, &both, false).unwrap(), Outcome::Finished);
    let (mut left, mut noted) = (0, 0);
    disk.each_crash(before, |disk, at| {
        let header = read(disk).unwrap_or_else(|| panic!("{at}"));
        let over = header.reencryption().unwrap().is_none();
        if over && left_of(&material, &disk[old.clone()]) > 0 {
            left += 1;
            assert!(header.has_unwiped(), "{at}");
        }
        // Only some of the states, as many are alike.
        if over && header.has_unwiped() && noted < 40 {
            noted += 1;
            let disk = Recorder::new(disk.to_vec());
            let mut header = read(&disk).unwrap();
            header.repair(&disk).unwrap();
            assert!(header.wipe_unwiped(&disk).unwrap(), "{at}");
            assert!(!header.wipe_unwiped(&disk).unwrap(), "{at}");
            assert_eq!(left_of(&material, &disk.bytes()[old.clone()]), 0, "{at}");
            assert_eq!(opened(&read(&disk).unwrap(), &disk.bytes()), 1, "{at}");
        }
    });
    assert!(left > 1 && noted > 1, "{left}, {noted}");
}

#[test]
fn a_note_that_somebody_else_wrote_wipes_nothing_but_free_room_among_the_keyslots() {
    let (disk, mut header, _key) = disk();
    let before = disk.bytes().clone();
    let everything = json!({ "offset": "0", "size": u64::MAX.to_string() });
    let odd = [
        json!([everything.clone(), everything, { "offset": "-1", "size": "5" }, { "offset": u64::MAX.to_string(), "size": "2" }]),
        json!({ "offset": "0" }),
        json!([[], 7, null, "0"]),
    ];
    let forge = |document: &mut Document, _: &Metadata| {
        for (number, areas) in odd.iter().enumerate() {
            document["tokens"][number.to_string()] =
                json!({ "type": "underseal-wipe", "keyslots": [], "areas": areas });
        }
        document["tokens"]["7"] = json!({ "type": "another", "keyslots": ["0"], "areas": 1 });
        Ok(())
    };
    header.update(&disk, forge, |()| Ok(())).unwrap();
    assert!(header.wipe_unwiped(&disk).unwrap());
    let tokens = header.json()["tokens"].as_object().unwrap();
    assert_eq!(tokens.keys().collect::<Vec<_>>(), ["7"]);
    let now = disk.bytes().clone();
    let (_, slot) = header.areas().into_iter().next().unwrap();
    let slot = usize::try_from(slot.start).unwrap()..usize::try_from(slot.end).unwrap();
    assert!(now[slot.clone()] == before[slot.clone()], "a keyslot");
    assert!(now[slot.end..OFFSET] != before[slot.end..OFFSET], "the rest of the room");
    assert!(now[OFFSET..] == before[OFFSET..], "data");
    assert_eq!(opened(&header, &now), 1);
}

#[test]
fn the_room_for_keyslots_stays_as_large_as_it_is() {
    let size = 192 * KIB as u64;
    let disk = Recorder::new(vec![0; OFFSET + DATA]);
    let options = FormatOptions { keyslots_size: Some(size), ..format_options() };
    let new = NewHeader::prepare((OFFSET + DATA) as u64, &passphrase(), options).unwrap();
    new.write(&disk).unwrap();
    let gap = 32 * KIB + 192 * KIB..OFFSET;
    disk.write_all_at(&pattern(gap.len()), gap.start as u64).unwrap();
    let mut header = read(&disk).unwrap();
    let both = begin(&disk, &mut header, new.into_key(), &change(CHECKSUM));
    assert_eq!(go_on(&disk, &disk, &both, false).unwrap(), Outcome::Finished);
    let header = read(&disk).unwrap();
    assert_eq!(header.json()["config"]["keyslots_size"], json!(size.to_string()));
    assert!(disk.bytes()[gap.clone()] == pattern(gap.len()), "what lies before the data is somebody's");
}
