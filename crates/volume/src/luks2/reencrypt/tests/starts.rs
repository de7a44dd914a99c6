//! Starts of reencryptions that are refused, or made again after a crash.

use serde_json::{Map, json};

use super::*;
use crate::ErrorKind;

/// Changes a header as somebody else may.
fn change_document(
    header: &mut Header,
    on: &Recorder,
    change: impl FnOnce(&mut Map<String, Value>),
) -> Result<()> {
    let change = |document: &mut Map<String, Value>, _: &Metadata| {
        change(document);
        Ok(())
    };
    header.update(on, change, |()| Ok(()))
}

#[test]
fn what_can_begin_has_room_in_the_header_for_every_step() {
    let (start, ..) = disk();
    let start = start.bytes().clone();
    let mut refused = 0;
    // The longest token with which it begins.
    for pad in (6000..11_500).rev().step_by(20) {
        let disk = Recorder::new(start.clone());
        let mut header = read(&disk).unwrap();
        let token = json!({ "type": "x", "keyslots": [], "pad": "x".repeat(pad) });
        if change_document(&mut header, &disk, |document| document["tokens"]["0"] = token).is_err() {
            continue;
        }
        let key = header.unlock(&disk, &passphrase(), &UnlockOptions::default()).unwrap().key;
        let (secret, new) = (passphrase(), header.like_keyslot(0).unwrap());
        let passphrases = [Passphrase { slot: 0, passphrase: &secret, new }];
        let size = (OFFSET + DATA) as u64;
        match header.begin_reencryption(&disk, key, &passphrases, size, &change(CHECKSUM)) {
            Ok(both) => {
                assert!(refused > 0);
                assert_eq!(go_on(&disk, &disk, &both, false).unwrap(), Outcome::Finished, "{pad}");
                return;
            }
            Err(e) => {
                refused += usize::from(e.kind() == ErrorKind::NoRoom);
                assert!(read(&disk).unwrap().reencryption().unwrap().is_none());
            }
        }
    }
    panic!("it never begins");
}

#[test]
fn copies_are_made_of_any_length() {
    for len in [0, 512, 1 << 20, (5 << 19) + 512] {
        let [from, to] = [pattern(4 << 20), vec![0; 4 << 20]].map(Recorder::new);
        encrypt::copy((&from, 4096), (&to, 8192), len as u64).unwrap();
        let (from, bytes) = (from.bytes(), to.bytes());
        assert!(bytes[8192..8192 + len] == from[4096..4096 + len], "{len}");
        assert!(bytes[8192 + len..].iter().all(|&byte| byte == 0), "{len}");
    }
}
