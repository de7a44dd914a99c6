//! Keyslots that we add and remove, by cryptsetup's judgement; and headers that cryptsetup changes under our hands.

use std::path::Path;

use underseal_volume::luks2::NewKeyslot;
use underseal_volume::{
    Cost, ErrorKind, FormatOptions, Hash, Header, Pbkdf, UnlockOptions, VolumeKey, format, luks2,
};

use crate::support::*;

const SIZE: u64 = 32 << 20;

fn luks2(image: &Path) -> Box<luks2::Header> {
    match Header::read(&open(image)).unwrap() {
        Header::Luks2(header) => header,
        other => panic!("{other:?}"),
    }
}

fn volume_key(header: &luks2::Header, image: &Path, passphrase: &str) -> VolumeKey {
    header.unlock(&open(image), &key(passphrase.as_bytes()), &UnlockOptions::default()).unwrap().key
}

fn cheap_slot(number: Option<u32>, pbkdf: Pbkdf) -> NewKeyslot {
    NewKeyslot { number, hash: Hash::Sha512, pbkdf }
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
        let pbkdf2 = Pbkdf { cost: Cost::Iterations(1000), ..Pbkdf::pbkdf2() };
        let argon2 = Pbkdf { cost: Cost::Iterations(4), memory_kib: 64, ..Pbkdf::argon2id() };
        [pbkdf2, argon2]
    };
    for image in [&theirs, &ours] {
        let mut header = luks2(image);
        let file = open(image);
        let volume_key = volume_key(&header, image, PASSPHRASE);
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
        // They write it again, and we read that.
        cryptsetup(&["config", "--label", "changed", image.to_str().unwrap()]);
        let read = luks2(image);
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
    let mut header = luks2(&image);
    let volume_key = volume_key(&header, &image, PASSPHRASE);
    let (secret, other) = (scratch.passphrase(), scratch.file("other", b"another one"));
    let cost = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
    let add = ["luksAddKey", "-q", "--key-file", secret.to_str().unwrap(), name, other.to_str().unwrap()];
    cryptsetup(&[&add[..], &cost].concat());
    let bytes = std::fs::read(&image).unwrap();
    let pbkdf = || Pbkdf { cost: Cost::Iterations(1000), ..Pbkdf::pbkdf2() };
    let slot = || cheap_slot(None, pbkdf());
    let refused = header.add_keyslot(&open(&image), &volume_key, &key(b"x"), &slot()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy);
    assert_eq!(header.remove_keyslot(&open(&image), 0, true).unwrap_err().kind(), ErrorKind::Busy);
    assert!(std::fs::read(&image).unwrap() == bytes, "nothing was written");

    // Read again it goes on: beside their slot, and with a token of theirs on the slot that goes.
    let token = scratch.file("token", br#"{"type":"nobody-knows","keyslots":["0"],"x":1}"#);
    cryptsetup(&["token", "import", "--json-file", token.to_str().unwrap(), name]);
    let mut header = luks2(&image);
    assert_eq!(header.add_keyslot(&open(&image), &volume_key, &key(b"x"), &slot()).unwrap(), 2);
    header.remove_keyslot(&open(&image), 0, false).unwrap();
    assert!(theirs_open(&scratch, &image, "another one", 1) && theirs_open(&scratch, &image, "x", 2));
    assert!(cryptsetup(&["luksDump", name]).contains("nobody-knows"));
}
