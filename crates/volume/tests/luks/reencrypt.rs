//! Reencryptions interrupted by cryptsetup: opened in their present state, recovered, resumed and
//! finished by underseal.

use std::cell::Cell;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use underseal_volume::luks2::{Ledger, ResumeOptions, Stage};
use underseal_volume::reencrypt::{Alone, Claim, Foreground, Options, Outcome, Pace, run};
use underseal_volume::{ActivateOptions, ErrorKind, Header, Result, UnlockOptions, VolumeKey, luks2};

use crate::support::*;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/luks-reencrypt");

/// A volume without users; the reencryption stops after this many steps.
pub(crate) struct Steps(pub(crate) Cell<u64>);

impl Foreground for Steps {
    fn claim(&self, range: Range<u64>) -> Result<Box<dyn Claim + '_>> {
        Alone.claim(range)
    }

    fn claims_ahead(&self) -> bool {
        false
    }

    fn pace(&self, _: u64, _: u64) -> Pace {
        match self.0.get().checked_sub(1) {
            Some(left) => {
                self.0.set(left);
                Pace::Go
            }
            None => Pace::Stop,
        }
    }
}

fn manifest(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(Path::new(FOLDER).join(name)).unwrap()).unwrap()
}

fn stream(label: &str, len: usize) -> Vec<u8> {
    use sha2::{Digest, Sha256};
    let block = |i: u64| Sha256::new().chain_update(label).chain_update(i.to_le_bytes()).finalize();
    (0..).map(block).flat_map(|b| b.to_vec()).take(len).collect()
}

fn unpack(scratch: &Scratch, name: &str) -> PathBuf {
    let packed = Path::new(FOLDER).join(name);
    scratch.file(name.strip_suffix(".xz").unwrap(), &run_raw("xz", &["-dc", packed.to_str().unwrap()]))
}

/// The data, and the header, which may be detached.
pub(crate) struct Disk {
    pub(crate) data: PathBuf,
    pub(crate) header: PathBuf,
}

impl Disk {
    fn unpack(scratch: &Scratch, image: &Value) -> Self {
        let files = image["files"].as_array().unwrap();
        let mut files = files.iter().map(|name| unpack(scratch, name.as_str().unwrap()));
        let data = files.next().unwrap();
        Self { header: files.next().unwrap_or_else(|| data.clone()), data }
    }

    pub(crate) fn read(&self) -> Result<Box<luks2::Header>> {
        match Header::read(&open(&self.header))? {
            Header::Luks2(header) => Ok(header),
            other => panic!("{other:?}"),
        }
    }

    fn is_detached(&self) -> bool {
        self.header != self.data
    }

    pub(crate) fn unlock(&self, passphrase: &[u8]) -> Result<VolumeKey> {
        let (file, options) = (open(&self.header), UnlockOptions::default());
        Ok(self.read()?.unlock(&file, &key(passphrase), &options)?.key)
    }

    pub(crate) fn activate(&self, key: &VolumeKey) -> Result<underseal_volume::Volume> {
        let options = ActivateOptions { detached: self.is_detached(), ..ActivateOptions::default() };
        self.read()?.activate(key, size(&self.data), &options)
    }

    /// Resumes for `steps` steps, of 32 KiB at most.
    pub(crate) fn go_on(&self, key: &VolumeKey, steps: u64) -> Result<Outcome> {
        let (header, data) = (open(&self.header), open(&self.data));
        let options =
            ResumeOptions { detached: self.is_detached(), hot_zone: Some(32 << 10), ..Default::default() };
        let until = Instant::now() + Duration::from_secs(60);
        let mut ledger = loop {
            match Ledger::resume(&header, key, size(&self.data), &options) {
                // Several tests have copies of one image, and with it one lock.
                Err(e) if e.kind() == ErrorKind::Busy && Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                ledger => break ledger?,
            }
        };
        run(&data, &mut ledger, &Steps(Cell::new(steps)), &Options::default())
    }

    pub(crate) fn bytes(&self) -> [Vec<u8>; 2] {
        [&self.data, &self.header].map(|path| std::fs::read(path).unwrap())
    }

    fn stage(&self) -> Option<Stage> {
        self.read().unwrap().reencryption().unwrap().map(|status| status.stage)
    }
}

/// Returns both keys, from the manifest.
fn keys(disk: &Disk, image: &Value) -> VolumeKey {
    let header = disk.read().unwrap();
    let keys = image["keys"].as_object().unwrap().values();
    let confirm = |hex: &Value| {
        let hex = hex.as_str().unwrap();
        let bytes: Vec<u8> =
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        header.volume_key(key(&bytes), &UnlockOptions::default()).ok()
    };
    keys.filter_map(confirm).reduce(VolumeKey::with).unwrap()
}

/// Checks the plaintext, through the volume in its present state; a finished decryption is read
/// directly.
fn holds(disk: &Disk, key: &VolumeKey, plain: &[u8], what: &str) {
    let found = if disk.stage().is_none() && disk.read().unwrap().info().keyslots.is_empty() {
        std::fs::read(&disk.data).unwrap()[..plain.len()].to_vec()
    } else {
        let volume = disk.activate(key).unwrap_or_else(|e| panic!("{what}: {e}"));
        plaintext(&volume, &disk.data, plain.len())
    };
    let wrong = found.iter().zip(plain).position(|(one, other)| one != other);
    assert_eq!(wrong, None, "{what}");
}

#[test]
fn what_cryptsetup_cut_off_is_recovered_and_finished_here() {
    let mut seen = [0; 3];
    for (id, image) in manifest("cuts.json")["images"].as_object().unwrap() {
        let scratch = Scratch::new();
        let disk = Disk::unpack(&scratch, image);
        let key = keys(&disk, image);
        let plain =
            stream(&format!("reenc:{id}"), usize::try_from(image["data_bytes"].as_u64().unwrap()).unwrap());
        let stage = disk.stage().unwrap_or_else(|| panic!("{id}: none is under way"));
        seen[stage as usize] += 1;
        if stage == Stage::Hot {
            let before = disk.bytes();
            assert_eq!(disk.activate(&key).unwrap_err().kind(), ErrorKind::NeedsRecovery, "{id}");
            assert!(before == disk.bytes(), "{id}: opening it changed something");
        } else {
            holds(&disk, &key, &plain, id);
        }
        // Recovery alone, a step, then the rest.
        for (steps, what) in [(0, "recovered"), (1, "a step later"), (u64::MAX, "finished")] {
            if disk.stage().is_some() {
                disk.go_on(&key, steps)
                    .unwrap_or_else(|e| panic!("{id}, {what}: {e}: {:?}", std::error::Error::source(&e)));
            }
            assert_ne!(disk.stage(), Some(Stage::Hot), "{id}, {what}");
            holds(&disk, &key, &plain, &format!("{id}, {what}"));
        }
        assert_eq!(disk.stage(), None, "{id}");
        let info = disk.read().unwrap().info();
        assert!(info.keyslots.len() <= 1, "{id}: the old keyslot is still there");
        assert_eq!(info.segments.len(), 1, "{id}");
        cryptsetup(&["luksDump", disk.header.to_str().unwrap()]);
    }
    assert!(seen.iter().all(|&count| count > 1), "{seen:?}");
}

#[test]
fn a_reencryption_whose_old_keyslot_is_wiped_already_is_finished_with_the_new_key() {
    let manifest = manifest("cuts.json");
    let image = &manifest["images"]["ra-fin-wiped"];
    let scratch = Scratch::new();
    let disk = Disk::unpack(&scratch, image);
    let passphrase = image["passphrases"]["1"].as_str().unwrap().as_bytes();
    let plain = stream("reenc:ra-fin-wiped", 163_840);
    let key = disk.unlock(passphrase).unwrap();
    holds(&disk, &key, &plain, "as it stands");
    assert_eq!(disk.go_on(&key, 0).unwrap(), Outcome::Finished);
    let secret = scratch.file("passphrase", passphrase);
    cryptsetup(&[
        "open",
        "--test-passphrase",
        "--key-file",
        secret.to_str().unwrap(),
        disk.data.to_str().unwrap(),
    ]);
    holds(&disk, &disk.unlock(passphrase).unwrap(), &plain, "finished");
}

#[test]
fn both_keys_are_wanted_and_each_of_its_passphrases() {
    let manifest = manifest("cuts.json");
    let image = &manifest["images"]["ra-two-keys"];
    let scratch = Scratch::new();
    let disk = Disk::unpack(&scratch, image);
    let passphrase = |slot: &str| image["passphrases"][slot].as_str().unwrap().as_bytes().to_vec();
    // Slots 0 and 2 have the first passphrase, of the old key and of the new key; slot 1 has the
    // old key for the second passphrase.
    let old_only = disk.unlock(&passphrase("1")).unwrap();
    let refused = disk.go_on(&old_only, 0).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::WrongPassphrase);
    assert!(refused.to_string().contains("keyslot 2"), "{refused}");
    let both = disk.unlock(&passphrase("0")).unwrap();
    assert_eq!(disk.go_on(&both, 0).unwrap(), Outcome::Stopped);
    assert_eq!(disk.activate(&old_only).unwrap_err().kind(), ErrorKind::WrongPassphrase);
    holds(&disk, &both, &stream("reenc:ra-two-keys", 163_840), "both");
    // Both keys in turn.
    let (file, header) = (open(&disk.header), disk.read().unwrap());
    let of_slot = |slot| UnlockOptions { slot: Some(slot), ..UnlockOptions::default() };
    let new = header.unlock(&file, &key(&passphrase("2")), &of_slot(2)).unwrap().key;
    holds(&disk, &old_only.with(new), &stream("reenc:ra-two-keys", 163_840), "one after the other");
}

#[test]
fn forged_metadata_is_refused_and_nothing_is_changed() {
    let (cuts, tampered) = (manifest("cuts.json"), manifest("tampered.json"));
    let mut kinds = Vec::new();
    for (id, forged) in tampered["images"].as_object().unwrap() {
        let scratch = Scratch::new();
        let image = &cuts["images"][forged["made_from"].as_str().unwrap()];
        let disk = Disk::unpack(&scratch, image);
        let key = keys(&disk, image);
        let header = std::fs::read(unpack(&scratch, forged["file"].as_str().unwrap())).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&open(&disk.header), &header, 0).unwrap();
        let before = disk.bytes();
        let refused = disk.go_on(&key, 0);
        if id.ends_with("progress") {
            // The progress is not covered by a digest: an attacker who can write the header can
            // move the border.
            assert_eq!(refused.unwrap(), Outcome::Stopped, "{id}");
            continue;
        }
        let refused = refused.unwrap_err();
        let (text, kind) = (refused.to_string(), refused.kind());
        let kinds_of_refusal = [ErrorKind::Untrusted, ErrorKind::Unsupported, ErrorKind::BadHeader];
        assert!(kinds_of_refusal.contains(&kind), "{id}: {kind:?} {text}");
        let fields = ["segments", "keyslots", "digests", "config.requirements"];
        assert!(fields.iter().any(|field| text.contains(field)), "{id}: {text}");
        let opened = disk.read().and_then(|_| disk.activate(&key));
        assert!(opened.is_err(), "{id} is opened");
        assert!(before == disk.bytes(), "{id}: something was changed");
        kinds.push(kind);
    }
    for kind in [ErrorKind::Untrusted, ErrorKind::Unsupported, ErrorKind::BadHeader] {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }
}

#[test]
fn a_reencryption_is_gone_on_with_once_at_a_time() {
    let manifest = manifest("cuts.json");
    let image = &manifest["images"]["ra-jr-int"];
    let scratch = Scratch::new();
    let disk = Disk::unpack(&scratch, image);
    let key = keys(&disk, image);
    let file: File = open(&disk.header);
    let first = Ledger::resume(&file, &key, size(&disk.data), &ResumeOptions::default()).unwrap();
    // Only root can lock reencryptions.
    if Path::new("/run/cryptsetup").metadata().is_ok_and(|_| std::fs::read_dir("/run/cryptsetup").is_ok()) {
        let second = Ledger::resume(&file, &key, size(&disk.data), &ResumeOptions::default());
        assert_eq!(second.map(drop).unwrap_err().kind(), ErrorKind::Busy);
    }
    drop(first);
    assert_eq!(disk.go_on(&key, 1).unwrap(), Outcome::Stopped);
}
