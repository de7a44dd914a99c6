//! Starts of reencryptions that are refused, or repeated after a crash.

use serde_json::{Map, Value, json};

use super::*;
use crate::ErrorKind;

/// Changes a header as another program may.
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
    // The longest token that leaves room for a start.
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

#[test]
fn data_are_not_moved_over_a_header_or_what_else_is_before_them() {
    let (disk, mut header, key) = disk();
    disk.forget_events();
    // As if the header were detached.
    for over_header in [true, false] {
        let options = DecryptOptions { over_header, ..DECRYPT };
        let refused = header.begin_decryption(&disk, &disk, &key, &options).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BadOption, "{refused}");
    }
    // The header is detached, and the bytes before the data have an unknown owner, or are another
    // volume's header.
    let file = Recorder::new(disk.bytes()[..OFFSET].to_vec());
    let mut strange = disk.bytes().clone();
    strange[..OFFSET].copy_from_slice(&pattern(OFFSET));
    let other = self::disk().0.bytes().clone();
    for (bytes, over_header) in [(strange, false), (other.clone(), false), (other, true)] {
        let data = Recorder::new(bytes);
        let options = DecryptOptions { over_header, ..DECRYPT };
        let refused = header.begin_decryption(&file, &data, &key, &options).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BadOption, "{refused}");
        assert!(data.is_untouched());
    }
    assert!(disk.is_untouched() && file.is_untouched());
}

#[test]
fn a_decryption_that_is_made_again_leaves_nothing_of_the_header_on_the_device() {
    let (device, header, key) = disk();
    let file = Recorder::new(vec![0; OFFSET]);
    let second = usize::try_from(header.stored.binary.size).unwrap();
    let before = device.bytes()[second..2 * second].to_vec();
    let mut exported = header.export(&device, &file, &key, &DECRYPT).unwrap();
    // As after a crash when only the first copy was wiped.
    storage::write(&device, second as u64, &before).unwrap();
    assert!(read(&device).is_some());
    exported.begin_decryption(&file, &device, &key, &DECRYPT).unwrap();
    assert!(matches!(Header::read(&device), Ok(None)));
    assert_eq!(go_on(&file, &device, &key, true).unwrap(), Outcome::Finished);
    assert!(device.bytes()[..DATA] == pattern(DATA));
}

/// A device; another program removes the header's new file as it is synced.
struct RemovingDevice {
    disk: Recorder,
    header: std::path::PathBuf,
    syncs_left: std::cell::Cell<u32>,
}

impl ReadAt for RemovingDevice {
    fn size(&self) -> std::io::Result<u64> {
        ReadAt::size(&self.disk)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.disk.read_exact_at(buf, offset)
    }
}

impl Target for RemovingDevice {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> std::io::Result<()> {
        self.disk.write_all_at(bytes, offset)
    }

    fn sync_all(&self) -> std::io::Result<()> {
        self.syncs_left.set(self.syncs_left.get().wrapping_sub(1));
        if self.syncs_left.get() == 0 {
            std::fs::remove_file(&self.header)?;
        }
        self.disk.sync_all()
    }

    fn set_len(&self, size: u64) -> std::io::Result<()> {
        self.disk.set_len(size)
    }
}

#[test]
fn a_header_whose_new_file_is_removed_comes_back_to_the_device() {
    let folder = tempfile::tempdir().unwrap();
    let mut failed = 0;
    for syncs in 1.. {
        let (disk, header, key) = disk();
        let before = disk.bytes().clone();
        let path = folder.path().join(syncs.to_string());
        let device = RemovingDevice { disk, header: path.clone(), syncs_left: syncs.into() };
        match header.begin_decryption_into(&path, &device, &key, &DECRYPT) {
            Ok(file) => {
                file.keeps_name().unwrap();
                break;
            }
            Err(e) => assert!(format!("{e:?}").contains("was removed or replaced"), "{syncs}: {e:?}"),
        }
        failed += 1;
        let end = usize::try_from(header.keyslots_end()).unwrap();
        let bytes = device.disk.bytes();
        assert!(bytes[..end] == before[..end], "{syncs}: the header");
        assert!(bytes[OFFSET..] == before[OFFSET..], "{syncs}: the data");
    }
    assert!(failed > 3, "{failed}");
}
