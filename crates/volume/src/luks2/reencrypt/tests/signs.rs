//! Reencryptions whose metadata have no digest: after signing they can be resumed; metadata that
//! contradict each other stay unsigned.

use serde_json::{Map, Value, json};

use super::*;
use crate::ErrorKind;
use crate::reencrypt::{Ledger as _, Progress};

/// Changes the document on the disk, and returns the new header.
fn edited(disk: &Recorder, edit: impl FnOnce(&mut Map<String, Value>)) -> Header {
    let mut header = read(disk).unwrap();
    let all = |document: &mut Map<String, Value>, _: &Metadata| {
        edit(document);
        Ok(())
    };
    header.update(disk, all, |()| Ok(())).unwrap();
    header
}

/// Removes the digest: all of it, or only the requirement of this version.
fn unsign(document: &mut Map<String, Value>, version_1: bool, keep_digest: bool) {
    if version_1 {
        document["config"]["requirements"] = json!({ "mandatory": ["online-reencrypt"] });
    }
    let digests = document["digests"].as_object_mut().unwrap();
    if keep_digest {
        let of_slot = digests.values_mut().find(|digest| digest["segments"] == json!([])).unwrap();
        of_slot["iterations"] = json!(1234);
    } else {
        digests.retain(|_, digest| digest["segments"] != json!([]));
    }
}

fn sign(disk: &Recorder, header: &mut Header, key: &VolumeKey) -> Result<()> {
    header.sign_reencryption(disk, key, (OFFSET + DATA) as u64, &ResumeOptions::default())
}

#[test]
fn a_reencryption_without_a_digest_is_signed_and_goes_on_from_each_stage() {
    for (version_1, keep_digest) in [(true, false), (true, true), (false, false)] {
        for hot in [None, Some(4096)] {
            let (start, mut header, key) = disk();
            let key = begin(&start, &mut header, key, &change(Protection::Journal));
            let size = (OFFSET + DATA) as u64;
            let mut ledger = Ledger::resume(&start, &key, size, &ResumeOptions::default()).unwrap();
            if hot.is_some() {
                // The bytes that the step's journal would keep.
                let old = start.bytes()[OFFSET..OFFSET + 4096].to_vec();
                ledger.write_area(0, &old).unwrap();
                ledger.record(Progress { done: 0, hot }).unwrap();
            }
            drop(ledger);
            let mut header = edited(&start, |document| unsign(document, version_1, keep_digest));
            if version_1 {
                // Before 2.4.3 the step in progress was in the list of the new key only.
                header = edited(&start, |document| {
                    let lists: Vec<_> = ["0", "1"].map(|n| document["digests"][n]["segments"].clone()).into();
                    if hot.is_some() && lists[1].as_array().unwrap().contains(&"0".into()) {
                        document["digests"]["0"]["segments"].as_array_mut().unwrap().retain(|n| n != "0");
                    }
                });
            }
            assert!(header.has_unsigned_reencryption());
            let refused = go_on(&start, &start, &key, false).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unsupported);
            assert!(refused.to_string().contains("header repair"), "{refused}");
            sign(&start, &mut header, &key).unwrap();
            assert!(!header.has_unsigned_reencryption());
            assert_eq!(header.json()["config"]["requirements"]["mandatory"], json!(["online-reencrypt-v2"]));
            assert_eq!(go_on(&start, &start, &key, false).unwrap(), Outcome::Finished);
            let header = read(&start).unwrap();
            let bytes = start.bytes().clone();
            let opened = header.unlock(&bytes[..], &passphrase(), &UnlockOptions::default()).unwrap();
            let volume = activate(&header, &opened.key, OFFSET + DATA, false).unwrap();
            assert!(plaintext(&volume, &bytes) == pattern(DATA));
        }
    }
}

#[test]
fn a_decryption_over_its_header_is_signed_as_one() {
    let (whole, header, key) = disk();
    let file = Recorder::new(vec![0; OFFSET]);
    let mut exported = header.export(&whole, &file, &key, &DECRYPT).unwrap();
    exported.begin_decryption(&file, &whole, &key, &DECRYPT).unwrap();
    let mut header = edited(&file, |document| unsign(document, false, false));
    let options = ResumeOptions { detached: true, ..ResumeOptions::default() };
    header.sign_reencryption(&file, &key, (OFFSET + DATA) as u64, &options).unwrap();
    assert_eq!(header.json()["config"]["requirements"]["mandatory"], json!(["online-reencrypt-v3"]));
    assert_eq!(go_on(&file, &whole, &key, true).unwrap(), Outcome::Finished);
    assert!(whole.bytes()[..DATA] == pattern(DATA));
}

#[test]
fn what_does_not_fit_and_what_the_keys_do_not_open_is_not_signed() {
    type Edit = fn(&mut Map<String, Value>);
    let cases: [(Edit, ErrorKind); 4] = [
        (|document| document["keyslots"]["2"]["mode"] = "decrypt".into(), ErrorKind::BadHeader),
        (|document| document["keyslots"]["2"]["key_size"] = 16.into(), ErrorKind::BadHeader),
        (|document| document["segments"]["0"]["iv_tweak"] = "8".into(), ErrorKind::BadHeader),
        (|document| document["segments"]["2"]["offset"] = "4096".into(), ErrorKind::BadHeader),
    ];
    for (edit, kind) in cases {
        let (start, mut header, key) = disk();
        let key = begin(&start, &mut header, key, &change(Protection::Journal));
        let mut header = edited(&start, |document| {
            unsign(document, true, false);
            edit(document);
        });
        let before = start.bytes().clone();
        assert_eq!(sign(&start, &mut header, &key).unwrap_err().kind(), kind);
        assert!(*start.bytes() == before, "nothing is written");
    }
    let (start, mut header, key) = disk();
    let mut both = begin(&start, &mut header, key, &change(Protection::Journal));
    both.other = None;
    let mut header = edited(&start, |document| unsign(document, true, false));
    let before = start.bytes().clone();
    assert_eq!(sign(&start, &mut header, &both).unwrap_err().kind(), ErrorKind::WrongPassphrase);
    assert!(*start.bytes() == before, "nothing is written");
}
