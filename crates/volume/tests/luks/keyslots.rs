//! Keyslots added and removed by underseal, checked by cryptsetup; and headers that cryptsetup
//! changes meanwhile.

use std::path::{Path, PathBuf};

use underseal_volume::{
    Cost, ErrorKind, FormatOptions, Hash, Header, NewKeyslot, Pbkdf, Priority, Replace, UnlockOptions,
    Unlocked, format, random_key,
};

use crate::support::*;

const SIZE: u64 = 32 << 20;

fn read(image: &Path) -> Header {
    Header::read(&open(image)).unwrap()
}

fn unlock(header: &Header, image: &Path, passphrase: &str, slot: Option<u32>) -> Unlocked {
    let options = UnlockOptions { slot, ..UnlockOptions::default() };
    header.unlock(&open(image), &key(passphrase.as_bytes()), &options).unwrap()
}

fn pbkdf2() -> Pbkdf {
    Pbkdf { cost: Cost::Iterations(1000), ..Pbkdf::pbkdf2() }
}

fn cheap_slot(number: Option<u32>, pbkdf: Pbkdf) -> NewKeyslot {
    NewKeyslot { number, hash: Some(Hash::Sha512), ..NewKeyslot::new(pbkdf) }
}

fn theirs_open(scratch: &Scratch, image: &Path, passphrase: &str, slot: u32) -> bool {
    let file = scratch.file("passphrase-of-a-slot", passphrase.as_bytes());
    let slot = slot.to_string();
    let status = std::process::Command::new("cryptsetup")
        .args(["open", "--test-passphrase", "--key-slot", &slot, "--key-file"])
        .args([&file, image])
        .stderr(std::process::Stdio::null())
        .status();
    status.unwrap().success()
}

#[test]
fn cryptsetup_takes_the_headers_that_we_change() {
    let scratch = Scratch::new();
    let theirs = scratch.image("theirs", SIZE);
    let secret = scratch.passphrase();
    let cost = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "--key-file"];
    let args = [&["luksFormat", "--type", "luks2", "-q"][..], &cost, &[secret.to_str().unwrap()]].concat();
    cryptsetup(&[&args[..], &[theirs.to_str().unwrap()]].concat());
    let ours = scratch.image("ours", SIZE);
    let options = cheap(FormatOptions::luks2());
    format(&open(&ours), SIZE, &key(PASSPHRASE.as_bytes()), options).unwrap();
    let costs = || {
        let argon2 = Pbkdf { cost: Cost::Iterations(4), memory_kib: 64, ..Pbkdf::argon2id() };
        [pbkdf2(), argon2]
    };
    for image in [&theirs, &ours] {
        let mut header = read(image);
        let file = open(image);
        let volume_key = unlock(&header, image, PASSPHRASE, None).key;
        for (number, pbkdf) in (1..).zip(costs()) {
            let (wanted, passphrase) = ((number == 2).then_some(9), format!("passphrase {number}"));
            let slot = cheap_slot(wanted, pbkdf);
            let slot = header.add_keyslot(&file, &volume_key, &key(passphrase.as_bytes()), &slot).unwrap();
            assert_eq!(slot, wanted.unwrap_or(1));
            let dump = cryptsetup(&["luksDump", image.to_str().unwrap()]);
            assert!(dump.contains(&format!("  {slot}: luks2")), "{dump}");
            assert!(theirs_open(&scratch, image, &passphrase, slot), "{}: {slot}", image.display());
            assert!(theirs_open(&scratch, image, PASSPHRASE, 0), "{}", image.display());
        }
        header.remove_keyslot(&file, 0, false).unwrap();
        let dump = cryptsetup(&["luksDump", image.to_str().unwrap()]);
        assert!(!dump.contains("  0: luks2"), "{dump}");
        assert!(!theirs_open(&scratch, image, PASSPHRASE, 0), "{}", image.display());
        assert!(theirs_open(&scratch, image, "passphrase 2", 9), "{}", image.display());
        // cryptsetup writes the header again, and underseal reads it.
        cryptsetup(&["config", "--label", "changed", image.to_str().unwrap()]);
        let read = read(image);
        assert_eq!((read.damage(), read.info().label.as_deref()), (None, Some("changed")));
        assert_eq!(read.uuid(), header.uuid());
    }
}

#[test]
fn what_cryptsetup_changes_meanwhile_is_noticed() {
    let scratch = Scratch::new();
    let image = scratch.image("image", SIZE);
    format(&open(&image), SIZE, &key(PASSPHRASE.as_bytes()), cheap(FormatOptions::luks2())).unwrap();
    let name = image.to_str().unwrap();
    let mut header = read(&image);
    let volume_key = unlock(&header, &image, PASSPHRASE, None).key;
    let (secret, other) = (scratch.passphrase(), scratch.file("other", b"another one"));
    let cost = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
    let add = ["luksAddKey", "-q", "--key-file", secret.to_str().unwrap(), name, other.to_str().unwrap()];
    cryptsetup(&[&add[..], &cost].concat());
    let bytes = std::fs::read(&image).unwrap();
    let slot = || cheap_slot(None, pbkdf2());
    let refused = header.add_keyslot(&open(&image), &volume_key, &key(b"x"), &slot()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy);
    assert_eq!(header.remove_keyslot(&open(&image), 0, true).unwrap_err().kind(), ErrorKind::Busy);
    assert!(std::fs::read(&image).unwrap() == bytes, "nothing was written");

    // After reading it again, the change works: beside cryptsetup's slot, and with cryptsetup's
    // token on the removed slot.
    let token = scratch.file("token", br#"{"type":"nobody-knows","keyslots":["0"],"x":1}"#);
    cryptsetup(&["token", "import", "--json-file", token.to_str().unwrap(), name]);
    let mut header = read(&image);
    assert_eq!(header.add_keyslot(&open(&image), &volume_key, &key(b"x"), &slot()).unwrap(), 2);
    header.remove_keyslot(&open(&image), 0, false).unwrap();
    assert!(theirs_open(&scratch, &image, "another one", 1) && theirs_open(&scratch, &image, "x", 2));
    assert!(cryptsetup(&["luksDump", name]).contains("nobody-knows"));
}

/// Returns two volumes of each version: one made by cryptsetup, one made by underseal.
fn volumes(scratch: &Scratch, hash: Hash) -> Vec<PathBuf> {
    let secret = scratch.passphrase();
    let mut images = Vec::new();
    for (kind, options) in [("luks1", FormatOptions::luks1()), ("luks2", FormatOptions::luks2())] {
        let theirs = scratch.image(&format!("theirs-{kind}"), SIZE);
        let cost =
            ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "--hash", hash.name(), "--key-file"];
        let format_args = [&["luksFormat", "--type", kind][..], &cost, &[secret.to_str().unwrap()]].concat();
        cryptsetup(&[&format_args[..], &[theirs.to_str().unwrap()]].concat());
        let ours = scratch.image(&format!("ours-{kind}"), SIZE);
        format(&open(&ours), SIZE, &key(PASSPHRASE.as_bytes()), cheap(FormatOptions { hash, ..options }))
            .unwrap();
        images.extend([theirs, ours]);
    }
    images
}

fn is_luks1(image: &Path) -> bool {
    image.to_str().unwrap().ends_with("luks1")
}

#[test]
fn each_change_of_either_version_is_read_by_cryptsetup_and_the_other_way_round() {
    let scratch = Scratch::new();
    for image in volumes(&scratch, Hash::Sha256) {
        let (file, name) = (open(&image), image.to_str().unwrap());
        let mut header = read(&image);
        let opened = unlock(&header, &image, PASSPHRASE, None);
        let new = |number| NewKeyslot { number, ..NewKeyslot::new(pbkdf2()) };
        assert_eq!(header.add_keyslot(&file, &opened.key, &key(b"six"), &new(Some(6))).unwrap(), 6);
        assert!(theirs_open(&scratch, &image, "six", 6), "{name}");
        // LUKS1 uses the next number, as cryptsetup does.
        let changed = header.change_keyslot(&file, &opened, &key(b"changed"), &new(None), Replace::Beside);
        let number = u32::from(is_luks1(&image));
        assert_eq!(changed.unwrap(), number, "{name}");
        assert!(theirs_open(&scratch, &image, "changed", number) && theirs_open(&scratch, &image, "six", 6));
        assert!(!theirs_open(&scratch, &image, PASSPHRASE, number), "{name}");
        // A change by cryptsetup, over underseal's.
        let (old, other) = (scratch.file("old", b"changed"), scratch.file("other", b"theirs"));
        let files = ["--key-file", old.to_str().unwrap(), name, other.to_str().unwrap()];
        cryptsetup(
            &[&["luksChangeKey", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"], &files[..]]
                .concat(),
        );
        let mut header = read(&image);
        let opened = unlock(&header, &image, "theirs", None);
        assert_eq!(opened.slot, 0, "{name}");
        header.change_keyslot(&file, &opened, &key(b"in place"), &new(None), Replace::InPlace).unwrap();
        assert!(theirs_open(&scratch, &image, "in place", 0), "{name}");
        header.remove_keyslot(&file, 6, false).unwrap();
        assert!(!theirs_open(&scratch, &image, "six", 6), "{name}");
        assert_eq!(header.remove_keyslot(&file, 0, false).unwrap_err().kind(), ErrorKind::LastKeyslot);
        header.remove_keyslot(&file, 0, true).unwrap();
        assert!(!theirs_open(&scratch, &image, "in place", 0), "{name}");
        // The volume key is enough to add a keyslot again.
        assert!(header.add_keyslot(&file, &opened.key, &key(b"again"), &new(None)).is_ok(), "{name}");
        assert!(theirs_open(&scratch, &image, "again", 0), "{name}");
    }
}

/// Returns true when the installed cryptsetup can make volumes with this hash.
fn theirs_has(scratch: &Scratch, hash: Hash) -> bool {
    let image = scratch.image("theirs", SIZE);
    let key = scratch.file("key", PASSPHRASE.as_bytes());
    let mut format = std::process::Command::new("cryptsetup");
    format.args(["luksFormat", "--batch-mode", "--type", "luks1", "--pbkdf-force-iterations", "1000"]);
    format.args(["--hash", hash.name()]).arg(image).arg(key).stderr(std::process::Stdio::null());
    format.status().unwrap().success()
}

#[test]
fn keyslots_of_each_hash_open_with_cryptsetup() {
    for hash in Hash::ALL {
        let scratch = Scratch::new();
        if !theirs_has(&scratch, hash) {
            // OpenSSL, with which Debian builds cryptsetup, lacks Streebog; libgcrypt has it.
            assert_eq!(hash, Hash::Streebog512);
            continue;
        }
        for (version, options) in [(1, FormatOptions::luks1()), (2, FormatOptions::luks2())] {
            let image = scratch.image(&format!("luks{version}"), SIZE);
            let options = cheap(FormatOptions { hash, ..options });
            format(&open(&image), SIZE, &key(PASSPHRASE.as_bytes()), options).unwrap();
            let mut header = read(&image);
            let opened = unlock(&header, &image, PASSPHRASE, None);
            let new = NewKeyslot { number: Some(6), hash: Some(hash), ..NewKeyslot::new(pbkdf2()) };
            header.add_keyslot(&open(&image), &opened.key, &key(b"six"), &new).unwrap();
            assert!(theirs_open(&scratch, &image, "six", 6), "luks{version} {hash}");
        }
    }
}

#[test]
fn priorities_and_unbound_keys_are_those_of_cryptsetup() {
    let scratch = Scratch::new();
    for image in volumes(&scratch, Hash::Sha512).into_iter().filter(|image| !is_luks1(image)) {
        let (file, name) = (open(&image), image.to_str().unwrap());
        let mut header = read(&image);
        let other = random_key(48).unwrap();
        let new = NewKeyslot { priority: Some(Priority::Ignored), ..cheap_slot(None, pbkdf2()) };
        assert_eq!(header.add_unbound_keyslot(&file, &other, &key(b"unbound"), &new).unwrap(), 1);
        let dump = cryptsetup(&["luksDump", name]);
        assert!(dump.contains("1: luks2 (unbound)") && dump.contains("Priority:   ignored"), "{dump}");
        let (secret, out) = (scratch.file("unbound", b"unbound"), scratch.path("key"));
        let files =
            ["--key-file", secret.to_str().unwrap(), "--volume-key-file", out.to_str().unwrap(), name];
        cryptsetup(&[&["luksDump", "--unbound", "--key-slot", "1"], &files[..]].concat());
        assert_eq!(hex(&std::fs::read(&out).unwrap()), hex(other.as_bytes()), "{name}");
        std::fs::remove_file(&out).unwrap();

        header.set_priority(&file, 0, Priority::Preferred).unwrap();
        assert!(cryptsetup(&["luksDump", name]).contains("Priority:   preferred"), "{name}");
        header.set_priority(&file, 0, Priority::Normal).unwrap();
        assert!(cryptsetup(&["luksDump", name]).contains("Priority:   normal"), "{name}");

        // Made by cryptsetup.
        let cost = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "--key-size", "256"];
        let theirs = scratch.file("theirs", b"their own");
        let add = ["luksAddKey", "--unbound", "--key-slot", "5", name, theirs.to_str().unwrap()];
        cryptsetup(&[&add[..], &cost].concat());
        cryptsetup(&["config", "--priority", "ignore", "--key-slot", "0", name]);
        let mut header = read(&image);
        let opened = unlock(&header, &image, "their own", Some(5));
        assert_eq!(opened.key.key().len(), 32);
        let priority = |header: &Header, number| {
            header.info().keyslots.into_iter().find(|slot| slot.number == number).unwrap().priority
        };
        assert_eq!((priority(&header, 0), priority(&header, 1)), ("ignored", "ignored"));
        assert_eq!(
            header.add_keyslot(&file, &opened.key, &key(b"ours"), &cheap_slot(None, pbkdf2())).unwrap(),
            2
        );
        header.remove_keyslot(&file, 5, false).unwrap();
        assert!(cryptsetup(&["luksDump", name]).contains("2: luks2 (unbound)"), "{name}");
        header.remove_keyslot(&file, 2, false).unwrap();
        assert!(
            cryptsetup(&[
                "open",
                "--test-passphrase",
                "--key-slot",
                "0",
                "--key-file",
                scratch.passphrase().to_str().unwrap(),
                name
            ])
            .is_empty()
        );
    }
}
