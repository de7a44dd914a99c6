//! All FileVault 2 volumes of the manifest, and one of them on two disks.

use serde_json::Value;
use underseal_cipher::Key;
use underseal_formats::fvault2::{Fvault2, Secret};
use underseal_formats::{Error, ErrorKind, OpenedFormat};
use underseal_volume::KdfLimits;

use crate::support::{check_writes, entries, image, read_all, sha256, text, texts, two_disks};

pub(crate) fn open(image: &[u8], passphrase: &str) -> Result<OpenedFormat, Error> {
    open_all(&[image], passphrase)
}

fn open_all(images: &[&[u8]], passphrase: &str) -> Result<OpenedFormat, Error> {
    // A slice of bytes is no trait object by itself.
    struct Bytes<'a>(&'a [u8]);
    impl underseal_volume::ReadAt for Bytes<'_> {
        fn size(&self) -> std::io::Result<u64> {
            Ok(self.0.len() as u64)
        }

        fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
            underseal_volume::ReadAt::read_exact_at(self.0, buf, offset)
        }
    }
    let images: Vec<_> = images.iter().map(|image| Bytes(image)).collect();
    let images: Vec<_> = images.iter().map(|image| image as &dyn underseal_volume::ReadAt).collect();
    let volume = Fvault2::read(&images, None)?;
    let passphrase = Key::new(passphrase.as_bytes()).unwrap();
    volume.activate(volume.unlock(&Secret::Passphrase(&passphrase), &KdfLimits::default())?)
}

#[test]
fn every_volume_opens_with_each_users_passphrase() {
    let mut count = 0;
    for entry in entries("fvault2").iter().filter(|entry| entry["expect"] == "open") {
        let name = &entry["image"];
        let image = image(entry);
        for passphrase in texts(entry, "passphrases") {
            let opened = open(&image, &passphrase).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(
                hex::encode(opened.volume_key.as_bytes()),
                text(entry, "volume_key").unwrap(),
                "{name}"
            );
            let plaintext = read_all(&opened, &[&image]);
            assert_eq!(Some(plaintext.len() as u64), entry["plaintext_size"].as_u64(), "{name}");
            assert_eq!(sha256(&plaintext), text(entry, "plaintext_sha256").unwrap(), "{name}");
            assert_eq!(opened.read_only.is_some(), name == "fv-two-segments.img", "{name}");
            check_writes(entry, &opened, image.clone());
            count += 1;
        }
    }
    assert_eq!(count, 7);
}

#[test]
fn what_must_be_refused_is_refused_with_its_reason() {
    let expected = [
        ("fv-no-19.img", ErrorKind::NoProtector, "wipekey"),
        ("fv-bad-crc.img", ErrorKind::BadHeader, "CRC"),
        ("fv-plain.img", ErrorKind::WrongPassphrase, "no user"),
    ];
    let mut count = 0;
    for entry in entries("fvault2").iter().filter(|entry| entry["expect"] == "refuse") {
        let name = text(entry, "image").unwrap();
        let (_, kind, words) = expected.iter().find(|(image, ..)| *image == name).expect(name);
        let error = open(&image(entry), &texts(entry, "passphrases")[0]).unwrap_err();
        assert_eq!(error.kind(), *kind, "{name}: {error}");
        assert!(error.to_string().contains(words), "{name}: {error}");
        count += 1;
    }
    assert_eq!(count, expected.len());
}

/// A volume in three pieces: on the first disk, the second and the first again. libfvde reads the
/// same plaintext. The disks may be given in any order; without one of them, and with one twice,
/// the volume is refused.
#[test]
fn a_volume_on_two_disks_opens_with_both() {
    let (entry, [first, second]) = two_disks();
    let passphrase = &texts(&entry, "passphrases")[0];
    for images in [[&first[..], &second], [&second, &first]] {
        let opened = open_all(&images, passphrase).unwrap();
        let plaintext = read_all(&opened, &images);
        assert_eq!(sha256(&plaintext), text(&entry, "plaintext_sha256").unwrap());
        assert!(opened.facts.iter().filter(|(name, _)| *name == "physical volume").count() == 2);
        assert_eq!(opened.volume.segments().len(), 3);
        assert!(opened.read_only.is_some());
    }
    for (images, kind) in [
        (&[&first[..]][..], ErrorKind::MissingDevice),
        (&[&second], ErrorKind::MissingDevice),
        (&[&first, &first], ErrorKind::BadHeader),
        (&[&first, &image(&self::entry("fv-plain.img"))], ErrorKind::BadHeader),
    ] {
        assert_eq!(open_all(images, passphrase).unwrap_err().kind(), kind);
    }
}

pub(crate) fn entry(name: &str) -> Value {
    entries("fvault2").into_iter().find(|entry| entry["image"] == name).unwrap()
}

/// A volume without keys in its metadata opens with the volume key.
#[test]
fn a_volume_key_opens_what_holds_no_keys() {
    let entry = entry("fv-no-19.img");
    let image = image(&entry);
    let volume = Fvault2::read(&[&*Box::new(File(image))], None).unwrap();
    let given = Key::new(&hex::decode(text(&entry, "volume_key").unwrap()).unwrap()).unwrap();
    let key = volume.unlock(&Secret::VolumeKey(&given), &KdfLimits::default()).unwrap();
    assert!(volume.activate(key).is_ok());
    let short = Key::new(&[1; 16]).unwrap();
    let error = volume.unlock(&Secret::VolumeKey(&short), &KdfLimits::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadOption);
}

pub(crate) struct File(pub(crate) Vec<u8>);

impl underseal_volume::ReadAt for File {
    fn size(&self) -> std::io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
        underseal_volume::ReadAt::read_exact_at(self.0.as_slice(), buf, offset)
    }
}

#[test]
fn an_apfs_container_is_refused_by_name() {
    let mut image = vec![0; 8192];
    image[32..36].copy_from_slice(b"NXSB");
    let error = open(&image, "x").unwrap_err();
    assert_eq!((error.kind(), error.to_string().contains("APFS")), (ErrorKind::Unsupported, true));
}
