//! Headers made by underseal that cryptsetup and qemu read, change and reencrypt.

use std::path::{Path, PathBuf};
use std::process::Command;

use underseal_cipher::SectorSize;
use underseal_volume::{ErrorKind, FormatOptions, Hash, KdfLimits, PbkdfKind, UnlockOptions, format};

use crate::support::*;

const SIZE: u64 = 24 << 20;

/// Makes an image with these options, cheaply, and writes to its first bytes.
fn make(scratch: &Scratch, options: FormatOptions) -> PathBuf {
    let image = scratch.image("disk.img", SIZE);
    format(&open(&image), SIZE, &key(PASSPHRASE.as_bytes()), cheap(options)).unwrap();
    image
}

/// Returns text that differs in every sector.
fn pattern(len: usize) -> Vec<u8> {
    (0u32..).flat_map(|i| i.wrapping_mul(0x9E37_79B9).to_le_bytes()).take(len).collect()
}

fn filled(scratch: &Scratch, options: FormatOptions) -> (PathBuf, Vec<u8>) {
    let image = make(scratch, options);
    let volume = activate(&image, PASSPHRASE.as_bytes()).unwrap();
    let plain = pattern(1 << 20);
    write_plaintext(&volume, &image, &plain);
    (image, plain)
}

fn reads_back(image: &Path, passphrase: &[u8], plain: &[u8]) {
    let volume = activate(image, passphrase).unwrap();
    assert!(plaintext(&volume, image, plain.len()) == plain);
}

#[test]
fn cryptsetup_opens_what_is_made_here_and_finds_the_same_volume_key() {
    let cipher = |text: &str| text.parse().unwrap();
    let luks1 = FormatOptions::luks1;
    let luks2 = FormatOptions::luks2;
    let pbkdf = |kind| {
        let mut options = luks2();
        options.pbkdf.kind = kind;
        options
    };
    let cases = [
        ("luks1 default", luks1()),
        ("luks1 cbc", FormatOptions { cipher: cipher("aes-cbc-essiv:sha256"), ..luks1() }),
        (
            "luks1 cbc 128",
            FormatOptions { cipher: cipher("aes-cbc-essiv:sha256"), key_size: Some(16), ..luks1() },
        ),
        ("luks1 256", FormatOptions { key_size: Some(32), ..luks1() }),
        ("luks1 sha1", FormatOptions { hash: Hash::Sha1, ..luks1() }),
        ("luks1 ripemd160", FormatOptions { hash: Hash::Ripemd160, ..luks1() }),
        ("luks1 sha512", FormatOptions { hash: Hash::Sha512, ..luks1() }),
        ("luks1 sm3", FormatOptions { hash: Hash::Sm3, ..luks1() }),
        ("luks1 offset", FormatOptions { data_offset: Some(8 << 20), ..luks1() }),
        ("luks2 default", luks2()),
        ("luks2 argon2i", pbkdf(PbkdfKind::Argon2i)),
        ("luks2 pbkdf2", pbkdf(PbkdfKind::Pbkdf2)),
        ("luks2 pbkdf2 sha512", FormatOptions { hash: Hash::Sha512, ..pbkdf(PbkdfKind::Pbkdf2) }),
        ("luks2 whirlpool", FormatOptions { hash: Hash::Whirlpool, ..pbkdf(PbkdfKind::Pbkdf2) }),
        ("luks2 sha3", FormatOptions { hash: Hash::Sha3_256, ..pbkdf(PbkdfKind::Pbkdf2) }),
        ("luks2 blake2b", FormatOptions { hash: Hash::Blake2b512, ..pbkdf(PbkdfKind::Pbkdf2) }),
        ("luks2 sm3", FormatOptions { hash: Hash::Sm3, ..pbkdf(PbkdfKind::Pbkdf2) }),
        ("luks2 cbc", FormatOptions { cipher: cipher("aes-cbc-essiv:sha256"), ..luks2() }),
        ("luks2 192", FormatOptions { key_size: Some(48), ..luks2() }),
        ("luks2 capi", FormatOptions { cipher: cipher("capi:xts(aes)-plain64"), ..luks2() }),
        ("luks2 512", FormatOptions { sector_size: Some(SectorSize::S512), ..luks2() }),
        ("luks2 2048", FormatOptions { sector_size: Some(SectorSize::new(2048).unwrap()), ..luks2() }),
        ("luks2 metadata", FormatOptions { metadata_size: 4 << 20, ..luks2() }),
        ("luks2 small", FormatOptions { data_offset: Some(1 << 20), ..luks2() }),
        ("luks2 keyslots", FormatOptions { keyslots_size: Some(512 << 10), ..luks2() }),
        ("luks2 labels", FormatOptions { label: "töst".into(), subsystem: "sub".into(), ..luks2() }),
    ];
    for (name, options) in cases {
        let scratch = Scratch::new();
        let image = make(&scratch, options);
        let (path, secret) = (image.to_str().unwrap(), scratch.passphrase());
        let secret = secret.to_str().unwrap();
        eprintln!("{name}");
        cryptsetup(&["open", "--test-passphrase", "--key-file", secret, path]);
        let dump = cryptsetup(&["luksDump", path]);
        for expected in expected_in_dump(&image) {
            assert!(dump.contains(&expected), "{name}: {expected} in\n{dump}");
        }

        let their_key = scratch.path("volume-key");
        let out = their_key.to_str().unwrap();
        cryptsetup(&["luksDump", "--dump-volume-key", "--volume-key-file", out, "--key-file", secret, path]);
        let file = open(&image);
        let header = underseal_volume::Header::read(&file).unwrap();
        let opened = header.unlock(&file, &key(PASSPHRASE.as_bytes()), &UnlockOptions::default());
        assert_eq!(
            hex(opened.unwrap().key.key().as_bytes()),
            hex(&std::fs::read(their_key).unwrap()),
            "{name}"
        );

        let wrong = scratch.file("wrong", b"not it");
        let args = ["-q", "open", "--test-passphrase", "--key-file", wrong.to_str().unwrap(), path];
        assert_eq!(Command::new("cryptsetup").args(args).output().unwrap().status.code(), Some(2), "{name}");
        let refused = activate(&image, b"not it").unwrap_err();
        assert_eq!(refused.kind(), underseal_volume::ErrorKind::WrongPassphrase, "{name}");
    }
}

/// Returns the parts of underseal's description that cryptsetup's must contain too.
fn expected_in_dump(image: &Path) -> Vec<String> {
    let header = underseal_volume::Header::read(&open(image)).unwrap();
    let info = header.info();
    let mut expected = vec![info.uuid.clone()];
    if let Some(label) = info.label.filter(|label| !label.is_empty()) {
        expected.push(label);
    }
    let spaced =
        |text: &str| text.as_bytes().chunks(2).map(|b| String::from_utf8_lossy(b) + " ").collect::<String>();
    for slot in info.keyslots {
        // luksDump breaks lines after 16 bytes.
        expected.push(spaced(&slot.kdf.unwrap().salt[..32]).trim().into());
    }
    expected
}

#[test]
fn a_keyslot_that_cryptsetup_adds_opens_here() {
    for options in [FormatOptions::luks1(), FormatOptions::luks2()] {
        let scratch = Scratch::new();
        let (image, plain) = filled(&scratch, options);
        let (path, secret, second) = (&image, scratch.passphrase(), scratch.file("second", b"another one"));
        let (path, secret, second) =
            (path.to_str().unwrap(), secret.to_str().unwrap(), second.to_str().unwrap());
        let cheap = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
        cryptsetup(&[&["luksAddKey", "--key-file", secret], &cheap[..], &[path, second]].concat());
        reads_back(&image, b"another one", &plain);
        reads_back(&image, PASSPHRASE.as_bytes(), &plain);

        let file = open(&image);
        let header = underseal_volume::Header::read(&file).unwrap();
        let unlock = |slot| {
            let options = UnlockOptions { slot: Some(slot), ..UnlockOptions::default() };
            header.unlock(&file, &key(b"another one"), &options).map(|opened| opened.slot)
        };
        assert_eq!(unlock(1).unwrap(), 1);
        assert_eq!(unlock(0).unwrap_err().kind(), underseal_volume::ErrorKind::WrongPassphrase);
        assert_eq!(unlock(5).unwrap_err().kind(), underseal_volume::ErrorKind::NoKeyslot);

        cryptsetup(&["luksKillSlot", "--key-file", second, path, "0"]);
        reads_back(&image, b"another one", &plain);
        let refused = activate(&image, PASSPHRASE.as_bytes()).unwrap_err();
        assert_eq!(refused.kind(), underseal_volume::ErrorKind::WrongPassphrase);
    }
}

/// Each keyslot is within its limits. Many keyslots do not make an unlock long.
#[test]
fn the_limits_are_those_of_all_keyslots_together() {
    for options in [FormatOptions::luks1(), FormatOptions::luks2()] {
        let scratch = Scratch::new();
        let mut options = options;
        options.pbkdf.kind = PbkdfKind::Pbkdf2;
        let image = make(&scratch, options);
        let secret = scratch.passphrase();
        let cheap = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
        for slot in 1..8 {
            let new = scratch.file("new", format!("passphrase {slot}").as_bytes());
            let files =
                ["--key-file", secret.to_str().unwrap(), image.to_str().unwrap(), new.to_str().unwrap()];
            cryptsetup(&[&["luksAddKey"], &cheap[..], &files].concat());
        }
        let file = open(&image);
        let header = underseal_volume::Header::read(&file).unwrap();
        let unlock = |rounds, slot, passphrase: &str| {
            let limits = KdfLimits { rounds, ..KdfLimits::default() };
            let options = UnlockOptions { slot, limits, ..UnlockOptions::default() };
            header.unlock(&file, &key(passphrase.as_bytes()), &options).map(|opened| opened.slot)
        };
        // A slot costs 2000 rounds for 64 bytes of key, and 1000 for the digest.
        assert_eq!(unlock(3000, None, PASSPHRASE).unwrap(), 0);
        assert_eq!(unlock(8 * 3000, None, "passphrase 7").unwrap(), 7);
        assert_eq!(unlock(4 * 3000, None, "passphrase 3").unwrap(), 3);
        let error = unlock(4 * 3000, None, "passphrase 7").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongPassphrase);
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains("keyslot 4") && cause.contains("0 are allowed or left"), "{cause}");
        assert_eq!(unlock(3000, Some(7), "passphrase 7").unwrap(), 7);
    }
}

#[test]
fn a_header_backed_up_and_restored_by_cryptsetup_opens_here() {
    for options in [FormatOptions::luks1(), FormatOptions::luks2()] {
        let scratch = Scratch::new();
        let (image, plain) = filled(&scratch, options);
        let backup = scratch.path("backup");
        let (path, copy) = (image.to_str().unwrap(), backup.to_str().unwrap());
        cryptsetup(&["luksHeaderBackup", "--header-backup-file", copy, path]);
        let volume = activate_with(&backup, &image, PASSPHRASE.as_bytes()).unwrap();
        assert!(plaintext(&volume, &image, plain.len()) == plain);
        std::os::unix::fs::FileExt::write_all_at(&open(&image), &vec![0; 1 << 20], 0).unwrap();
        cryptsetup(&["luksHeaderRestore", "--header-backup-file", copy, path]);
        reads_back(&image, PASSPHRASE.as_bytes(), &plain);
    }
}

#[test]
fn a_volume_reencrypted_by_cryptsetup_reads_back_here() {
    let scratch = Scratch::new();
    let (image, plain) = filled(&scratch, FormatOptions::luks2());
    let (path, secret) = (image.to_str().unwrap(), scratch.passphrase());
    let before = std::fs::read(&image).unwrap();
    let cheap = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "--force-offline-reencrypt"];
    cryptsetup(&[&["reencrypt", "--key-file", secret.to_str().unwrap()], &cheap[..], &[path]].concat());
    assert!(std::fs::read(&image).unwrap()[16 << 20..] != before[16 << 20..]);
    reads_back(&image, PASSPHRASE.as_bytes(), &plain);
}

#[test]
fn a_luks1_header_converted_by_cryptsetup_opens_here() {
    let scratch = Scratch::new();
    let (image, plain) = filled(&scratch, FormatOptions::luks1());
    cryptsetup(&["convert", "--type", "luks2", image.to_str().unwrap()]);
    reads_back(&image, PASSPHRASE.as_bytes(), &plain);
    let header = underseal_volume::Header::read(&open(&image)).unwrap();
    assert!(matches!(header, underseal_volume::Header::Luks2(_)));
}

#[test]
fn labels_and_flags_that_cryptsetup_sets_are_seen_here() {
    let scratch = Scratch::new();
    let (image, plain) = filled(&scratch, FormatOptions::luks2());
    cryptsetup(&[
        "config",
        "--label",
        "fresh",
        "--priority",
        "prefer",
        "--key-slot",
        "0",
        image.to_str().unwrap(),
    ]);
    let info = underseal_volume::Header::read(&open(&image)).unwrap().info();
    assert_eq!((info.label.as_deref(), info.keyslots[0].priority), (Some("fresh"), "preferred"));
    reads_back(&image, PASSPHRASE.as_bytes(), &plain);
}

#[test]
fn a_detached_header_leaves_the_data_device_alone() {
    for options in [FormatOptions::luks1(), FormatOptions::luks2()] {
        let scratch = Scratch::new();
        let (header, data) = (scratch.image("header", 0), scratch.image("data", 1 << 20));
        let options = cheap(FormatOptions { detached: true, ..options });
        format(&open(&header), 1 << 20, &key(PASSPHRASE.as_bytes()), options).unwrap();
        assert!(std::fs::read(&data).unwrap() == vec![0; 1 << 20]);
        let secret = scratch.passphrase();
        let (header_path, data_path) = (header.to_str().unwrap(), data.to_str().unwrap());
        let secret = secret.to_str().unwrap();
        cryptsetup(&["open", "--test-passphrase", "--key-file", secret, "--header", header_path, data_path]);
        let volume = activate_with(&header, &data, PASSPHRASE.as_bytes()).unwrap();
        assert_eq!((volume.size(), volume.segments()[0].lower(0)), (1 << 20, Some((0, 0))));
        let alone = activate(&header, PASSPHRASE.as_bytes()).unwrap_err();
        assert_eq!(alone.kind(), underseal_volume::ErrorKind::BadLayout);
    }
}

#[test]
fn qemu_reads_a_luks1_volume_made_here() {
    let scratch = Scratch::new();
    let (image, plain) = filled(&scratch, FormatOptions::luks1());
    let raw = scratch.path("raw");
    let secret = format!("secret,id=s,file={}", scratch.passphrase().display());
    let source = format!("driver=luks,key-secret=s,file.filename={}", image.display());
    let args = ["convert", "--object", &secret, "--image-opts", &source, "-O", "raw", raw.to_str().unwrap()];
    run("qemu-img", &args);
    assert!(std::fs::read(raw).unwrap()[..plain.len()] == plain);
}
