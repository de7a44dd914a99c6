//! Backups, repairs, names and conversions, checked by cryptsetup and with images made by
//! cryptsetup.

use std::os::unix::fs::FileExt;
use std::path::Path;

use underseal_volume::{
    Backup, Check, ErrorKind, FormatOptions, Found, Header, PersistentFlag, Pinned, RestoreOptions, Settings,
    Version, format, repair,
};

use crate::support::*;

const SIZE: u64 = 32 << 20;
const CHEAP: [&str; 4] = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];

/// An image made by cryptsetup, with a second passphrase in slot 5.
fn theirs(scratch: &Scratch, kind: &str) -> std::path::PathBuf {
    let image = scratch.image("theirs.img", SIZE);
    let (secret, other) = (scratch.passphrase(), scratch.file("other", b"another one"));
    let (secret, other, name) = (secret.to_str().unwrap(), other.to_str().unwrap(), image.to_str().unwrap());
    let plain = ["--sector-size", "512"];
    let args = if kind == "luks2" { &plain[..] } else { &[] };
    let make = ["luksFormat", "--type", kind, "--key-file", secret, name];
    cryptsetup(&[&make[..], &CHEAP, args].concat());
    let add = ["luksAddKey", "--key-file", secret, "--key-slot", "5", name, other];
    cryptsetup(&[&add[..], &CHEAP].concat());
    image
}

/// An image made by underseal.
fn ours(scratch: &Scratch, options: FormatOptions) -> std::path::PathBuf {
    let image = scratch.image("ours.img", SIZE);
    let sector_size = Some(underseal_cipher::SectorSize::S512);
    let mut options = FormatOptions { sector_size, ..options };
    options.pbkdf.kind = underseal_volume::PbkdfKind::Pbkdf2;
    format(&open(&image), SIZE, &key(PASSPHRASE.as_bytes()), cheap(options)).unwrap();
    image
}

fn they_open(scratch: &Scratch, image: &Path, passphrase: &str) -> bool {
    let file = scratch.file("passphrase-to-try", passphrase.as_bytes());
    let status = std::process::Command::new("cryptsetup")
        .args(["open", "--test-passphrase", "--key-file"])
        .args([&file, image])
        .stderr(std::process::Stdio::null())
        .status();
    status.unwrap().success()
}

fn we_open(image: &Path, passphrase: &str) -> bool {
    activate(image, passphrase.as_bytes()).is_ok()
}

fn wipe(image: &Path, len: usize) {
    open(image).write_all_at(&vec![0; len], 0).unwrap();
}

#[test]
fn backups_go_both_ways() {
    for kind in ["luks1", "luks2"] {
        let scratch = Scratch::new();
        let image = theirs(&scratch, kind);
        let name = image.to_str().unwrap();
        let mine = Backup::take(&open(&image)).unwrap();
        let (backup, made) = (scratch.path("backup"), scratch.file("mine", mine.bytes()));
        cryptsetup(&["luksHeaderBackup", "--header-backup-file", backup.to_str().unwrap(), name]);
        assert!(std::fs::read(&backup).unwrap() == mine.bytes(), "{kind}: theirs and ours are one");

        // cryptsetup restores underseal's backup, and underseal cryptsetup's.
        wipe(&image, 1 << 20);
        cryptsetup(&["luksHeaderRestore", "--header-backup-file", made.to_str().unwrap(), name]);
        assert!(we_open(&image, PASSPHRASE) && they_open(&scratch, &image, "another one"), "{kind}");
        wipe(&image, 1 << 20);
        let read = Backup::read(&open(&backup)).unwrap();
        let found = read.found_on(&open(&image)).unwrap();
        // LUKS1's eight areas end beyond the wiped range, but the two areas in use do not.
        assert_eq!(found, Found::Nothing, "{kind}");
        read.restore(&open(&image), &found, &RestoreOptions::default()).unwrap();
        assert!(they_open(&scratch, &image, PASSPHRASE) && we_open(&image, "another one"), "{kind}");

        // A passphrase that was removed meanwhile is there again.
        cryptsetup(&["luksKillSlot", name, "5"]);
        assert!(!we_open(&image, "another one"), "{kind}");
        let found = read.found_on(&open(&image)).unwrap();
        assert_eq!(found, Found::Same, "{kind}");
        read.restore(&open(&image), &found, &RestoreOptions::default()).unwrap();
        assert!(
            they_open(&scratch, &image, "another one") && they_open(&scratch, &image, PASSPHRASE),
            "{kind}"
        );
        assert!(Check::of(&open(&image), Some(SIZE)).unwrap().sound, "{kind}");
    }
}

#[test]
fn a_backup_makes_a_detached_header() {
    let scratch = Scratch::new();
    let image = theirs(&scratch, "luks2");
    let backup = Backup::take(&open(&image)).unwrap();
    let apart = scratch.file("apart", b"");
    let options = RestoreOptions { detached: true, ..RestoreOptions::default() };
    backup.restore(&open(&apart), &Found::Nothing, &options).unwrap();
    assert_eq!(size(&apart), 16 << 20);
    assert!(activate_with(&apart, &image, PASSPHRASE.as_bytes()).is_ok());
    assert!(they_open(&scratch, &apart, PASSPHRASE));
}

#[test]
fn what_they_convert_opens_here_and_what_is_converted_here_opens_there() {
    let secrets = [PASSPHRASE, "another one"];
    for (kind, to, name) in [("luks1", Version::Luks2, "luks2"), ("luks2", Version::Luks1, "luks1")] {
        let scratch = Scratch::new();
        let image = theirs(&scratch, kind);
        let before = plaintext(&activate(&image, PASSPHRASE.as_bytes()).unwrap(), &image, 4096);
        Header::read(&open(&image)).unwrap().convert(&open(&image), to).unwrap();
        let opens = |image: &Path, when: &str| {
            for secret in secrets {
                assert!(
                    they_open(&scratch, image, secret) && we_open(image, secret),
                    "{kind}, {when}: {secret}"
                );
            }
            assert_eq!(plaintext(&activate(image, PASSPHRASE.as_bytes()).unwrap(), image, 4096), before);
            assert!(Check::of(&open(image), Some(SIZE)).unwrap().sound, "{kind}, {when}");
        };
        opens(&image, "converted here");
        let dump = cryptsetup(&["luksDump", image.to_str().unwrap()]);
        assert!(dump.contains(&format!("Version:       \t{}", &name[4..])), "{dump}");
        // cryptsetup continues with it: a new key in an area chosen by the new header.
        let (secret, third) = (scratch.passphrase(), scratch.file("third", b"a third"));
        let add = [
            "luksAddKey",
            "--key-file",
            secret.to_str().unwrap(),
            image.to_str().unwrap(),
            third.to_str().unwrap(),
        ];
        cryptsetup(&[&add[..], &CHEAP].concat());
        opens(&image, "with another key");
        assert!(we_open(&image, "a third"));
        // Converted back by cryptsetup, if it can, and by underseal.
        cryptsetup(&["convert", "--type", kind, image.to_str().unwrap()]);
        opens(&image, "converted back there");
        Header::read(&open(&image)).unwrap().convert(&open(&image), to).unwrap();
        opens(&image, "converted here once more");
    }
}

#[test]
fn every_metadata_size_is_made_backed_up_and_repaired() {
    for size in (14..=22).map(|power| 1u64 << power) {
        let scratch = Scratch::new();
        let image = ours(&scratch, FormatOptions { metadata_size: size, ..FormatOptions::luks2() });
        let dump = cryptsetup(&["luksDump", image.to_str().unwrap()]);
        assert!(dump.contains(&format!("Metadata area: \t{size} [bytes]")), "{dump}");
        let backup = scratch.path("backup");
        std::fs::write(&backup, Backup::take(&open(&image)).unwrap().bytes()).unwrap();
        for at in [4200, size + 4200] {
            open(&image).write_all_at(b"!", at).unwrap();
            assert!(!Check::of(&open(&image), Some(SIZE)).unwrap().sound);
            assert_eq!(repair(&open(&image), false).unwrap().len(), 1, "{size}");
            assert!(Check::of(&open(&image), Some(SIZE)).unwrap().sound);
        }
        wipe(&image, 1 << 20);
        let restore = ["luksHeaderRestore", "--header-backup-file", backup.to_str().unwrap()];
        cryptsetup(&[&restore[..], &[image.to_str().unwrap()]].concat());
        assert!(they_open(&scratch, &image, PASSPHRASE) && we_open(&image, PASSPHRASE), "{size}");
    }
}

#[test]
fn names_and_flags_are_what_they_read() {
    let scratch = Scratch::new();
    let image = theirs(&scratch, "luks2");
    let name = image.to_str().unwrap();
    let uuid = "01234567-89ab-4def-8123-456789abcdef".parse().unwrap();
    let mut header = Header::read(&open(&image)).unwrap();
    let (digest, cipher) = (Some(header.digest()), "aes-xts-plain64".parse().ok());
    let pinned = Pinned { digest, cipher, integrity: None };
    header.hold_to(&pinned).unwrap();
    let settings = Settings {
        label: Some("work".into()),
        subsystem: Some("part".into()),
        uuid: Some(uuid),
        on: PersistentFlag::ALL.to_vec(),
        off: vec![],
    };
    header.set(&open(&image), &settings).unwrap();
    let dump = cryptsetup(&["luksDump", name]);
    for text in ["work", "part", "01234567-89ab-4def-8123-456789abcdef", "allow-discards same-cpu-crypt"] {
        assert!(dump.contains(text), "{dump}");
    }
    assert_eq!(header.hold_to(&pinned).unwrap_err().kind(), ErrorKind::Untrusted);
    let off = vec![
        PersistentFlag::SameCpuCrypt,
        PersistentFlag::NoReadWorkqueue,
        PersistentFlag::HighPriority,
        PersistentFlag::NoJournal,
    ];
    header.set(&open(&image), &Settings { off, ..Settings::default() }).unwrap();
    let info = Header::read(&open(&image)).unwrap().info();
    assert_eq!(info.flags, ["allow-discards", "submit-from-crypt-cpus", "no-write-workqueue"]);
    assert!(
        cryptsetup(&["luksDump", name]).contains("allow-discards submit-from-crypt-cpus no-write-workqueue")
    );
    let long = Settings { label: Some("x".repeat(48)), ..Settings::default() };
    assert_eq!(header.set(&open(&image), &long).unwrap_err().kind(), ErrorKind::BadOption);
    assert!(they_open(&scratch, &image, PASSPHRASE));

    let image = theirs(&scratch, "luks1");
    let mut header = Header::read(&open(&image)).unwrap();
    header.set(&open(&image), &Settings { uuid: Some(uuid), ..Settings::default() }).unwrap();
    assert_eq!(cryptsetup(&["luksUUID", image.to_str().unwrap()]).trim(), uuid.to_string());
    let label = Settings { label: Some("work".into()), ..Settings::default() };
    assert_eq!(header.set(&open(&image), &label).unwrap_err().kind(), ErrorKind::BadOption);
}

#[test]
fn an_erased_header_has_no_keyslot_and_no_key_material() {
    for kind in ["luks1", "luks2"] {
        let scratch = Scratch::new();
        let image = theirs(&scratch, kind);
        let before = std::fs::read(&image).unwrap();
        let backup = Backup::take(&open(&image)).unwrap();
        let areas = Header::read(&open(&image)).unwrap().info().keyslots;
        let mut header = Header::read(&open(&image)).unwrap();
        assert_eq!(header.erase(&open(&image)).unwrap(), [0, 5], "{kind}");
        let after = std::fs::read(&image).unwrap();
        for slot in areas {
            let range = usize::try_from(slot.area_offset).unwrap()
                ..usize::try_from(slot.area_offset + slot.area_size).unwrap();
            let same =
                before[range.clone()].chunks(512).zip(after[range].chunks(512)).filter(|(a, b)| a == b);
            assert_eq!(same.filter(|(a, _)| a.iter().any(|&byte| byte != 0)).count(), 0, "{kind}");
        }
        assert!(!they_open(&scratch, &image, PASSPHRASE) && !we_open(&image, "another one"), "{kind}");
        let dump = cryptsetup(&["luksDump", image.to_str().unwrap()]);
        assert!(!dump.contains("0: luks2") && !dump.contains("ENABLED"), "{dump}");
        // A backup restores it.
        backup.restore(&open(&image), &Found::Same, &RestoreOptions::default()).unwrap();
        assert!(they_open(&scratch, &image, PASSPHRASE), "{kind}");
    }
}
