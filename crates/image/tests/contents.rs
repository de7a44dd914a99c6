//! Images that hold something already: a new volume overwrites, and an encryption takes, what is
//! recognised only by force.

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use underseal_image::{
    Error, ErrorKind, FormatOptions, Header, OpenOptions, ReencryptionEnd, ReencryptionOptions,
};

const SECRET: &[u8] = b"correct horse";

/// The images of other systems, made by an independent maker.
fn unpacked() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let archive = concat!(env!("CARGO_MANIFEST_DIR"), "/../formats/tests/vectors/images.tar.xz");
    let unpacked = Command::new("tar").args(["-xJf", archive, "-C"]).arg(folder.path()).status();
    assert!(unpacked.unwrap().success(), "tar and xz unpack the images");
    folder
}

/// The type that libblkid finds on an image, as cryptsetup and wipefs do.
fn blkid(image: &Path) -> String {
    let found = Command::new("blkid").args(["-p", "-o", "export"]).arg(image).output().unwrap();
    String::from_utf8(found.stdout).unwrap()
}

fn encrypt(image: &Path, force: bool) -> Result<PathBuf, Error> {
    let header = image.with_extension("header");
    let options = ReencryptionOptions::encrypt().header(&header).pbkdf2(1000).force(force);
    let end = Header::reencrypt(image, SECRET, &options, |_, _| ControlFlow::Continue(()))?;
    assert_eq!(end, ReencryptionEnd::Finished);
    Ok(header)
}

fn is_refused(refused: &Error, name: &str, context: &str) {
    let text = refused.text();
    assert_eq!(refused.kind(), ErrorKind::BadOption, "{context}: {text}");
    assert!(text.contains(name) && text.contains("force"), "{context}: {text}");
}

#[test]
fn encrypted_volumes_and_whole_disks_are_encrypted_in_place_by_force_only() {
    let folder = unpacked();
    // The image, libblkid's words, ours.
    let images = [
        ("bl-8004-512.img", "TYPE=BitLocker", "a BitLocker volume"),
        ("bl-8004-4096.img", "TYPE=BitLocker", "a BitLocker volume"),
        ("bl-togo.img", "TYPE=BitLocker", "a BitLocker volume"),
        ("bl-eow.img", "TYPE=BitLocker", "a BitLocker volume"),
        ("fv-two-users.img", "", "a FileVault 2 volume"),
        // The first header is damaged.
        ("fv-header-copy.img", "", "a FileVault 2 volume"),
        ("sys-gpt-partition.img", "PTTYPE=gpt", "a partition table"),
        ("sys-mbr-partition.img", "PTTYPE=dos", "a partition table"),
    ];
    for (name, known, said) in images {
        let image = folder.path().join(name);
        assert!(blkid(&image).contains(known), "{name}: {}", blkid(&image));
        let plain = fs::read(&image).unwrap();
        is_refused(&encrypt(&image, false).unwrap_err(), said, name);
        assert!(fs::read(&image).unwrap() == plain, "{name}: changed");
        assert!(!image.with_extension("header").exists(), "{name}: a header was made");

        let header = encrypt(&image, true).unwrap();
        let volume = OpenOptions::new().passphrase(SECRET).unwrap().header(header).open(&image).unwrap();
        let mut bytes = vec![0; plain.len()];
        assert_eq!(volume.read_at(0, &mut bytes).unwrap(), plain.len());
        assert!(bytes == plain && fs::read(&image).unwrap() != plain, "{name}");
    }
}

#[test]
fn plain_file_systems_are_encrypted_in_place_without_force() {
    let folder = unpacked();
    let ext4 = folder.path().join("ext4");
    File::create_new(&ext4).unwrap().set_len(4 << 20).unwrap();
    assert!(Command::new("mkfs.ext4").arg("-q").arg(&ext4).status().unwrap().success());
    // The boot sector of a FAT file system, whose code looks like a partition.
    let fat = folder.path().join("fat");
    let file = File::create_new(&fat).unwrap();
    file.set_len(1 << 20).unwrap();
    for (at, bytes) in [
        (0, &b"\xeb\x3c\x90MSWIN4.1\0\x02\x04\x01\0\x02\0\x02\0\x08\xf8\x02\0"[..]),
        (54, b"FAT16   "),
        (446, b"\0\0\0\0\x83\0\0\0\x10\0\0\0\x10\0\0\0"),
        (510, b"\x55\xaa"),
    ] {
        file.write_all_at(bytes, at).unwrap();
    }
    let ntfs = folder.path().join("bl-plain-ntfs.img");
    for image in [ext4, fat, ntfs] {
        encrypt(&image, false).unwrap_or_else(|e| panic!("{}: {}", image.display(), e.text()));
    }
}

#[test]
fn a_new_volume_overwrites_what_is_recognised_by_force_only() {
    let folder = unpacked();
    let options = || FormatOptions::luks2().pbkdf2(1000);
    let luks = folder.path().join("luks.img");
    File::create_new(&luks).unwrap().set_len(24 << 20).unwrap();
    Header::format(&luks, SECRET, &options()).unwrap();
    // Both copies of the header are damaged, and cryptsetup may repair them.
    let file = File::options().write(true).open(&luks).unwrap();
    file.write_all_at(b"x", 100).unwrap();
    file.write_all_at(b"x", 16384 + 100).unwrap();
    let images = [
        ("bl-8004-512.img", "a BitLocker volume"),
        ("bl-togo.img", "a BitLocker To Go volume"),
        ("fv-two-users.img", "a CoreStorage (FileVault 2) volume"),
        ("sys-gpt-partition.img", "a GPT partition table"),
        ("sys-mbr-partition.img", "a boot sector or partition table"),
        ("luks.img", "a damaged LUKS header"),
    ];
    for (name, said) in images {
        let image = folder.path().join(name);
        File::options().write(true).open(&image).unwrap().set_len(24 << 20).unwrap();
        let before = fs::read(&image).unwrap();
        is_refused(&Header::format(&image, SECRET, &options()).map(drop).unwrap_err(), said, name);
        assert!(fs::read(&image).unwrap() == before, "{name}: changed");
        Header::format(&image, SECRET, &options().force(true)).unwrap();
    }
    // Bytes of no known format are no reason.
    let noise = folder.path().join("noise");
    fs::write(&noise, vec![0x5a; 24 << 20]).unwrap();
    Header::format(&noise, SECRET, &options()).unwrap();
}
